"""Meters that a scenario names: the one of traffic, or a class by its import path, whose parameters are the keys."""

from functools import cache
from typing import ClassVar

from pydantic import create_model

from fedsim.errors import FedsimError, ScenarioError, place_of, told
from fedsim.language.registry import Registry, keys_of
from fedsim.language.spec import Spec
from fedsim.meters.base import Column, Meter, MeterContext, Transfer


class Traffic(Meter):
    """The bytes on the wire of each device, both ways."""

    entry = "traffic"
    device_columns = (
        Column("bytes_sent", "bytes", "that the device sent, with headers"),
        Column("bytes_received", "bytes", "that the device received, with headers"),
    )

    def __init__(self, context: MeterContext) -> None:
        self._moved = {column.name: [0.0] * context.devices for column in self.device_columns}

    def on_transfer(self, ended: Transfer) -> None:
        if ended.device is not None:
            self._moved["bytes_sent" if ended.direction == "up" else "bytes_received"][ended.device] += ended.wire_bytes

    def of_devices(self) -> dict[str, list[float]]:
        return self._moved


class MeterSpec(Spec):
    """A meter that a scenario names, and its parameters."""

    made: ClassVar[type[Meter]] = Meter

    kind: str

    def build(self, context: MeterContext) -> Meter:
        """The meter, which has counted nothing yet; ``ScenarioError`` if it cannot be made of what the scenario says."""
        given = {name: getattr(self, name) for name in type(self).model_fields if name != "kind"}
        try:
            return self.made(context, **given)
        except FedsimError:
            raise
        except Exception as error:
            raise ScenarioError(f"the meter {self.kind!r} cannot be made{place_of(error)}: {told(error)}") from error


@cache
def _of_class(found: type[Meter], kind: str) -> type[MeterSpec]:
    keys, is_open = keys_of(found)
    if is_open:
        raise ScenarioError(f"kind is {kind!r}, whose __init__ takes '**'; allowed are parameters by name: each is a key")
    base = type(found.__name__, (MeterSpec,), {"made": found, "__doc__": found.__doc__, "__module__": found.__module__})
    return create_model(found.__name__, __base__=base, __module__=found.__module__, kind=(str, kind), **keys)


class _MeterRegistry(Registry):
    def spec(self, kind: str, key: str = "kind") -> type[Spec]:
        return _of_class(self.find(kind, key), kind)


METERS = _MeterRegistry(
    "meter",
    "fedsim.meters.base:Meter",
    {"traffic": ("fedsim.meters.spec:Traffic", "the bytes that each device sent and received")},
    usual="traffic",
)
