from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.clientapp.mod import adaptiveclipping_mod, fixedclipping_mod

from numpy_app.task import load_data, test, train, trees

mods = {"ClientSideFixed": fixedclipping_mod, "ClientSideAdaptive": adaptiveclipping_mod}
app = ClientApp()


def clipped(message: Message, context: Context, call_next) -> Message:
    """The mod that goes with the strategy, if one does."""
    for name, mod in mods.items():
        if name in context.run_config["strategy"]:
            return mod(message, context, call_next)
    return call_next(message, context)


@app.train(mods=[clipped])
def train_here(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    lr, epochs = context.run_config["lr"], context.run_config["local-epochs"]
    if context.run_config["strategy"].startswith("FedXgb"):
        weights, loss = trees(), 0.5
    else:
        weights, loss = train(weights, x, y, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(
        RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test(weights, x, y) if len(weights) > 1 else (0.5, 0.9)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
