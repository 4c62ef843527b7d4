from flwr.app import ArrayRecord, Context
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp import strategy as strategies

from numpy_app.task import initial, trees

app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    config = context.run_config
    name, share = config["strategy"], config["fraction-train"]
    if name.startswith("DifferentialPrivacy"):
        norm = {"clipping_norm": 5.0} if "Fixed" in name else {"initial_clipping_norm": 5.0}
        inner = strategies.FedAvg(fraction_train=share)
        strategy = getattr(strategies, name)(
            inner, noise_multiplier=0.01, num_sampled_clients=6, **norm
        )
    else:
        more = {
            "QFedAvg": {"client_learning_rate": config["lr"]},
            "FedProx": {"proximal_mu": 0.1},
        }.get(name, {})
        share = 1.0 if name == "FedXgbCyclic" else share
        strategy = getattr(strategies, name)(fraction_train=share, **more)
    strategy.start(
        grid=grid,
        initial_arrays=ArrayRecord(
            trees() if name.startswith("FedXgb") else initial(config["size"])
        ),
        num_rounds=config["num-server-rounds"],
        timeout=config["timeout"],
    )
