"""What real phones can do: FedScale's table of speeds and link rates."""

import csv
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import DataError, shown
from fedsim.files import SOUGHT, regular, sought
from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.streams import Streams
from fedsim.world.device_kinds import DeviceKind

_COLUMNS = ("computation_ms_per_sample", "dl_kbps", "ul_kbps")
_LEAST, _MOST = 1e-6, 1e12  # of each: nothing overflows in its unit
KIND_POWERS = {"idle_w": "idle", "compute_w": "compute", "receive_w": "radio", "send_w": "radio"}
"""What energy is counted by, and the powers of a kind of device that say it."""

_TRAINING_PASSES = 3  # FedScale's time model: training a sample takes three times its inference


@dataclass(frozen=True)
class Capacity:
    """Speeds of all devices (samples/s, float64 [devices]) and, where a file or kinds say them, their links.

    Attributes:
        links: down and up (bytes/s) and perhaps latency (s), float64 [devices] each; None where the network's own hold.
        kinds, which, names: the kinds of devices that there are, each device's place among them, int [devices], and their
        names;
            none where ``speed`` says how fast devices are.
    """

    speed: NDArray[np.float64]
    links: tuple[NDArray[np.float64], ...] | None
    kinds: Sequence[DeviceKind] = ()
    which: NDArray[np.integer] | None = None
    names: Sequence[str] = ()

    def name(self, device: int) -> str | None:
        """The name of a device's kind; None if it has none."""
        return None if self.which is None else self.names[int(self.which[device])]

    def flops(self) -> NDArray[np.float64] | None:
        """FLOP/s that devices reach by their kinds, float64 [devices]; None where they have none."""
        if self.which is None:
            return None
        by_kind: NDArray[np.float64] = np.array([kind.flops * kind.flops_share for kind in self.kinds])
        return by_kind[self.which]  # type: ignore[no-any-return]

    def powers(self) -> dict[str, NDArray[np.float64]]:
        """What devices draw by their kinds (W), by the names that energy is counted by; float64 [devices] each."""
        if self.which is None:
            return {}
        return {name: np.array([getattr(kind, key) for kind in self.kinds])[self.which] for name, key in KIND_POWERS.items()}


class FedScaleCapacity(Spec):
    """Rows of FedScale's client capacity file, drawn without replacement as long as there are enough.

    The file is CSV with the columns ``computation_ms_per_sample``, ``dl_kbps`` and ``ul_kbps``. A sample takes 3 times its
    inference time to train. Compute and bandwidth were joined independently there: their correlation means nothing.
    """

    kind: Literal["fedscale"] = "fedscale"
    file: str = "traces/fedscale_capacity_9242.csv"

    def draw(self, streams: Streams, devices: int, root: Path | None) -> Capacity:
        """One row for each device. ``DataError``: the file is missing, lacks a column, or has a value that is not positive."""
        table = read_capacities(sought(self.file, root))
        generator = streams.generator("world/capacity")
        rows = generator.choice(len(table), devices, replace=devices > len(table))
        milliseconds, down_kbps, up_kbps = table[rows].T
        return Capacity(1000.0 / (_TRAINING_PASSES * milliseconds), (down_kbps * 125.0, up_kbps * 125.0))


CAPACITIES = Registry.of("capacity", FedScaleCapacity, usual="fedscale")


def read_capacities(path: Path) -> NDArray[np.float64]:
    """The three columns of a capacity file: ms a sample, down and up kbit/s; float64 [rows, 3]."""
    try:
        with regular(path).open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file)
            missing = [name for name in _COLUMNS if name not in (reader.fieldnames or ())]
            if missing:
                raise DataError(f"population.capacity: {str(path)!r} lacks the column {missing[0]!r}")
            rows = [[_positive(row[name], path, name, reader.line_num) for name in _COLUMNS] for row in reader]
    except FileNotFoundError:
        raise DataError(
            f"population.capacity: there is no file {str(path)!r}; put FedScale's client capacity table there, "
            f"or name another with 'file' ({SOUGHT})"
        ) from None
    except (OSError, UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"population.capacity: {str(path)!r} cannot be read: {error}") from None
    if not rows:
        raise DataError(f"population.capacity: {str(path)!r} has no rows")
    return np.array(rows, dtype=np.float64)


def _positive(text: str | None, path: Path, column: str, line: int) -> float:
    try:
        value = float(text or "")
    except ValueError:
        value = math.nan
    if not _LEAST <= value <= _MOST:
        raise DataError(
            f"population.capacity: line {line} of {str(path)!r}: {column} is {shown(text)}; "
            f"allowed is a number from {_LEAST:g} to {_MOST:g}"
        )
    return value
