"""A meter that a user writes in a file of their own, with the names of ``fedsim.plugin`` alone; and some with mistakes."""

from typing import Any

import numpy as np

from fedsim.plugin import Column, Meter, MeterContext, Step, Transfer


class Moved(Meter):
    """Bytes by device and epochs by all, what was wasted at a price."""

    entry = "moved"
    round_columns = (Column("moved", "bytes", "that moved since the round before"), Column("epochs", "", "trained till then"))
    device_columns = (Column("moved", "bytes", "that the device sent or received"),)
    fixed = ("_price",)

    def __init__(self, context: MeterContext, price: float = 1.0) -> None:
        self._price = price
        self.of = np.zeros(context.devices)
        self.epochs = 0
        self.begun: dict[int, float] = {}
        self.lasted = [0.0]

    def on_step_start(self, time: float, fields: dict[str, Any]) -> None:
        self.begun[fields["task"]] = time

    def on_step(self, ended: Step) -> None:
        assert ended.start == self.begun.pop(ended.task)
        self.lasted[0] += ended.end - ended.start
        self.epochs += ended.fields.get("epochs", 0)

    def on_transfer(self, ended: Transfer) -> None:
        if ended.device is not None:
            self.of[ended.device] += ended.delivered

    def totals(self, time: float) -> dict[str, float]:
        return {"moved": self.of.sum(), "epochs": self.epochs}

    def of_devices(self) -> dict[str, Any]:
        return {"moved": self.of}

    def summary(self) -> dict[str, Any]:
        return {"price": self._price * float(self.of.sum()), "lasted_s": self.lasted[0]}


class Twice(Moved):
    """A column that is there already."""

    entry = "twice"
    device_columns = (Column("speed", "", ""),)


class Fails(Meter):
    """Fails at the first step."""

    def on_step(self, ended: Step) -> None:
        raise KeyError("nothing")


class Forgets(Meter):
    """Says less than it has columns."""

    round_columns = (Column("forgotten", "", ""),)


class Open(Meter):
    """Takes anything."""

    def __init__(self, context: MeterContext, **more: Any) -> None: ...
