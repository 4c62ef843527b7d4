"""Keeps what there is of a run readable while it goes on: see ``fedsim.records.live``."""

import time
from collections.abc import Callable
from pathlib import Path

from fedsim.records import live
from fedsim.simulation import Record, Simulation

EVERY_S = 20.0  # of real time
_SHARE = 30  # so many times as long as one copy takes pass until the next one


class Live:
    """Copies the books of a run from time to time, between two instants; no influence on the run.

    Args:
        simulation: that of the run.
        out: its folder.
        write: writes what there is to a folder.
        every_s: least real time between two copies, and until the first one (s).
    """

    def __init__(self, simulation: Simulation, out: Path, write: Callable[[Path], None], every_s: float = EVERY_S) -> None:
        self._simulation, self._out, self._write, self._every_s = simulation, out, write, every_s
        self._next, self._asked = time.monotonic() + every_s, False

    def watch(self, _: Record) -> None:
        """See whether it is time."""
        if not self._asked and time.monotonic() >= self._next:
            self._asked = True
            self._simulation.between_instants(self._copy)

    def _copy(self) -> None:
        begun = time.monotonic()
        with live.replacing(self._out) as folder:
            self._write(folder)
        self._next, self._asked = time.monotonic() + max(self._every_s, _SHARE * (time.monotonic() - begun)), False
