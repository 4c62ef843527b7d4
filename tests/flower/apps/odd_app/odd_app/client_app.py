import signal
import sys
import threading
import time

import numpy as np
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from odd_app.task import DRAWN

app = ClientApp()


def learns(epochs):
    """Twenty batches of 32, and a test; how many batches."""
    import torch

    net = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.ReLU())
    for _ in range(epochs):
        for _ in range(20):
            net(torch.zeros(32, 3)).sum().backward()
    with torch.no_grad():
        net(torch.zeros(1000, 3))
    return 20


def answer(message: Message, context: Context) -> Message:
    way = context.run_config["client"]
    if way == "raises" and context.node_config["partition-id"] == 1:
        raise ZeroDivisionError("by zero")
    if way == "nonsense":
        return {"accuracy": 1.0}
    if way == "slow":
        threading.Event().wait()
    if way == "exits":
        sys.exit(3)
    if way == "interrupts":
        raise KeyboardInterrupt
    if way in ("lags", "signals"):
        # by one node alone: a second signal could come while the run ends because of the first
        if way == "signals" and context.node_config["partition-id"] == 0:
            signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
        threading.Event().wait(1.0)
        import odd_app.late  # noqa: F401
    if way == "sleeps":
        before = time.perf_counter(), time.monotonic_ns()
        time.sleep(2 + context.node_config["partition-id"])
        time.sleep(0.5)
        assert time.perf_counter() - before[0] > 2.5
        assert time.monotonic_ns() - before[1] > 2_500_000_000
    metrics = MetricRecord({"num-examples": 20, "accuracy": context.node_config.get("share", 0.5)})
    if way == "diverges":
        metrics["accuracy"] = float("nan")
    if way == "says-no-number":
        del metrics["num-examples"]
    if way == "counts-batches" and message.metadata.message_type == "train":
        metrics["num-examples"] = learns(context.run_config["algorithm.local-epochs"])
    content = RecordDict({"metrics": metrics})
    if message.metadata.message_type == "train":
        weights = message.content["arrays"]["0"].numpy() + 1
        if way == "draws":
            import torch

            weights = weights + DRAWN + torch.rand(3).numpy()
        seen = context.state["seen"]["count"] if "seen" in context.state else 0
        context.state["seen"] = MetricRecord({"count": seen + 1})
        content["arrays"] = ArrayRecord([weights.astype(np.float32)])
    return Message(content, reply_to=message)


app.train()(answer)
app.evaluate()(answer)
app.query()(answer)
