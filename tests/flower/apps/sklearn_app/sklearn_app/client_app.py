from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from sklearn.metrics import log_loss

from sklearn_app.task import fitted, load_data, model

app = ClientApp()


@app.train()
def train_here(message: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    weights = fitted(model(message.content["arrays"].to_numpy_ndarrays()), x, y)
    metrics = MetricRecord({"num-examples": len(y)})
    return Message(RecordDict({"arrays": ArrayRecord(weights), "metrics": metrics}), reply_to=message)


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    x, y = load_data(context.node_config["partition-id"], context.node_config["num-partitions"])
    made = model(message.content["arrays"].to_numpy_ndarrays())
    loss = float(log_loss(y, made.predict_proba(x), labels=[0, 1, 2]))
    metrics = MetricRecord({"loss": loss, "accuracy": float(made.score(x, y)), "num-examples": len(y)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
