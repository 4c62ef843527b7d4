from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg

from sklearn_app.task import model

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    start = model()
    FedAvg(fraction_train=context.run_config["fraction-train"]).start(
        grid=grid,
        initial_arrays=ArrayRecord([start.coef_, start.intercept_]),
        num_rounds=context.run_config["num-server-rounds"],
        timeout=context.run_config["timeout"],
    )
