"""Kinds of ``population.capacity``: rows of FedScale's table of phones, or hospitals of FeTS."""

from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from pydantic import Field, TypeAdapter, ValidationError

from fedsim.common.arrays import Floats
from fedsim.common.errors import DataError, show_value
from fedsim.common.files import find_file, read_toml
from fedsim.common.notes import note
from fedsim.common.streams import Streams
from fedsim.common.wording import in_words
from fedsim.toolbox.worlds.published import fedscale_capacities, is_pickle
from fedsim.world.device_kinds import Capacity, CapacityModel
from fedsim.world.device_table import DeviceTable

_COLUMNS = ("computation_ms_per_sample", "dl_kbps", "ul_kbps")
_IGNORED_COLUMNS = ("client", "communication_kbps")  # columns that are accepted and ignored
_TableNumber = Annotated[float, Field(ge=1e-6, le=1e12)]  # bounds that prevent an overflow
_KBIT_S = 125.0  # a kbit/s, in bytes/s
_TRAINING_PASSES = 3  # FedScale's time model: training a sample takes three times its inference


class FedScaleCapacity(CapacityModel):
    """Each device has the speed and the link rates of a random phone of FedScale's file.

    The phones, rows of the file, are drawn without replacement, unless there are fewer phones than
    devices. A training sample takes three times as long as the file's time of inference, as in
    FedScale.

    Attributes:
        file: the published ``client_device_capacity``, a pickle from which only plain values are
            read, and whose single rate is used for download and upload, as in FedScale; or a CSV
            with the columns ``computation_ms_per_sample``, ``dl_kbps`` and ``ul_kbps``.
    """

    kind: Literal["fedscale"] = "fedscale"
    file: str = "traces/fedscale_capacity_9242.csv"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        """Draw a phone of the file for each device.

        Args:
            streams: random streams of the run.
            devices: count of devices.
            root: ``data.root``, or None.

        Returns:
            The devices' speeds (training samples per second) and link rates (bytes/s).

        Raises:
            DataError: the file is missing, lacks a column, or has a value that is not positive.
        """
        table = read_capacities(find_file(self.file, root))
        generator = streams.generator("world/capacity")
        rows = generator.choice(len(table), devices, replace=devices > len(table))
        milliseconds, down_kbps, up_kbps = table[rows].T
        speed = 1000.0 / (_TRAINING_PASSES * milliseconds)
        return Capacity(speed, (down_kbps * _KBIT_S, up_kbps * _KBIT_S))


def read_capacities(path: Path) -> Floats:
    """Read a file of phones' speeds and link rates: FedScale's pickle, or CSV.

    Returns:
        For each phone the time of inference (ms per sample), download and upload (kbit/s); float64
        [phones, 3].

    Raises:
        DataError: the file is missing or malformed.
    """
    if path.is_file() and is_pickle(path):
        return _read_published(path)
    table = DeviceTable("population.capacity", path, _COLUMNS, others=_IGNORED_COLUMNS)
    table.note(f"a device for each row, drawn; {', '.join(_IGNORED_COLUMNS)} are not used")
    return np.array([table.values(name, _TableNumber) for name in _COLUMNS]).T


def _read_published(path: Path) -> Floats:
    """Read FedScale's pickle of phones' speeds and link rates, and print a note on it.

    Returns:
        For each phone the time of inference (ms per sample), and its one rate (kbit/s) twice, for
        download and upload; float64 [phones, 3].
    """
    where = f"population.capacity: {str(path)!r}"
    try:
        rows = fedscale_capacities(path)
        numbers = TypeAdapter(list[tuple[_TableNumber, _TableNumber]]).validate_python(rows)
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]
        raise DataError(
            f"{where}: entry {problem['loc'][0]} is {show_value(problem['input'])}: "
            f"{in_words(problem)}"
        ) from None
    except (OSError, ValueError) as error:
        raise DataError(f"{where} cannot be read as FedScale's pickle: {error}") from None
    table = np.array(numbers)
    note(
        f"{str(path)!r}: FedScale's capacities of {len(table)} clients, computation (ms a "
        "sample) and communication (kbit/s)"
    )
    return table[:, [0, 1, 1]]  # one rate for download and upload


class HospitalsCapacity(CapacityModel):
    """Each device is a hospital of the FeTS federation, and a sample is a patient.

    Each device draws an institution for its computing times, and independently another for its
    transfer times, with replacement, as in the FeTS challenge. The time of an epoch is lognormal
    with the institution's mean and standard deviation; the challenge draws it from a normal
    distribution, at least 1 s. If ``population.jitter`` is given and not 0, its value replaces the
    institution's coefficient of variation. Transfer times are latencies: a transfer of any size
    takes the mean of the institution's download and upload times.

    Source: github.com/FeTS-AI/Challenge, Task_1/fets_challenge/time_utils.py (BSD-style, 2022),
    with computing times of 21 and transfer times of 16 institutions.
    """

    kind: Literal["hospitals-fets"] = "hospitals-fets"

    def _draw_times(self, streams: Streams, devices: int) -> Floats:
        """Draw a hospital for each device, and return its published times per patient (s).

        Returns:
            For each device mean and standard deviation of training, then mean and standard
            deviation of validation; float64 [devices, 4]. Equal calls return equal draws.
        """
        compute: Floats = _table("compute")
        return compute[streams.generator("world/capacity").integers(len(compute), size=devices)]

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        network = _table("network")
        generator = streams.generator("world/capacity/network")
        transfers = network[generator.integers(len(network), size=devices)]
        latency = transfers[:, [0, 2]].mean(axis=1)  # means of download and upload
        unlimited = np.full(devices, np.inf)
        speed = 1.0 / self._draw_times(streams, devices)[:, 0]
        return Capacity(speed, (unlimited, unlimited, latency))

    def jitters(self, streams: Streams, devices: int) -> Floats:
        times = self._draw_times(streams, devices)
        return np.asarray(times[:, 1] / times[:, 0])


@cache
def _table(name: str) -> Floats:
    return np.array(read_toml(Path(__file__).with_name("hospitals.toml"))[name])
