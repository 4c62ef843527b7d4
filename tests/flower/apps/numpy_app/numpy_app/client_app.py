from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from numpy_app.task import load_data, test, train

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    lr, epochs = context.run_config["lr"], context.run_config["local-epochs"]
    weights, loss = train(weights, x, y, epochs, lr)
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    weights = message.content["arrays"].to_numpy_ndarrays()
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    loss, accuracy = test(weights, x, y)
    metrics = MetricRecord({"loss": loss, "accuracy": accuracy, "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
