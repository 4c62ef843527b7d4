"""Prices of ``[costs]``, the meter that applies them, and ``[[meters]]``, the user's meters.

A scenario names a user's meter by its import path.
"""

import math
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
from pydantic import Field, create_model

from fedsim.common.arrays import Floats
from fedsim.common.errors import FedsimError, ScenarioError, place_of, show_error
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.table_classes import keys_of
from fedsim.world.meters.base import Column, Meter, MeterContext
from fedsim.world.meters.ended import Transfer
from fedsim.world.meters.fields import TaskEndFields, TaskFields

Price = Annotated[float, Field(ge=0.0, le=1e12)]

_HOUR_S = 3600.0
_GB = 1e9
_ITEMS = ("hours", "gigabytes", "requests", "tasks")


class Prices(Spec):
    """Prices of ``[costs]`` for each endpoint of one kind, such as edge servers.

    Prices are in ``costs.currency``.

    Attributes:
        per_hour: price of an hour: a device pays for the time of its tasks, a server for the time
            since the start of the run.
        per_gigabyte: price of 10^9 bytes that the endpoint sends, with headers.
        per_request: price of each message that the endpoint sends, complete or cut short.
    """

    per_hour: Price = 0.0
    per_gigabyte: Price = 0.0
    per_request: Price = 0.0


class DevicePrices(Prices):
    """Prices of ``[costs]`` for each device, which also pays for each of its tasks.

    Attributes:
        per_task: price of a task, however it ends.
    """

    per_task: Price = 0.0


class CostsSpec(Spec):
    """``[costs]``: prices by kind of endpoint.

    Messages between parts of the server, which are on no link, cost nothing.

    Attributes:
        currency: currency of all prices.
        device: prices of each device.
        edge: prices of each edge server (or cell).
        server: prices of the server.
    """

    currency: str = Field(default="USD", min_length=1, max_length=20)
    device: DevicePrices = DevicePrices()
    edge: Prices | None = None
    server: Prices = Prices()

    def build(self, context: MeterContext) -> "Bill":
        """Build the meter that counts the costs of a run.

        Args:
            context: the world in which the meter counts.

        Raises:
            ScenarioError: prices ``edge`` are given for a network without cells, such as a star.
        """
        if self.edge is not None and context.places is None:
            raise ScenarioError(
                'costs.edge is given, but network.kind has no cells; allowed with "tree" and '
                '"graph" only'
            )
        return Bill(context, self)


class Bill(Meter):
    """Meter of the costs of a run, by the prices of ``[costs]``.

    The meter adds the price of a task or a message when it ends, and the hours of the server's side
    as time passes.

    Args:
        context: the world in which the meter counts.
        prices: the prices.
    """

    round_columns = (
        Column("cost", "the currency of [costs]", "booked since the round before ended"),
    )
    device_columns = (
        Column(
            "cost", "the currency of [costs]", "of the device: its tasks, hours, messages and bytes"
        ),
    )
    fixed = ("_prices", "_rates", "_server_counts")

    def __init__(self, context: MeterContext, prices: CostsSpec) -> None:
        self._prices = prices
        self._rates = {
            "device": prices.device,
            "edge": prices.edge or Prices(),
            "server": prices.server,
        }
        self._server_counts = {"edge": context.places or 0, "server": 1}
        self._booked = {kind: dict.fromkeys(_ITEMS, 0.0) for kind in self._rates}
        self._devices = np.zeros(context.devices)  # cost of each device
        self._begins: dict[int, float] = {}  # running task's ID -> its begin (s)

    def on_task_start(self, time: float, fields: TaskFields) -> None:
        self._begins[fields["task"]] = time

    def on_task_end(self, time: float, fields: TaskEndFields) -> None:
        hours = (time - self._begins.pop(fields["task"])) / _HOUR_S
        self._book("device", "hours", self._prices.device.per_hour * hours, fields["device"])
        self._book("device", "tasks", self._prices.device.per_task, fields["device"])

    def on_transfer(self, ended: Transfer) -> None:
        source = _kind_of(ended.source)
        destination = _kind_of(ended.destination)
        if source == "server" and destination == "server":  # the message is on no link
            return
        rates = self._rates[source]
        device = ended.device if source == "device" else None
        self._book(source, "gigabytes", rates.per_gigabyte * ended.wire_bytes / _GB, device)
        self._book(source, "requests", rates.per_request, device)

    def totals(self, time: float) -> dict[str, float | None]:
        self.close(time)
        return {"cost": self._total()}

    def close(self, time: float) -> None:
        for kind, count in self._server_counts.items():
            self._booked[kind]["hours"] = self._rates[kind].per_hour * count * time / _HOUR_S

    def of_devices(self) -> dict[str, Floats]:
        return {"cost": self._devices}

    def summary(self) -> dict[str, object]:
        by_kind = {kind: math.fsum(items.values()) for kind, items in self._booked.items()}
        by_item = {}
        for item in _ITEMS:
            by_item[item] = math.fsum(items[item] for items in self._booked.values())
        return {
            "currency": self._prices.currency,
            "total": self._total(),
            "by_kind": by_kind,
            "by_item": by_item,
        }

    def _total(self) -> float:
        return math.fsum(amount for items in self._booked.values() for amount in items.values())

    def _book(self, kind: str, item: str, amount: float, device: int | None) -> None:
        self._booked[kind][item] += amount
        if device is not None:
            self._devices[device] += amount


def _kind_of(endpoint: str) -> str:
    """Return the kind of an endpoint: ``device`` for ``device 3``, ``edge`` for ``edge 1``.

    Any other name, such as that of a part of the server, gives ``server``.
    """
    kind = endpoint.partition(" ")[0]
    return kind if kind in ("device", "edge") else "server"


class MeterSpec(Spec):
    """Base of the scenario's tables ``[[meters]]``, which build the user's meters.

    The keys of the table are the parameters of the meter's ``__init__``.
    """

    meter_class: ClassVar[type[Meter]] = Meter

    kind: str

    def build(self, context: MeterContext) -> Meter:
        """Build the user's meter, with the parameters that the scenario's table gives.

        Args:
            context: the world in which the meter counts.

        Raises:
            ScenarioError: the meter's ``__init__`` fails.
        """
        names = [name for name in type(self).model_fields if name != "kind"]
        parameters = {name: getattr(self, name) for name in names}
        try:
            return self.meter_class(context, **parameters)
        except FedsimError:
            raise
        except Exception as error:
            raise ScenarioError(
                f"the meter {self.kind!r} cannot be made{place_of(error)}: {show_error(error)}"
            ) from error


class _MeterRegistry(Registry):
    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        return _make_table_class(self.class_of(kind, key), kind)


@cache
def _make_table_class(meter_class: type[Meter], kind: str) -> type[MeterSpec]:
    """Make the class of the scenario's table that describes a meter of the user.

    Args:
        meter_class: the class of the meter; parameters of its ``__init__`` after ``context`` become
            keys.
        kind: import path of the class.

    Raises:
        ScenarioError: ``__init__`` takes ``**``, so that its keys are not known.
    """
    keys, is_open = keys_of(meter_class)
    if is_open:
        raise ScenarioError(
            f"kind is {kind!r}, whose __init__ takes '**'; allowed are parameters by name: "
            "each is a key"
        )
    name = meter_class.__name__
    module = meter_class.__module__
    attributes = {"meter_class": meter_class, "__doc__": meter_class.__doc__, "__module__": module}
    # ``create_model`` adds fields only, so a base class brings the other attributes
    base = type(name, (MeterSpec,), attributes)
    return create_model(name, __base__=base, __module__=module, kind=(str, kind), **keys)


METERS = _MeterRegistry("meter", "fedsim.world.meters.base:Meter", {}, key="meters")
