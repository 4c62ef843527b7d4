"""A quantity of every device, with units in the text.

Drawn (a constant, uniform, lognormal, choice), or said device by device: in a list, or in a table of the user's own.
"""

import math
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import AfterValidator, Field, model_validator

from fedsim.arrays import Floats
from fedsim.errors import ScenarioError
from fedsim.files import sought
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import BytesPerSecond, SamplesPerSecond, Seconds
from fedsim.world.columns import alike
from fedsim.world.device_table import DeviceTable

Q = TypeVar("Q")

_BLOCK = 1 << 15  # numbers at once: what stays in a core's own cache


class Distribution(Spec):
    """The base of every distribution."""

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[Any]:
        """``size`` values in the base unit, float64 [size]."""
        raise NotImplementedError

    def by_device(self, key: str, generator: np.random.Generator, devices: int, root: Path | None) -> NDArray[Any]:
        """The value of each device in the base unit, float64 [devices]: by default drawn.

        ``key`` is where it stands in the scenario, for errors; files are sought in ``root``.
        """
        return self.draw(generator, devices)


class Constant(Distribution, Generic[Q]):
    """The same value everywhere. In a scenario a bare quantity means this."""

    kind: Literal["constant"] = "constant"
    value: Q

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[Any]:
        return alike(self.value, size)


class Uniform(Distribution, Generic[Q]):
    """Uniform between two values."""

    kind: Literal["uniform"] = "uniform"
    low: Q
    high: Q

    @model_validator(mode="after")
    def _ordered(self) -> "Uniform[Q]":
        if self.low > self.high:  # type: ignore[operator]
            raise ValueError("'low' is above 'high'")
        if self.high == math.inf:
            raise ValueError("a uniform distribution cannot reach up to infinity; 'high' must be finite")
        return self

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        return generator.uniform(self.low, self.high, size)  # type: ignore[call-overload, no-any-return]


class LogNormal(Distribution, Generic[Q]):
    """Lognormal by its median and its spread, the factor by which one standard deviation multiplies (exp of sigma)."""

    kind: Literal["lognormal"] = "lognormal"
    median: Q
    spread: float = Field(ge=1.0, le=1e6)

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        values = generator.standard_normal(size)
        values *= math.log(self.spread)  # in place: there may be 100 million
        # numpy's exp of real numbers has other last bits where there is AVX-512; that of complex ones is the C library's.
        for block in np.array_split(values, 1 + size // _BLOCK):
            block[:] = np.exp(block.astype(np.complex128)).real
        return np.multiply(self.median, values, out=values)  # type: ignore[call-overload, no-any-return]


class Choice(Distribution, Generic[Q]):
    """One of several values, with given shares (equal when none are given)."""

    kind: Literal["choice"] = "choice"
    values: list[Q] = Field(min_length=1)
    shares: list[float] | None = None

    @model_validator(mode="after")
    def _matching(self) -> "Choice[Q]":
        if self.shares is not None and (len(self.shares) != len(self.values) or min(self.shares) < 0 or sum(self.shares) <= 0):
            raise ValueError("'shares' must be as many as 'values', none negative, not all zero")
        return self

    def draw(self, generator: np.random.Generator, size: int) -> NDArray[Any]:
        shares = None if self.shares is None else np.array(self.shares) / sum(self.shares)
        return generator.choice(np.array(self.values), size, p=shares)


class Listed(Distribution, Generic[Q]):
    """A value for each device, in order of their numbers. In a scenario a bare list means this."""

    kind: Literal["list"] = "list"
    values: list[Q] = Field(min_length=1)

    def by_device(self, key: str, generator: np.random.Generator, devices: int, root: Path | None) -> NDArray[Any]:
        """The values as they are listed; ``ScenarioError`` if there are more or fewer than devices."""
        if len(self.values) != devices:
            raise ScenarioError(f"{key} lists {len(self.values)} values for {devices} devices; allowed is one a device")
        return np.array(self.values)


class FileColumn(Spec):
    """The base of values by device from a file.

    Attributes:
        file: the file; a relative path starts from ``data.root``, else the working directory, else ``$FEDSIM_DATA``.
        column: the column's name.
        unit: of the cells that are bare numbers, such as ``"s"``; others carry their own.
    """

    kind: Literal["file"] = "file"
    file: str
    column: str
    unit: str | None = None

    def cells(self, key: str, devices: int, root: Path | None, quantity: Any, **empty: Any) -> NDArray[Any]:
        """The values of the column; ``DataError`` if a row or a value is missing, or not allowed here.

        ``empty`` is the value of empty cells, else they are refused.
        """
        table = DeviceTable(key, sought(self.file, root), (self.column,), ("device",))
        return np.array(table.by_device(self.column, devices, quantity, self.unit, **empty))


class FromFile(FileColumn, Distribution, Generic[Q]):
    """A column of a CSV or Parquet file with a row a device: in order of their numbers, or as its column ``device`` says."""

    def by_device(self, key: str, generator: np.random.Generator, devices: int, root: Path | None) -> NDArray[Any]:
        return self.cells(key, devices, root, type(self).__pydantic_generic_metadata__["args"][0])


def _above_zero(rate: float) -> float:
    if not rate > 0:
        raise ValueError("a link must carry something: its rate must be above 0")
    return rate


LinkRate = Annotated[BytesPerSecond, AfterValidator(_above_zero)]
Jitter = Annotated[float, Field(ge=0.0, le=100.0)]
Factor = Annotated[float, Field(ge=1e-6, le=1.0)]  # below, times overflow
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def by_device(quantity: Any, *drawn: type[Distribution], base: str = "", in_files: Any = None) -> Registry:
    """The distributions of a quantity. Short forms: a bare value for a constant, a list with one value per device, a file."""
    specs: Any = [form[quantity] for form in (*drawn, Listed)] + [FromFile[in_files or quantity]]  # type: ignore[index, misc]
    return Registry.of("distribution", *specs, base=base, usual="constant", bare="value", by_device=True)


_BASE = "fedsim.world.distributions:Distribution"
SPEEDS = by_device(SamplesPerSecond, Constant, Uniform, LogNormal, Choice, base=_BASE)
SpeedDistribution = Annotated[Distribution, SPEEDS]
RateDistribution = Annotated[Distribution, by_device(BytesPerSecond, Constant, Uniform, LogNormal, Choice, in_files=LinkRate)]
TimeDistribution = Annotated[Distribution, by_device(Seconds, Constant, Uniform, LogNormal, Choice)]
JitterDistribution = Annotated[Distribution, by_device(Jitter, Constant, Uniform, LogNormal, Choice)]
FactorDistribution = Annotated[Distribution, by_device(Factor, Constant, Uniform, Choice)]
NameDistribution = Annotated[Distribution, by_device(str, Constant, Choice)]
