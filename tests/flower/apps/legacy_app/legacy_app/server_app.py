from flwr.common import Context, ndarrays_to_parameters
from flwr.server import ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.serverapp import ServerApp

from tests.flower.apps.numpy_app.numpy_app.task import initial


def weighted(metrics):
    total = sum(count for count, _ in metrics)
    return {"accuracy": sum(count * each["accuracy"] for count, each in metrics) / total}


def server_fn(context: Context):
    strategy = FedAvg(
        fraction_fit=context.run_config["fraction-train"],
        initial_parameters=ndarrays_to_parameters(initial()),
        evaluate_metrics_aggregation_fn=weighted,
    )
    return ServerAppComponents(
        strategy=strategy, config=ServerConfig(num_rounds=context.run_config["num-server-rounds"])
    )


app = ServerApp(server_fn=server_fn)
