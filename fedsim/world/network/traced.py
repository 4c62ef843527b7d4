"""Keys of ``[network]`` whose values are rates that follow traces."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, get_args

import numpy as np
from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams
from fedsim.common.units import LinkRate, Quantity
from fedsim.world.distributions import (
    Choice,
    Constant,
    Distribution,
    LogNormal,
    Uniform,
    by_device,
)
from fedsim.world.network.traces import Assignment

_TRACE = {
    "trace": (
        "fedsim.toolbox.worlds.link_traces:LinkTrace",
        "Rates over time from files of bandwidth or throughput traces.",
    )
}


class TracedRate(Distribution):
    """Base of rates that follow traces."""

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

        Raises:
            DataError: a file is missing or malformed.
            ScenarioError: there are not as many traces as links, if each has one.
        """
        raise NotImplementedError

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        raise ScenarioError(f"{key} follows a trace, which is not taken there")


class _RateOrTrace(Registry):
    """Rate of a shared link: a quantity such as ``"1 Gbit/s"``, or a table of kind ``trace``."""

    def _validate(self, value: object) -> Any:
        if isinstance(value, Mapping | Spec):
            return super()._validate(value)
        return _rate_quantity().read(value)

    def __get_pydantic_core_schema__(self, _: object, __: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            self._validate,
            serialization=core_schema.plain_serializer_function_ser_schema(_write, info_arg=True),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        rate = _rate_quantity().__get_pydantic_json_schema__(schema, handler)
        tables = super().__get_pydantic_json_schema__(schema, handler)["anyOf"]
        return {"anyOf": [rate, *tables[1:]]}


def _rate_quantity() -> Quantity:
    quantity: Quantity = get_args(LinkRate)[1]
    return quantity


def _write(value: float | Spec, info: core_schema.SerializationInfo) -> object:
    if isinstance(value, Spec):
        return value.model_dump(mode=info.mode, exclude_none=info.exclude_none)
    return _rate_quantity().written(value)


_DRAWN = by_device(LinkRate, Constant, Uniform, LogNormal, Choice)
DeviceRate = Annotated[Distribution, replace(_DRAWN, known={**_DRAWN.known, **_TRACE})]
"""Rates of the devices' own links: a distribution, or traces."""
SharedRate = Annotated[float | TracedRate, _RateOrTrace("rate of a shared link", "", _TRACE)]
"""Rate of a shared link: a quantity, or a trace."""
