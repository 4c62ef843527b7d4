from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from torch_app.task import Net, load_data, test, train

app = ClientApp()


def prepared(message: Message, context: Context):
    net = Net()
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    return net, load_data(
        context.node_config["partition-id"], context.node_config["num-partitions"]
    )


@app.train()
def train_here(message: Message, context: Context) -> Message:
    net, data = prepared(message, context)
    loss = train(net, data, context.run_config["local-epochs"], message.content["config"]["lr"])
    metrics = MetricRecord({"train_loss": loss, "num-examples": len(data)})
    return Message(
        RecordDict({"arrays": ArrayRecord(net.state_dict()), "metrics": metrics}), reply_to=message
    )


@app.evaluate()
def evaluate_here(message: Message, context: Context) -> Message:
    net, data = prepared(message, context)
    loss, accuracy = test(net, data)
    metrics = MetricRecord({"eval_loss": loss, "eval_acc": accuracy, "num-examples": len(data)})
    return Message(RecordDict({"metrics": metrics}), reply_to=message)
