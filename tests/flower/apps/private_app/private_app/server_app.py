from flwr.common import Context, ndarrays_to_parameters
from flwr.server import LegacyContext, ServerConfig
from flwr.server.strategy import DifferentialPrivacyClientSideFixedClipping, FedAvg
from flwr.server.workflow import DefaultWorkflow, SecAggPlusWorkflow
from flwr.serverapp import Grid, ServerApp

from tests.flower.apps.numpy_app.numpy_app.task import initial, load_data, test

app = ServerApp()


def central(server_round, parameters, config):
    loss, accuracy = test(parameters, *load_data(99, 100))
    return loss, {"accuracy": accuracy}


@app.main()
def main(grid: Grid, context: Context) -> None:
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-train"],
        fraction_evaluate=0.0,
        initial_parameters=ndarrays_to_parameters(initial()),
        evaluate_fn=central,
    )
    private = DifferentialPrivacyClientSideFixedClipping(
        strategy, noise_multiplier=0.01, clipping_norm=10.0, num_sampled_clients=5
    )
    legacy = LegacyContext(
        context=context,
        config=ServerConfig(num_rounds=context.run_config["num-server-rounds"]),
        strategy=private,
    )
    secure = SecAggPlusWorkflow(
        num_shares=3, reconstruction_threshold=2, timeout=context.run_config["timeout"]
    )
    DefaultWorkflow(fit_workflow=secure)(grid, legacy)
