"""Distributions of a quantity over devices: random draws, a list, or a column of a user's table."""

import math
from pathlib import Path
from typing import Annotated, Any, Generic, Literal, TypeVar

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.arrays import AnyArray, Floats
from fedsim.common.errors import ScenarioError
from fedsim.common.files import find_file
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, find_wrong_entry, returns
from fedsim.common.spec import Spec
from fedsim.common.units import SamplesPerSecond, Seconds
from fedsim.world.columns import alike
from fedsim.world.device_table import IDS, DeviceTable

Q = TypeVar("Q")
Amount = TypeVar("Amount", bound=float)

_BLOCK = 1 << 15  # count of values per block, which fit into a core's own cache
_KEYED = "the given 'generator'"
_find_wrong_speed = find_outside(above=0.0, infinite=True)


def _find_wrong_draw(
    values: AnyArray,
    distribution: object,
    generator: np.random.Generator,
    size: int,
) -> str:
    return find_wrong_entry(values, size, _find_wrong_speed)


def _find_wrong_value(
    values: AnyArray,
    distribution: object,
    key: str,
    generator: np.random.Generator,
    devices: int,
    root: Path | None,
) -> str:
    return find_wrong_entry(values, devices, _find_wrong_speed)


def _normalise(shares: list[float] | None) -> Floats | None:
    """Divide shares by their sum; return None if ``shares`` is None, which means equal shares."""
    if shares is None:
        return None
    normalised: Floats = np.array(shares) / sum(shares)
    return normalised


class Distribution(Spec):
    """Base of the distributions from which a key of a scenario draws a value for each device.

    A subclass defines ``draw`` or ``by_device``. A user's subclass is allowed for
    ``population.speed`` only. Its attributes that are speeds need the type ``SamplesPerSecond``.
    """

    @returns("an array of 'size' numbers above 0", _find_wrong_draw, allowed_draws=_KEYED)
    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        """Draw independent values from the distribution.

        Args:
            generator: the random generator.
            size: count of values.

        Returns:
            Values in the base unit of the key, float64 [size].
        """
        raise NotImplementedError

    @returns(
        "an array of a number above 0 for each device", _find_wrong_value, allowed_draws=_KEYED
    )
    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        """Return one value for each device; by default, draw them independently.

        Args:
            key: the scenario key that has the distribution, for error messages.
            generator: the random generator.
            devices: number of devices.
            root: folder of data files; None for the working directory.

        Returns:
            Values in the base unit of the key, float64 [devices].
        """
        return self.draw(generator, devices)


class Constant(Distribution, Generic[Q]):
    """Distribution with one value for all devices; in a scenario a bare quantity is the short form.

    Attributes:
        value: the value of every device.
    """

    kind: Literal["constant"] = "constant"
    value: Q

    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        return alike(self.value, size)


class Uniform(Distribution, Generic[Amount]):
    """Uniform distribution between two values.

    Attributes:
        low, high: least and greatest value.
    """

    kind: Literal["uniform"] = "uniform"
    low: Amount
    high: Amount

    @model_validator(mode="after")
    def _refuse_wrong_bounds(self) -> "Uniform[Amount]":
        if self.low > self.high:
            raise ValueError("'low' is above 'high'")
        if self.high == math.inf:
            raise ValueError(
                "a uniform distribution cannot reach up to infinity; 'high' must be finite"
            )
        return self

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        return generator.uniform(self.low, self.high, size)


class LogNormal(Distribution, Generic[Amount]):
    """Lognormal distribution, given by its median and its spread.

    Attributes:
        median: median of the devices' values.
        spread: factor by which one standard deviation multiplies a value (exp of sigma).
    """

    kind: Literal["lognormal"] = "lognormal"
    median: Amount
    spread: float = Field(ge=1.0, le=1e6)

    def draw(self, generator: np.random.Generator, size: int) -> Floats:
        values = generator.standard_normal(size)
        values *= math.log(self.spread)  # in place, to save memory: there may be 100 million values
        # With AVX-512 numpy's exp of real numbers differs in the last bits; its exp of complex
        # numbers is the C library's.
        for block in np.array_split(values, 1 + size // _BLOCK):
            block[:] = np.exp(block.astype(np.complex128)).real
        np.multiply(self.median, values, out=values)
        return values


class Choice(Distribution, Generic[Q]):
    """Distribution over a list of values.

    Attributes:
        values: the values from which each device's value is drawn.
        shares: share of the devices that have each value; None for equal shares.
    """

    kind: Literal["choice"] = "choice"
    values: list[Q] = Field(min_length=1)
    shares: list[float] | None = None

    @model_validator(mode="after")
    def _refuse_wrong_shares(self) -> "Choice[Q]":
        shares = self.shares
        if shares is None:
            return self
        if len(shares) != len(self.values) or min(shares) < 0 or sum(shares) <= 0:
            raise ValueError("'shares' must be as many as 'values', none negative, not all zero")
        return self

    def draw(self, generator: np.random.Generator, size: int) -> AnyArray:
        return generator.choice(np.array(self.values), size, p=_normalise(self.shares))


class Listed(Distribution, Generic[Q]):
    """Values of the devices, listed by device index; in a scenario a bare list is the short form.

    Attributes:
        values: value of each device.
    """

    kind: Literal["list"] = "list"
    values: list[Q] = Field(min_length=1)

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        if len(self.values) != devices:
            raise ScenarioError(
                f"{key} lists {len(self.values)} values for {devices} devices; allowed is one "
                "a device"
            )
        return np.array(self.values)


class FileColumn(Spec):
    """Base of scenario keys that read one value for each device from a column of a file.

    Attributes:
        file: path of the file. A relative path starts from ``data.root``, else the working
            directory, else ``$FEDSIM_DATA``.
        column: the column's name.
        unit: unit of cells that are bare numbers, such as ``"s"``; a cell may also name its unit.
    """

    kind: Literal["file"] = "file"
    file: str
    column: str
    unit: str | None = None

    def cells(
        self, key: str, devices: int, root: Path | None, quantity: object, **empty: object
    ) -> AnyArray:
        """Read one value for each device from the file, [devices].

        Args:
            key: the key of the scenario that has the column, for error messages.
            devices: number of devices.
            root: folder of data files; None for the working directory.
            quantity: type of the values, such as ``Seconds``.
            empty: ``empty=VALUE`` is the value of empty cells; without it, an empty cell is an
                error.

        Returns:
            The values in order of devices, [devices].
        """
        table = DeviceTable(key, find_file(self.file, root), (self.column,), IDS)
        return np.array(table.by_device(self.column, devices, quantity, self.unit, **empty))


class FromFile(FileColumn, Distribution, Generic[Q]):
    """Values of the devices in a column of a CSV or Parquet file, with one row per device.

    The column ``device`` has the index of each row's device. Without it, a column such as ``id``,
    ``client`` or an index that pandas has written identifies devices: by their indices in any
    order, or by other names in ascending order. Without any such column, row i is of device i.
    """

    def by_device(
        self, key: str, generator: np.random.Generator, devices: int, root: Path | None
    ) -> AnyArray:
        return self.cells(key, devices, root, type(self).__pydantic_generic_metadata__["args"][0])


Jitter = Annotated[float, Field(ge=0.0, le=100.0)]
# factor of a speed; with a smaller one, the times would overflow
Factor = Annotated[float, Field(ge=1e-6, le=1.0)]
Count = Annotated[int, Field(ge=1, le=1_000_000_000)]


def by_device(
    quantity: Any, *forms: type[Distribution], base: str = "", key: str = ""
) -> KindField:
    """Make the annotation of a scenario key that gives each device a value by a distribution.

    The value of the key is a table, whose ``kind`` names the distribution. Short forms are a bare
    value for all devices, a list with one value per device, and a table with the key ``file``.

    Args:
        quantity: type of the values, such as ``Seconds``.
        forms: generic classes of the allowed distributions; ``Listed`` and ``FromFile`` are added.
        base: import path of the class that a user's distribution inherits; empty if users cannot
            add a distribution.
        key: the scenario key, for error messages.
    """
    all_forms: tuple[type[Spec], ...] = (*forms, Listed, FromFile)
    registry = Registry.of(
        "distribution", *all_forms, base=base, usual="constant", key=key, quantity=quantity
    )
    return KindField(registry, bare="value", by_device=True)


_BASE = "fedsim.world.distributions:Distribution"
_KEY = "population.speed"
_SPEED = by_device(SamplesPerSecond, Constant, Uniform, LogNormal, Choice, base=_BASE, key=_KEY)
SPEEDS = _SPEED.registry
SpeedDistribution = Annotated[Distribution, _SPEED]
TimeDistribution = Annotated[Distribution, by_device(Seconds, Constant, Uniform, LogNormal, Choice)]
JitterDistribution = Annotated[
    Distribution, by_device(Jitter, Constant, Uniform, LogNormal, Choice)
]
FactorDistribution = Annotated[Distribution, by_device(Factor, Constant, Uniform, Choice)]
NameDistribution = Annotated[Distribution, by_device(str, Constant, Choice)]
