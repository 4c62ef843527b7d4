"""Keys of ``[network]`` whose values may follow traces: rates, latencies, losses."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import numpy as np
from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
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

    Such values come from traces, files with the values of a link over time.
    """

    def assign(
        self, key: str, streams: Streams, links: int, root: Path | None, shared: str = ""
    ) -> Assignment:
        """Read the traces, and assign them to links.

        Args:
            key: the key of the scenario that holds the traces, for errors.
            streams: random streams of the run; draws are from ``world/link-trace``.
            links: count of the links.
            root: folder of data files; None for the working directory.
            shared: name of a group of shared links; empty for the devices' own links.

        Returns:
            The traces, and which link follows which.

        Raises:
            DataError: a file is missing or malformed.
            ScenarioError: there are not as many traces as links, if each has one.
        """
        raise NotImplementedError

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        raise ScenarioError(f"{key} follows a trace, which is not taken there")


class _NumberOrTrace(Registry):
    """Registry of a key that is one number for all links, or a table of kind ``trace``."""

    @property
    def _number(self) -> TypeAdapter[float]:
        return _NUMBERS[self.called]

    def _read(self, value: object) -> float | Spec:
        if isinstance(value, Mapping | Spec):
            return self._validate(value)
        return self._number.validate_python(value)

    def _write(self, value: float | Spec, info: core_schema.SerializationInfo) -> object:
        if isinstance(value, Spec):
            return value.model_dump(mode=info.mode, exclude_none=info.exclude_none)
        return self._number.dump_python(value, mode="json" if info.mode == "json" else "python")

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
        return {"anyOf": [self._number.json_schema(), *tables[1:]]}


_RATE = "rate of a shared link"
_LOSS = "loss of a link"
_NUMBERS: Mapping[str, TypeAdapter[float]] = {
    _RATE: TypeAdapter(LinkRate),
    _LOSS: TypeAdapter(Annotated[float, Field(ge=0.0, le=0.999, strict=True)]),
}
"""Name of a registry -> the validator of its numbers."""
_DRAWN = by_device(LinkRate, Constant, Uniform, LogNormal, Choice)
_TIMES = by_device(Seconds, Constant, Uniform, LogNormal, Choice)
DeviceRate = Annotated[Distribution, replace(_DRAWN, known={**_DRAWN.known, **_TRACE})]
"""Rates of the devices' own links: a distribution, or traces."""
DeviceLatency = Annotated[Distribution, replace(_TIMES, known={**_TIMES.known, **_LATENCIES})]
"""Latencies of the devices' own links: a distribution, or traces."""
DeviceLoss = Annotated[float | TracedRate, _NumberOrTrace(_LOSS, "", _LOSSES)]
"""Share of packets that the devices' own links lose: a number, or traces."""
SharedRate = Annotated[float | TracedRate, _NumberOrTrace(_RATE, "", _TRACE)]
"""Rate of a shared link: a quantity, or a trace."""
