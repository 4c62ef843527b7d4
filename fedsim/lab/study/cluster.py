"""Workers of a Ray cluster that carry out runs, one run per worker, like ``pool`` on one machine.

All nodes see the study's folder at the same path. A run whose worker or node is lost is begun
again elsewhere, from its newest checkpoint. Each worker reads the state of the run from its
folder.
"""

import signal
from collections.abc import Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from pathlib import Path
from typing import Any

from fedsim.lab.reading.record_data import RecordData
from fedsim.lab.study.pool import Ended, News, RunOrder, StudyProgress
from fedsim.lab.study.worker import Worker, failure
from fedsim.toolbox.ray import Ray, node_beside

_LISTEN_EVERY_S = 0.25


class RayWorkers:
    """Workers of a Ray cluster, with the methods of ``fedsim.lab.study.pool.WorkerPool``."""

    def __init__(self, executor: Ray, progress: StudyProgress) -> None:
        import ray

        self._ray = ray
        self._executor = executor
        self._progress = progress
        head = ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy(
            ray.get_runtime_context().get_node_id(), soft=False
        )
        self._board = ray.remote(_Board).options(num_cpus=0, scheduling_strategy=head).remote()
        self._interrupted = False
        self._home: str = ray.get_runtime_context().get_node_id()

    def interrupt(self, number: int = signal.SIGINT) -> None:
        self._interrupted = True

    def run(self, orders: Sequence[RunOrder]) -> list[Ended]:
        ended: dict[int, Ended] = {}
        places: dict[Future[News], int] = {}
        for place, order in enumerate(orders):
            future = self._executor.submit(
                _carry_out, self._board, self._home, place, order.scenario, order.folder
            )
            places[future] = place
        while places:
            done, _ = wait(places, _LISTEN_EVERY_S, FIRST_COMPLETED)
            for place, news in self._ray.get(self._board.collect.remote(self._interrupted)):
                if place not in ended:
                    self._progress.take(place, news)
            for future in done:
                place = places.pop(future)
                try:
                    ended[place] = Ended(orders[place], **future.result())
                except Exception as error:
                    ended[place] = Ended(orders[place], "failed", failure(error))
                self._progress.ended(place, ended[place])
        return [ended[place] for place in range(len(orders))]

    def close(self) -> None:
        """Do nothing, because the executor ends the workers."""


class _Board:
    """Ray actor that collects messages from workers, and tells them whether to stop."""

    def __init__(self) -> None:
        self._news: list[tuple[int, News]] = []
        self._stop = False

    def pin(self, place: int, news: News) -> bool:
        if news:
            self._news.append((place, news))
        return self._stop

    def collect(self, stop: bool) -> list[tuple[int, News]]:
        """Return all messages since the last call; ``stop`` tells the workers to stop."""
        self._stop = stop
        news = self._news
        self._news = []
        return news


def _carry_out(board: Any, home: str, place: int, scenario: str, folder: Path) -> News:
    """Carry out a run on a worker of the cluster, and return its outcome.

    The run is resumed if it has a checkpoint.
    """
    import ray

    ending: RecordData = {}

    def say(**news: Any) -> None:
        if news.get("event") == "ended":
            ending.update(news["run"])
        elif ray.get(board.pin.remote(place, news)):
            worker.stop(signal.SIGINT)

    worker = Worker(say)
    say()
    # wait, since a file server may keep the lock of a lost node for some time
    worker.carry_out({"scenario": scenario, "folder": str(folder), "waits": True})
    node = node_beside(home)
    if node and "error" in ending:
        ending["error"] = f"{ending['error']} (on the node {node})"
    return ending
