from flwr.client import NumPyClient
from flwr.client.mod import fixedclipping_mod, secaggplus_mod
from flwr.clientapp import ClientApp
from flwr.common import Context

from tests.flower.apps.numpy_app.numpy_app.task import load_data, train


class FlowerClient(NumPyClient):
    def __init__(self, data, config):
        self.data, self.config = data, config

    def fit(self, parameters, config):
        weights, _ = train(parameters, *self.data, self.config["local-epochs"], self.config["lr"])
        return weights, len(self.data[1]), {}


def client_fn(context: Context):
    data = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    return FlowerClient(data, context.run_config).to_client()


app = ClientApp(client_fn=client_fn, mods=[secaggplus_mod, fixedclipping_mod])
