"""Keeps what there is of a run readable while it goes on: see ``fedsim.records.live``."""

import time
from typing import TYPE_CHECKING

from fedsim.records import folder as files
from fedsim.records import live
from fedsim.simulation import Record

if TYPE_CHECKING:
    from fedsim.running.runner import Job

EVERY_S = 20.0  # of real time
_SHARE = 30  # so many times as long as one copy takes pass until the next one


class Live:
    """Copies the books of a job from time to time, between two instants; no influence on the run.

    Args:
        job: whose.
        every_s: least real time between two copies, and until the first one (s).
    """

    def __init__(self, job: "Job", every_s: float = EVERY_S) -> None:
        self._job, self._every_s = job, every_s
        self._next, self._asked = time.monotonic() + every_s, False

    def watch(self, _: Record) -> None:
        """See whether it is time."""
        if not self._asked and time.monotonic() >= self._next:
            self._asked = True
            self._job.simulation.between_instants(self._copy)

    def _copy(self) -> None:
        begun, out = time.monotonic(), self._job.out
        if out is not None:
            with live.replacing(out) as folder:
                self._job.recorder.copy_to(folder)
                self._job.write_devices(folder)
                files.write_text(folder / files.SUMMARY, files.summary_text(self._job.summary(live.RUNNING)))
        self._next, self._asked = time.monotonic() + max(self._every_s, _SHARE * (time.monotonic() - begun)), False
