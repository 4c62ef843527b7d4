import asyncio
import signal
import subprocess
import sys
import threading
import time

import numpy as np
from flwr.app import ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.serverapp import Grid, ServerApp

from odd_app.task import DRAWN

app = ServerApp()


def made(grid, value, nodes=None, kind="train"):
    record = RecordDict({"arrays": ArrayRecord([np.full(3, value, np.float32)])})
    return [
        Message(record, node, kind) for node in (grid.get_node_ids() if nodes is None else nodes)
    ]


def value_of(replies):
    return float(
        np.mean(
            [reply.content["arrays"]["0"].numpy()[0] for reply in replies if reply.has_content()]
        )
    )


def polls(grid, rounds):
    """Push, and pull every three seconds, as Flower's own tutorial does."""
    value = 0.0
    for _ in range(rounds):
        open_ids, replies = set(grid.push_messages(made(grid, value))), []
        while open_ids:
            got = list(grid.pull_messages(open_ids))
            open_ids -= {reply.metadata.reply_to_message_id for reply in got}
            replies += got
            time.sleep(3)
        value = value_of(replies)
    list(grid.send_and_receive(made(grid, value, kind="evaluate")))


def polls_at_once(grid, rounds):
    open_ids = set(grid.push_messages(made(grid, 0.0)))
    while open_ids:
        open_ids -= {reply.metadata.reply_to_message_id for reply in grid.pull_messages(open_ids)}


def asynchronous(grid, rounds):
    value, answered = 0.0, 0
    open_ids = set(grid.push_messages(made(grid, value)))
    begin, first = time.time(), time.monotonic()
    while answered < 5 * rounds:
        for reply in grid.pull_messages(open_ids):
            open_ids.discard(reply.metadata.reply_to_message_id)
            answered += 1
            value = 0.5 * value + 0.5 * value_of([reply])
            open_ids |= set(grid.push_messages(made(grid, value, [reply.metadata.src_node_id])))
        time.sleep(0.5)
    assert time.time() - begin == time.monotonic() - first > 1.0


def fails(grid, rounds):
    list(grid.send_and_receive(made(grid, 1.0)))
    list(grid.send_and_receive(made(grid, 2.0)))
    raise ValueError("no more")


def exits(grid, rounds):
    list(grid.send_and_receive(made(grid, 1.0)))
    sys.exit(3)


def interrupts(grid, rounds):
    list(grid.send_and_receive(made(grid, 1.0)))
    raise KeyboardInterrupt


def lags(grid, rounds):
    """Computes for longer than the run waits for it, and then goes on."""
    threading.Event().wait(2.0)
    import odd_app.late  # noqa: F401

    list(grid.send_and_receive(made(grid, 1.0)))


def lags_later(grid, rounds):
    list(grid.send_and_receive(made(grid, 1.0)))
    lags(grid, rounds)


def signals_and_lags(grid, rounds):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    lags(grid, rounds)


def signals_and_sleeps(grid, rounds):
    signal.pthread_kill(threading.main_thread().ident, signal.SIGALRM)
    sleeps(grid, rounds)


def cleans_up(grid, rounds):
    try:
        goes_on(grid, rounds)
    finally:
        import odd_app.late  # noqa: F401

        time.sleep(100)


def resists(grid, rounds):
    """Takes the end of the run for an error of a round."""
    for _ in range(200):
        try:
            list(grid.send_and_receive(made(grid, 1.0)))
        except BaseException:
            threading.Event().wait(0.01)
    import odd_app.late  # noqa: F401


def sleeps(grid, rounds):
    while True:
        time.sleep(1000)


def waits_for_a_process(grid, rounds):
    """Libraries wait in real time, of which the ServerApp sees nothing."""
    begin = time.monotonic()
    subprocess.run([sys.executable, "-c", "import time; time.sleep(0.1)"], timeout=60, check=True)
    asyncio.run(asyncio.sleep(0.05))
    assert time.monotonic() == begin
    list(grid.send_and_receive(made(grid, 1.0)))


def computes(grid, rounds):
    list(grid.send_and_receive(made(grid, 1.0)))
    never = threading.Event()
    while not never.wait(0.01):
        pass


def goes_on(grid, rounds):
    value = 0.0
    while True:
        value = value_of(grid.send_and_receive(made(grid, value)))


def calls_from_a_thread(grid, rounds):
    found = []

    def call():
        try:
            list(grid.send_and_receive(made(grid, 1.0)))
        except RuntimeError as error:
            found.append(error)

    thread = threading.Thread(target=call, name="mine")
    thread.start()
    thread.join()
    raise found[0]


def times_out(grid, rounds):
    """Who is late is late; its answer can still be pulled, and it takes its next message only
    then.
    """
    replies = list(grid.send_and_receive(made(grid, 1.0), timeout=1.5))
    assert len(replies) == 1, replies
    after = list(grid.send_and_receive(made(grid, 2.0)))
    assert [reply.content["arrays"]["0"].numpy()[0] for reply in after] == [3.0, 3.0, 3.0]


def expires(grid, rounds):
    (message, *_) = made(grid, 1.0)
    short = Message(message.content, message.metadata.dst_node_id, "train", ttl=0.5)
    (reply,) = grid.send_and_receive([short])
    assert reply.error.code == 3, reply


def asks_the_lost(grid, rounds):
    (reply,) = grid.send_and_receive(made(grid, 1.0))
    assert reply.has_error()
    assert reply.error.code == 5
    assert reply.metadata.reply_to_message_id


def queries(grid, rounds):
    for _ in range(rounds):
        content = RecordDict({"config": ConfigRecord({"what": "facts"})})
        list(
            grid.send_and_receive([Message(content, node, "query") for node in grid.get_node_ids()])
        )


def queries_and_trains(grid, rounds):
    queries(grid, 1)
    polls(grid, rounds)


def draws(grid, rounds):
    """Draws when it is loaded, and imports torch only here."""
    import torch

    value = DRAWN + float(torch.rand(()))
    for _ in range(rounds):
        value = value_of(grid.send_and_receive(made(grid, value)))


@app.main()
def main(grid: Grid, context: Context) -> None:
    globals()[context.run_config["server"].replace("-", "_")](
        grid, context.run_config["num-server-rounds"]
    )
