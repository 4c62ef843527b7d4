from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies

from numpy_app.task import initial

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    strategy = getattr(strategies, config["strategy"])(fraction_train=config["fraction-train"])
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(initial(config["size"])),
        num_rounds=config["num-server-rounds"],
        timeout=config["timeout"],
    )
