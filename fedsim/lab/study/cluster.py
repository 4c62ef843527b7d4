"""Runs carried out by the workers of a Ray cluster, one run a worker, as ``pool`` does on this machine.

All nodes see the study's folder at the same path. A run whose worker or node is lost, or that was interrupted, goes on from its
newest checkpoint: each worker looks up the state of the run.
"""

import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from fedsim.lab.study.folder import state_of
from fedsim.lab.study.pool import Ended, RunOrder, StudyProgress
from fedsim.lab.study.worker import Worker, failure, outcome_of
from fedsim.records.lock import locked
from fedsim.records.reading import RunFolder
from fedsim.toolbox.ray import Ray

_LISTEN_EVERY_S = 0.25
_LOCK_WAIT_S = 120.0  # a file server may keep the lock of a lost node for so long


class RayWorkers:
    """Carries out orders on Ray; see ``fedsim.lab.study.pool.WorkerPool``. The executor ends the workers."""

    def __init__(self, executor: Ray, progress: StudyProgress) -> None:
        self._executor, self._progress, self._interrupted = executor, progress, False

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self._interrupted = True

    def run(self, orders: Sequence[RunOrder]) -> list[Ended]:
        left = {self._executor.submit(_carry_out, one.scenario, one.folder): place for place, one in enumerate(orders)}
        ended: dict[int, Ended] = {}
        while left:
            done, _ = wait(left, _LISTEN_EVERY_S, FIRST_COMPLETED)
            for future in [*left] if self._interrupted else done:
                place = left.pop(future)
                ended[place] = _ending(orders[place], future)
                self._progress.ended(place, ended[place])
        return [ended[place] for place in range(len(orders))]

    def close(self) -> None:
        pass


def _ending(order: RunOrder, future: Future[dict[str, Any]]) -> Ended:
    if not future.done():
        return Ended(order, "interrupted")
    try:
        return Ended(order, **future.result())
    except Exception as error:
        return Ended(order, "failed", failure(error))


def _carry_out(scenario: str, folder: Path) -> dict[str, Any]:
    """On a worker of the cluster: do one run, from where it was left, and return how it ended."""
    ending: dict[str, Any] = {}
    if folder.exists():
        with locked(folder, _LOCK_WAIT_S):
            pass
    state = state_of(folder, scenario)
    if state == "done":  # by a worker that was lost before it could report that
        return outcome_of(RunFolder(folder).summary)
    worker = Worker(lambda **news: ending.update(news.get("run", {})))
    worker.carry_out({"scenario": scenario, "folder": str(folder), "how": state})
    return ending
