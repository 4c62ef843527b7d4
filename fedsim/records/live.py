"""Live view of a run that goes on: a folder ``live`` in its own, with tables and a summary as a
run leaves them.

It is replaced as a whole from time to time and removed after the run. Readers of a folder without a
summary read it instead. It holds no models and no fingerprints, and is not synced: after a power
cut there may be none.
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
RUNNING = "running"  # the status of such a run
EVERY_S = 20.0  # of real time
_SHARE = 30  # so many times as long as one copy takes pass until the next one


class Live:
    """Copies the books of a run to its folder ``out`` from time to time, between two instants;
    no influence on the run.

    ``every_s`` is the least real time between two copies, and until the first (s).
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
        self._next = time.monotonic() + every_s
        self._asked = False

    def watch(self, _: "Record") -> None:
        if not self._asked and time.monotonic() >= self._next:
            self._asked = True
            self._simulation.between_instants(self._copy)

    def _copy(self) -> None:
        begun = time.monotonic()
        beside, old = (self._out / f"{LIVE}{end}{WRITING}" for end in ("", ".old"))
        for left in (beside, old):
            shutil.rmtree(left, ignore_errors=True)
        beside.mkdir()
        self._write(beside)
        if (self._out / LIVE).exists():
            (self._out / LIVE).rename(old)
        beside.rename(self._out / LIVE)
        shutil.rmtree(old, ignore_errors=True)
        self._next = time.monotonic() + max(self._every_s, _SHARE * (time.monotonic() - begun))
        self._asked = False


def remove(run: Path) -> None:
    """Remove what there was; nothing happens where there was none."""
    for left in (LIVE, LIVE + WRITING, LIVE + ".old" + WRITING):
        shutil.rmtree(run / left, ignore_errors=True)
