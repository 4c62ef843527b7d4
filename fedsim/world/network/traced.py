"""Keys of ``[network]`` whose values may follow traces: rates, latencies, losses."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import LinkRate, Seconds
from fedsim.world.distributions import (
    Choice,
    Constant,
    Distribution,
    LogNormal,
    Uniform,
    by_device,
)
from fedsim.world.network.traces import Assignment

_LINKS = "fedsim.toolbox.worlds.link_traces"
_TRACE = {
    "trace": (
        f"{_LINKS}:LinkTrace",
        "Rates over time from files of bandwidth or throughput traces.",
    )
}
_LATENCIES = {
    "trace": (
        f"{_LINKS}:LatencyTrace",
        "Latencies over time from files, for links with congestion windows.",
    )
}
_LOSSES = {
    "trace": (
        f"{_LINKS}:LossTrace",
        "Shares of lost packets over time from files, for links with congestion windows.",
    )
}


class TracedRate(Distribution):
    """Base of the scenario's values that change over time: rates, latencies or losses of links.

    Such values come from traces: files with recorded values over time.
    """

    def assign(
        self, key: str, streams: Streams, links: int, root: Path | None, shared: str = ""
    ) -> Assignment:
        """Read the traces, and assign them to links.

        Args:
            key: the key of the scenario that has the traces, for error messages.
            streams: random streams of the run; draws are from the stream ``world/link-trace``.
            links: count of the links.
            root: folder of data files; None for the working directory.
            shared: name of a group of shared links; empty for the devices' own links.

        Returns:
            The traces, and which link follows which.

        Raises:
            DataError: a file is missing or malformed.
            ScenarioError: each link is to follow a different trace, but there are not as many
                traces as links.
        """
        raise NotImplementedError

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        raise ScenarioError(f"{key} follows a trace, which is not taken there")


@dataclass(frozen=True, eq=False, kw_only=True)
class _NumberOrTrace(KindField):
    """Field of a key that is one number for all links, or a table of kind ``trace``.

    Attributes:
        number: validator of the number.
    """

    number: TypeAdapter[float]

    def _read(self, value: object) -> float | Spec:
        if isinstance(value, Mapping | Spec):
            return self._validate(value)
        return self.number.validate_python(value)

    def _write(self, value: float | Spec, info: core_schema.SerializationInfo) -> object:
        if isinstance(value, Spec):
            return value.model_dump(mode=info.mode, exclude_none=info.exclude_none)
        return self.number.dump_python(value, mode="json" if info.mode == "json" else "python")

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._read,
            serialization=core_schema.plain_serializer_function_ser_schema(
                self._write, info_arg=True
            ),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        tables = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [self.number.json_schema(), *tables[1:]]}


def _with_kinds(field: KindField, added: Mapping[str, tuple[str | type[Spec], str]]) -> KindField:
    known = {**field.registry.known, **added}
    return replace(field, registry=replace(field.registry, known=known))


_DRAWN = by_device(LinkRate, Constant, Uniform, LogNormal, Choice)
_TIMES = by_device(Seconds, Constant, Uniform, LogNormal, Choice)
_RATE = Registry("rate of a shared link", "", _TRACE)
_LOSS = Registry("loss of a link", "", _LOSSES)
_SHARE: TypeAdapter[float] = TypeAdapter(Annotated[float, Field(ge=0.0, le=0.999, strict=True)])
DeviceRate = Annotated[Distribution, _with_kinds(_DRAWN, _TRACE)]
"""Rates of the devices' own links: a distribution, or traces."""
DeviceLatency = Annotated[Distribution, _with_kinds(_TIMES, _LATENCIES)]
"""Latencies of the devices' own links: a distribution, or traces."""
DeviceLoss = Annotated[float | TracedRate, _NumberOrTrace(registry=_LOSS, number=_SHARE)]
"""Share of packets that the devices' own links lose: a number, or traces."""
SharedRate = Annotated[
    float | TracedRate, _NumberOrTrace(registry=_RATE, number=TypeAdapter(LinkRate))
]
"""Rate of a shared link: a quantity, or a trace."""
