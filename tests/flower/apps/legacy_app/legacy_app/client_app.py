from flwr.client import NumPyClient
from flwr.clientapp import ClientApp
from flwr.common import Context

from tests.flower.apps.numpy_app.numpy_app.task import load_data, test, train


class FlowerClient(NumPyClient):
    def __init__(self, data, config):
        self.data, self.config = data, config

    def fit(self, parameters, config):
        weights, loss = train(
            parameters, *self.data, self.config["local-epochs"], self.config["lr"]
        )
        return weights, len(self.data[1]), {"train_loss": loss}

    def evaluate(self, parameters, config):
        loss, accuracy = test(parameters, *self.data)
        return loss, len(self.data[1]), {"accuracy": accuracy}


def client_fn(context: Context):
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(data, context.run_config).to_client()


app = ClientApp(client_fn=client_fn)
