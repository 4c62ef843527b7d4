"""Live view of an unfinished run: the folder ``live`` in the run folder, with tables and a summary.

The folder is replaced as a whole from time to time, and removed after the run. Readers of a run
folder without a summary read the live view instead. The live view holds no models and no
fingerprints. It is not synced to the disk, so it may be missing after a power cut.
"""

import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fedsim.common.files import WRITING

if TYPE_CHECKING:
    from fedsim.clock.simulation import Record, Simulation

LIVE = "live"
# temporary names of a new copy, and of the copy that it replaces
_UNFINISHED = (f"{LIVE}{WRITING}", f"{LIVE}.old{WRITING}")
RUNNING = "running"  # status in the summary of a live view
EVERY_S = 20.0  # shortest real time between two copies (s)
_SHARE = 30  # shortest time between two copies, as a multiple of the time that the last copy took


class Live:
    """Writer of a live view: a copy of the tables and summary of a run that still goes on.

    Copies are made between two simulated times, and do not influence the run.

    Args:
        simulation: the clock.
        out: the run folder.
        write: function that writes the tables and the summary to a folder.
        every_s: shortest real time between two copies, and before the first copy (s). If a copy
            takes long, the next one is made later.
    """

    def __init__(
        self,
        simulation: "Simulation",
        out: Path,
        write: Callable[[Path], None],
        every_s: float = EVERY_S,
    ) -> None:
        self._simulation = simulation
        self._out = out
        self._write = write
        self._every_s = every_s
        self._next = time.monotonic() + every_s  # real time from which the next copy is due (s)
        self._is_requested = False  # whether a copy will be made after the present time's events

    def watch(self, _: "Record") -> None:
        """Request a new copy of the tables and the summary, if the last copy is old enough.

        The copy is made after all events of the present time.

        Args:
            _: the record that was just emitted; not used.
        """
        if not self._is_requested and time.monotonic() >= self._next:
            self._is_requested = True
            self._simulation.between_instants(self._copy)

    def _copy(self) -> None:
        """Write a new copy of the tables and the summary, and put it in place of the last copy."""
        begun = time.monotonic()
        copy, former = (self._out / name for name in _UNFINISHED)
        for leftover in (copy, former):  # a killed run may have left these folders
            shutil.rmtree(leftover, ignore_errors=True)
        copy.mkdir()
        self._write(copy)
        current = self._out / LIVE
        if current.exists():
            current.rename(former)
        copy.rename(current)
        shutil.rmtree(former, ignore_errors=True)
        took_s = time.monotonic() - begun
        self._next = time.monotonic() + max(self._every_s, _SHARE * took_s)
        self._is_requested = False


def remove(run: Path) -> None:
    """Remove the live view, the folder with copies of an unfinished run's tables, if it exists.

    Unfinished copies are removed, too.

    Args:
        run: the run folder.
    """
    for name in (LIVE, *_UNFINISHED):
        shutil.rmtree(run / name, ignore_errors=True)
