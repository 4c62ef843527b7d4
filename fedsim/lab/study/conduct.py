"""A study from its plan to its tables: refuse invalid runs, do the missing ones, and compare."""

import os
import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from fedsim.clock.executors import make_executor
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import DataError, FedsimError, ScenarioError, SimulationError, nearest
from fedsim.common.imports import from_file
from fedsim.lab.compare.show import write_tables
from fedsim.lab.study import folder as files
from fedsim.lab.study.folder import RunState
from fedsim.lab.study.loaded import LoadedStudy, load_study
from fedsim.lab.study.plan import PlannedRun, Study, read_study
from fedsim.lab.study.pool import Ended, RunOrder, StudyProgress, WorkerPool
from fedsim.lab.study.spec import TRIAL
from fedsim.lab.study.trials import Trials, gave_up
from fedsim.lab.terminal import Console

if TYPE_CHECKING:
    from fedsim.lab.study.cluster import RayWorkers
    from fedsim.toolbox.ray import Ray

_EXECUTORS = ("processes", "ray")


def run_study(
    study: str | Path | Mapping[str, Any],
    out: str | Path,
    changes: Sequence[str] = (),
    *,
    executor: str = "processes",
    workers: int | None = None,
    address: str | None = None,
    size: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    allow_code: bool = False,
) -> LoadedStudy:
    """Run all strategies of a study in the same worlds, or resume the study in ``out``.

    Args:
        study: a file, the name of a shipped one, or its tables as a dict.
        out: the study's folder, new or begun before.
        changes: ``key.path=value`` texts that override the base.
        executor: ``processes`` of this machine, or ``ray``.
        workers: runs at a time; by default one a core.
        address: of a Ray cluster, ``HOST:PORT`` or ``auto``; by default Ray is started here.
        size: name of a size of the study; by default the first.
        seeds: number of seeds, from 1, instead of the study's own.
        only: texts ``VARIANT`` or ``KEY=VALUE``; other runs are not done.
        allow_code: whether code that it names by import path may be imported.

    Raises:
        ScenarioError, DataError, RunFolderError: no run was done.
        SimulationError: runs failed; the others are there.
    """
    read = read_study(study, changes, size=size, seeds=seeds, allow_code=allow_code)
    conductor = Conductor(read, Path(out), workers, executor, address, only)
    with closing(StudyProgress(Console(quiet=True))) as progress:
        conductor.run(progress)
    if not conductor.complete:
        failed = conductor.failed
        reason = (
            f"{failed[0].order.label}: {failed[0].error}" if failed else "no trial has the metric"
        )
        raise SimulationError(f"{len(failed)} runs of the study {str(out)!r} failed; {reason}")
    return load_study(out, allow_code=allow_code)


class Conductor:
    """Carries a study out; raises ``ScenarioError``, ``DataError`` or ``RunFolderError`` before
    it writes anything.

    Args:
        workers: runs at a time; by default one a core.
        executor: ``processes`` of this machine, or ``ray``, whose nodes all see the study's
            folder; no influence on results.
        address: of the Ray cluster: ``HOST:PORT`` or ``auto``; by default Ray is started here.
        only: ``VARIANT`` or ``KEY=VALUE`` texts, see ``Study.only``; other runs are not done.
        tried: whether to build a run of each variant first, with its data, to refuse invalid ones.
    """

    def __init__(
        self,
        study: Study,
        out: Path,
        workers: int | None = None,
        executor: str = "processes",
        address: str | None = None,
        only: Sequence[str] = (),
        tried: bool = True,
    ) -> None:
        if workers is not None and workers < 1:
            raise ScenarioError(f"--workers is {workers}; allowed is 1 or more")
        if executor not in _EXECUTORS:
            known = f"{', '.join(_EXECUTORS)}{nearest(executor, _EXECUTORS)}"
            raise ScenarioError(f"--executor is {executor!r}; allowed are {known}")
        if address is not None and executor != "ray":
            raise ScenarioError(
                f"--address is {address!r}, but --executor is {executor!r}; only 'ray' has an "
                "address"
            )
        if study.spec.search is not None and only:
            raise ScenarioError(
                f"--only is {only[0]!r}, but the study searches: which trials follow depends "
                "on all its runs"
            )
        files.refuse_unusable(out)
        self.study = study
        self.out = out
        self._only = only
        self._executor = executor
        self._address = address
        self._workers = workers
        self.trials = None if study.spec.search is None else Trials(study, study.spec.search)
        self.ended: list[Ended] = []
        self._look()
        self.notes = [] if self.trials is not None else study.unfelt(self._wanted)
        firsts: dict[str, PlannedRun] = {}
        for run, state in self.wanted_runs if tried else ():
            if state != "done" and TRIAL not in dict(run.variant.point):
                firsts.setdefault(run.variant.label, run)
        for run in firsts.values():
            try_to_build(run)
        self._pool: WorkerPool | RayWorkers | None = None
        self._stopped: int | None = None

    @property
    def wanted_runs(self) -> list[tuple[PlannedRun, RunState]]:
        runs = zip(self.study.runs, self.states, strict=True)
        return [(run, state) for run, state in runs if run.folder in self._wanted]

    @property
    def failed(self) -> list[Ended]:
        return [run for run in self.ended if run.status == "failed"]

    @property
    def interrupted(self) -> bool:
        return any(run.status == "interrupted" for run in self.ended)

    @property
    def complete(self) -> bool:
        """Whether every run is there, or of a search all trials, and a best one of each variant."""
        if self.trials is None:
            return not self.failed
        return self.trials.is_over and all(
            self.trials.best(line) is not None for line in self.trials.lines
        )

    def _look(self) -> None:
        if self.trials is not None:
            with from_file(self.study.allow_code):
                self.trials.grow(self.out, try_to_build)
        self._wanted = self.study.only(self._only)
        self.states: list[RunState] = files.states(self.out, self.study)

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Let the runs under way save themselves, and begin no other.

        Safe in the handler of a signal of that number.
        """
        self._stopped = number
        if self._pool is not None:
            self._pool.interrupt(number)

    def run(self, progress: StudyProgress) -> None:
        """Do the missing runs, then write the tables, of as many runs as there are if some
        failed.
        """
        with ExitStack() as stack:
            cluster = (
                stack.enter_context(closing(self._cluster())) if self._executor == "ray" else None
            )
            lock = stack.enter_context(files.locked(self.out))
            if cluster is None:  # else the cluster is joined first, and left last
                self._pool = WorkerPool(self._workers or os.cpu_count() or 1, progress, lock)
            else:
                from fedsim.lab.study.cluster import RayWorkers

                self._pool = RayWorkers(cluster, progress)
            pool = stack.enter_context(closing(self._pool))
            if self._stopped is not None:
                pool.interrupt(self._stopped)
            self._look()  # the workers of a killed study may have ended meanwhile
            planned = -1
            while planned != len(self.study.runs):
                planned = len(self.study.runs)
                files.write_study(self.out, self.study)
                orders = self._orders()
                progress.begin(orders, len(self.wanted_runs) - len(orders))
                self.ended += pool.run(orders)
                if self.interrupted:
                    return
                self._look()
            files.write_study(self.out, self.study)
            write_tables(self.out)
            if self.trials is not None:
                self.trials.write(self.out)

    def _cluster(self) -> "Ray":
        devices = (run.scenario.training.device for run, _ in self.wanted_runs)
        other = next((device for device in devices if device != "cpu"), "cpu")
        return cast("Ray", make_executor("ray", self._workers, self._address, other))

    def _orders(self) -> list[RunOrder]:
        return [
            RunOrder(run.label, run.scenario.to_toml(), (self.out / run.folder).absolute(), state)
            for run, state in self.wanted_runs
            if state != "done" and not (self.trials and gave_up(self.out / run.folder))
        ]


def try_to_build(run: PlannedRun) -> None:
    """Build a run's world, data and strategy, without learning, and drop it."""
    try:
        Simulation(run.scenario.model_copy(update={"learning": "off"}))
    except FedsimError as error:
        others = "; --only runs others" if isinstance(error, DataError) else ""
        raise type(error)(f"variant {run.variant.label!r}: {error}{others}") from None
