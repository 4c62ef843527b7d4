"""What a user writes in a file of their own: a selection, a codec, a source, both halves of a
strategy, a meter; and mistakes.

Written with the names of ``fedsim.plugin`` alone.
"""

import asyncio
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from fedsim import plugin as fed


class Slowest(fed.Selection):
    """Whoever took longest the last time comes first."""

    kind: str = "tests.own_parts:Slowest"
    patience: float = 5.0

    def select(
        self,
        server: fed.Server,
        state: dict[str, Any],
        count: int,
        ids: tuple[int, ...],
        among: list[int] | None = None,
    ) -> list[int]:
        state["begun"] = server.now
        there = server.clients.sample(server.devices, "select", *ids, among=among)
        took = state.get("took", {})
        return sorted(there, key=lambda device: -took.get(device, self.patience))[:count]

    def on_task_end(self, server: fed.Server, state: dict[str, Any], message: fed.TaskEnd) -> None:
        state.setdefault("took", {})[message.device] = server.now - state["begun"]


class Satellite(fed.Protocol):
    """Who is far away gets half of what others do."""

    kind: str = "tests.own_parts:Satellite"

    @property
    def weighs(self) -> bool:
        return True

    def weight(
        self, streams: fed.Streams, device: int, count: int, round_trip: float, direction: str
    ) -> float:
        return 0.5 if round_trip > 0.5 else 1.0


@fed.pure
def halved(models: list[Any]) -> Any:
    """Every number in 16 bits."""
    return models[0].astype(np.float16).astype(np.float32)


class Half(fed.Codec):
    """Every number of an update in 16 bits."""

    ways: ClassVar[tuple[str, ...]] = ("down", "up")
    kind: str = "tests.own_parts:Half"

    def bytes(self, parameters: int) -> float:
        return 2 * parameters

    def code(
        self,
        arithmetic: Any,
        parameters: int,
        value: fed.Ref,
        base: fed.Ref | None,
        kept: fed.Ref | None,
    ) -> fed.Coded:
        return fed.Coded(arithmetic.apply(halved, [value]))


class Rings(fed.Source):
    """Points in rings around 0, of as many classes."""

    kind: str = "tests.own_parts:Rings"
    classes: int = 3

    def load(self, root: Path | None) -> fed.Raw:
        draw = np.random.default_rng(1)
        x, y = draw.normal(size=(1500, 4)), np.arange(1500) % self.classes
        x = (x / np.linalg.norm(x, axis=1, keepdims=True) * (1 + y[:, None])).astype(np.float32)
        return fed.Raw("rings", x[300:], y[300:], x[:300], y[:300], classes=self.classes, peak=1.0)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        return (4,), self.classes


class ProudParams(fed.AggregatingParams):
    kind: str = "tests.own_parts:Proud"
    boldness: float = 0.5


class ProudClient(fed.SynchronousClient[ProudParams]):
    """Sends its update the bolder, the oftener it has been heard."""

    def reply(
        self, device: fed.Device, instruction: fed.Instruction, result: fed.LocalResult
    ) -> fed.Contents:
        assert result.update is not None
        times = device.state.get("times", 0)
        bold = device.mix(
            [
                (result.update, 1 + self.params.boldness * times),
                (instruction["model"], -self.params.boldness * times),
            ]
        )
        return {"update": bold, "times": times, "samples": fed.Header(result.samples)}

    def on_sent(
        self, device: fed.Device, instruction: fed.Instruction, reply: fed.Contents
    ) -> None:
        device.state["times"] = device.state.get("times", 0) + 1


class Proud(fed.FedAvg[ProudParams]):
    """FedAvg with clients that remember; the server writes down how often each has been heard."""

    Params: ClassVar[type[fed.SynchronousParams]] = ProudParams
    Client = ProudClient

    async def aggregate(self) -> None:
        times = [entry["contents"]["times"] for entry in self.state["received"]]
        self.server.emit("heard", times=times)
        await super().aggregate()


class Clumsy(fed.FedAvg[fed.AggregatingParams]):  # makes a mistake in its second round
    async def aggregate(self) -> None:
        if self.state["round"] == 1:
            self.state["model"].no_such_thing()
        await super().aggregate()


class Unfinished(fed.Asynchronous[fed.AsynchronousParams]):  # has nothing of its own
    Params: ClassVar[type[fed.AsynchronousParams]] = fed.AsynchronousParams


class Mute(fed.FedAvg[fed.AggregatingParams]):  # sends what cannot be sent
    def contents(self, device: int) -> fed.Contents:
        return {"model": {"weights": self.state["model"]}}


class Wrong(fed.Selection):  # chooses what cannot be asked
    kind: str = "tests.own_parts:Wrong"
    chosen: list[int | str]

    def select(self, *of: Any) -> list[int]:
        return self.chosen  # type: ignore[return-value]


class Misread(Slowest):  # says that it asks by a function, which is always true
    def asks(self) -> bool:  # type: ignore[override]
        return False


class Hasty(Slowest):  # chooses at once
    def choose(
        self, server: fed.Server, state: dict[str, Any], count: int, answers: Any
    ) -> list[int]:  # type: ignore[override]
        return []


class Narrow(Slowest):  # does not take what it is called with
    def select(self, server: fed.Server, count: int) -> list[int]:  # type: ignore[override]
        return []


class Silent(Slowest):  # forgets what it has chosen
    def select(self, *of: Any) -> list[int]:
        super().select(*of)
        return None  # type: ignore[return-value]


class Timely(fed.FedAvg[fed.AggregatingParams]):  # has a client half whose answer takes its time
    class Client(fed.SynchronousClient[fed.AggregatingParams]):
        async def reply(
            self, device: fed.Device, instruction: fed.Instruction, result: fed.LocalResult
        ) -> fed.Contents:  # type: ignore[override]
            return {}


class Sleepy(fed.FedAvg[fed.AggregatingParams]):  # waits for real time
    async def aggregate(self) -> None:
        await asyncio.sleep(0.01)


class NoNumber(fed.FedAvg[fed.AggregatingParams]):  # makes a model that is no number
    async def aggregate(self) -> None:
        await super().aggregate()
        self.state["model"] = self.server.models.mix([(self.state["model"], float("nan"))])


class Charged(fed.Selection):
    """Whoever said the fullest battery last comes first; who is unknown counts as full."""

    kind: str = "tests.own_parts:Charged"

    def select(
        self,
        server: fed.Server,
        state: dict[str, Any],
        count: int,
        ids: tuple[int, ...],
        among: list[int] | None = None,
    ) -> list[int]:
        there = server.clients.sample(server.devices, "select", *ids, among=among)
        said = state.setdefault("said", {})
        return sorted(there, key=lambda device: -said.get(device, [1.0])[0])[:count]

    def report(
        self, device: fed.Device, instruction: fed.Instruction, result: fed.LocalResult
    ) -> fed.Contents:
        return {"power": fed.Header([device.battery, device.plugged_in, device.link])}

    def on_task_end(self, server: fed.Server, state: dict[str, Any], message: fed.TaskEnd) -> None:
        if message.outcome == "done":
            state["said"][message.device] = message["power"]


class Moved(fed.Meter):
    """Bytes by device and epochs by all, what was wasted at a price."""

    entry = "moved"
    round_columns = (
        fed.Column("moved", "bytes", "moved in the round"),
        fed.Column("epochs", "", "trained till then"),
    )
    device_columns = (fed.Column("moved", "bytes", "that the device sent or received"),)
    fixed = ("_price",)

    def __init__(self, context: fed.MeterContext, price: float = 1.0) -> None:
        self._price = price
        self.of = np.zeros(context.devices)
        self.epochs = 0
        self.begun: dict[int, float] = {}
        self.lasted = [0.0]

    def on_step_start(self, time: float, fields: dict[str, Any]) -> None:
        self.begun[fields["task"]] = time

    def on_step(self, ended: fed.Step) -> None:
        assert ended.start == self.begun.pop(ended.task)
        self.lasted[0] += ended.end - ended.start
        self.epochs += ended.fields.get("epochs", 0)

    def on_transfer(self, ended: fed.Transfer) -> None:
        if ended.device is not None:
            self.of[ended.device] += ended.delivered

    def totals(self, time: float) -> dict[str, float]:
        return {"moved": self.of.sum(), "epochs": self.epochs}

    def of_devices(self) -> dict[str, Any]:
        return {"moved": self.of}

    def summary(self) -> dict[str, Any]:
        return {"price": self._price * float(self.of.sum()), "lasted_s": self.lasted[0]}


class Twice(Moved):  # a column that is there already
    entry = "twice"
    device_columns = (fed.Column("speed", "", ""),)


class Deaf(fed.Meter):  # a hook without the time of the record
    def on_task_end(self, fields: dict[str, Any]) -> None:
        raise AssertionError("it is never called")


class Fails(fed.Meter):  # fails at the first step
    def on_step(self, ended: fed.Step) -> None:
        raise KeyError("nothing")


class Forgets(fed.Meter):  # says less than it has columns
    round_columns = (fed.Column("forgotten", "", ""),)


class Open(fed.Meter):  # takes anything
    def __init__(self, context: fed.MeterContext, **more: Any) -> None: ...
