"""Running a study: validate its runs, carry out the missing runs, and write the tables."""

import signal
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

from fedsim.clock.executors import make_executor
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import DataError, FedsimError, ScenarioError, SimulationError, nearest
from fedsim.common.imports import code_from_file
from fedsim.common.machine import usable_cores, usable_gpus
from fedsim.common.round_words import counted
from fedsim.lab.compare.show import write_tables
from fedsim.lab.study import folder as files
from fedsim.lab.study.costs import StudyForecast, forecast_study
from fedsim.lab.study.folder import RunState
from fedsim.lab.study.inputs import StudyInputs
from fedsim.lab.study.loaded import LoadedStudy, load_study
from fedsim.lab.study.plan import PlannedRun, Study, read_study
from fedsim.lab.study.pool import Ended, RunOrder, StudyProgress, WorkerPool
from fedsim.lab.study.seeding import Seeding
from fedsim.lab.study.shards import StudyShard, folders_of
from fedsim.lab.study.shared_search import SharedTrials, make_trials
from fedsim.lab.study.spec import TRIAL
from fedsim.lab.study.trials import has_failed
from fedsim.lab.terminal import Console

if TYPE_CHECKING:
    from fedsim.lab.study.cluster import RayWorkers
    from fedsim.toolbox.ray.executor import Ray

_EXECUTORS = ("processes", "ray")


def run_study(
    study: str | Path | Mapping[str, object],
    out: str | Path,
    changes: Sequence[str] = (),
    *,
    executor: str = "processes",
    workers: int | None = None,
    address: str | None = None,
    resources: str | Mapping[str, object] | None = None,
    size: str | None = None,
    seeds: int | None = None,
    only: Sequence[str] = (),
    shard: str | None = None,
    until_sure: Mapping[str, object] | None = None,
    allow_code: bool = False,
) -> LoadedStudy:
    """Run all variants of a study with the same seeds, or resume the study in ``out``.

    Runs with the same seed have the same world: devices, network and data.

    Args:
        study: a file, the name of a shipped study, or its tables as a dict.
        out: folder of the study, new or of an earlier call.
        changes: ``key.path=value`` texts that override the study's base scenario.
        executor: ``processes`` of this machine, or ``ray``.
        workers: count of parallel runs; by default one per core that this process may use.
        address: Ray cluster, ``HOST:PORT`` or ``auto``; by default Ray is started locally.
        resources: resources that each run on Ray reserves on its node, such as ``{"num_cpus": 1,
            "num_gpus": 0.25, "memory": "2 GB"}``; by default one core.
        size: name of a size of the study; by default the first.
        seeds: count of seeds, starting at seed 1; by default the seeds of the study.
        only: texts ``VARIANT`` or ``KEY=VALUE`` that select runs; other runs are not done.
        shard: share of the runs to do, as text ``NUMBER/COUNT``: ``3/16`` is the third of 16 shares
            of about equal work. Several processes, one for each share, may work in one folder.
        until_sure: keys of the table ``[until_sure]``, such as ``{"within": "5 %"}``, by which
            seeds are added to the variants that may still be the best. Empty for the table's
            defaults; by default the study's own table, if any.
        allow_code: whether to import code that the study names by import path.

    Returns:
        The study, with all its runs.

    Raises:
        ScenarioError, DataError, RunFolderError: the study is invalid; no run was done.
        SimulationError: some runs failed; all other runs are done.
    """
    planned_study = read_study(
        study, changes, size=size, seeds=seeds, until_sure=until_sure, allow_code=allow_code
    )
    study_shard = None
    if shard is not None:
        study_shard = StudyShard.read(shard)
    study_workers = StudyWorkers(executor, workers, address, resources)
    conductor = Conductor(planned_study, Path(out), study_workers, only=only, shard=study_shard)
    with closing(StudyProgress(Console(quiet=True))) as progress:
        conductor.run(progress)
    if not conductor.complete:
        failed = conductor.failed
        # the reason if no run failed, but a variant of a search has no best trial
        reason = "no trial has the metric"
        if failed:
            reason = f"{failed[0].order.label}: {failed[0].error}"
        raise SimulationError(
            f"{counted(len(failed), 'run')} of the study {str(out)!r} failed; {reason}"
        )
    return load_study(out, allow_code=allow_code)


@dataclass(frozen=True)
class StudyWorkers:
    """Options of the user on where the runs of a study are carried out, and how many at a time.

    The options do not influence results.

    Attributes:
        executor: ``processes`` for processes of this machine, or ``ray`` for a Ray cluster, whose
            nodes need not see the study's folder.
        number: count of parallel runs; None for one per core that this process may use.
        address: Ray cluster, ``HOST:PORT`` or ``auto``; None to start Ray locally.
        resources: resources that each run on Ray reserves on its node, such as ``{"num_cpus": 1,
            "num_gpus": 0.25}``; None for one core.

    Raises:
        ScenarioError: a value is not allowed, or values exclude each other.
    """

    executor: str = "processes"
    number: int | None = None
    address: str | None = None
    resources: str | Mapping[str, object] | None = None

    def __post_init__(self) -> None:
        executor = self.executor
        if self.number is not None and self.number < 1:
            raise ScenarioError(f"--workers is {self.number}; allowed is 1 or more")
        if executor not in _EXECUTORS:
            allowed = f"{', '.join(_EXECUTORS)}{nearest(executor, _EXECUTORS)}"
            raise ScenarioError(f"--executor is {executor!r}; allowed are {allowed}")
        if self.address is not None and not self.are_on_ray:
            raise ScenarioError(
                f"--address is {self.address!r}, but --executor is {executor!r}; only 'ray' has an "
                "address"
            )
        if self.resources is not None and not self.are_on_ray:
            raise ScenarioError(
                f"--resources is {self.resources!r}, but --executor is {executor!r}; only 'ray' "
                "places runs by their resources"
            )

    @property
    def are_on_ray(self) -> bool:
        return self.executor == "ray"

    @property
    def local_number(self) -> int:
        """Count of runs that are carried out at a time in processes of this machine."""
        return usable_cores() if self.number is None else self.number

    def join_cluster(self, device: str) -> "Ray":
        """Join the Ray cluster at ``address``, or start Ray on this machine without one.

        Args:
            device: torch device on which runs compute, such as ``cpu``.
        """
        executor = make_executor("ray", self.number, self.address, device, self.resources)
        return cast("Ray", executor)


class Conductor:
    """Carries out the missing runs of a study and writes the study's tables.

    The constructor plans the runs, and builds a run of each variant to reject invalid ones.

    Args:
        study: the planned study.
        out: folder of the study.
        workers: options on where the runs are carried out, and how many at a time; by default one
            process of this machine for each core.
        only: ``VARIANT`` or ``KEY=VALUE`` texts that select runs; other runs are not done.
        shard: share of the selected runs to carry out; by default all.
        try_variants: whether to build a run of each variant first, with its data, to reject invalid
            variants.

    Attributes:
        study, out, workers, shard: the arguments of the same names.
        trials: plans the trials of the study's search (runs with other values of some keys); None
            if the study has no search.
        seeding: adds seeds to the variants that may still be the best; None if all variants have
            the same seeds.
        ended: outcomes of all runs that were carried out.
        states: states of all planned runs, in their order: ``new``, ``done``, to ``resume`` from a
            checkpoint, or to be run ``anew``.
        notes: notes for the user.

    Raises:
        ScenarioError, DataError, RunFolderError: the study is invalid; nothing was written.
    """

    def __init__(
        self,
        study: Study,
        out: Path,
        workers: StudyWorkers | None = None,
        *,
        only: Sequence[str] = (),
        shard: StudyShard | None = None,
        try_variants: bool = True,
    ) -> None:
        _refuse_partial(study, only, shard)
        files.refuse_unusable(out)
        self.study = study
        self.out = out
        self.workers = workers or StudyWorkers()
        self.shard = shard
        self.trials = make_trials(study, out, shard, self.workers.local_number)
        self.seeding: Seeding | None = None
        if study.spec.until_sure is not None:
            self.seeding = Seeding(study, study.spec.until_sure)
        self.ended: list[Ended] = []
        self.states: list[RunState] = []
        self.notes: list[str] = []
        self._only = only
        # folders of the runs that ``only`` and the shard select
        self._selected_folders: frozenset[Path] = frozenset()
        self._inputs: StudyInputs | None = None  # data and files to send to nodes of Ray
        if self.workers.are_on_ray:
            self._inputs = StudyInputs()
        self._pool: WorkerPool | RayWorkers | None = None  # None until ``run`` has started it
        # signal that ``interrupt`` got, for a pool that starts later
        self._stop_signal: int | None = None
        self._plan_runs()
        if try_variants:
            self._try_variants()

    def _plan_runs(self) -> None:
        """Plan the runs that do not depend on results, and read which of these are done.

        If the study searches or adds seeds, the runs that follow from existing results are planned,
        too.
        """
        if self.trials is not None:
            with code_from_file(self.study.allow_code):
                self.trials.begin(self.out, self._try_to_build)
        if self.seeding is not None:
            self.seeding.grow(self.out)
        self._read_states()
        if self.trials is None:
            self.notes = self.study.notes_on_ineffective_changes(self._selected_folders)

    def _try_variants(self) -> None:
        """Build the first missing run of each variant, without running it.

        Raises:
            FedsimError: a variant is invalid, or its data cannot be read.
        """
        first_runs: dict[str, PlannedRun] = {}
        # a variant whose runs are done may get more seeds, whose runs need the variant's inputs
        needs_all_inputs = self._inputs is not None and self.seeding is not None
        for run, state in self.selected_runs:
            is_missing = state != "done" or needs_all_inputs
            if is_missing and TRIAL not in dict(run.variant.point):
                first_runs.setdefault(run.variant.label, run)
        for run in first_runs.values():
            self._try_to_build(run)

    def _try_to_build(self, run: PlannedRun) -> None:
        """Build a run without running it; raises ``FedsimError`` if the run is invalid.

        If Ray carries out the runs, the files and data that the run reads are recorded, to send
        them to the nodes.
        """
        if self._inputs is None:
            try_to_build(run)
        else:
            self._inputs.record(run.scenario, partial(try_to_build, run))

    @property
    def selected_runs(self) -> list[tuple[PlannedRun, RunState]]:
        """Planned runs that this process may carry out, each with its state (done, new and so on).

        These are the runs that ``only`` and the shard select.
        """
        runs = zip(self.study.runs, self.states, strict=True)
        return [(run, state) for run, state in runs if run.folder in self._selected_folders]

    @property
    def _holds_lock(self) -> bool:
        """Whether this process locks the study's folder for as long as it carries out runs.

        It does if results decide which trials or seeds follow, as only one process may decide that.
        """
        if self.seeding is not None:
            return True
        if self.trials is None or isinstance(self.trials, SharedTrials):
            return False
        return not self.trials.search.is_planned_ahead

    @property
    def failed(self) -> list[Ended]:
        return [run for run in self.ended if run.status == "failed"]

    @property
    def interrupted(self) -> bool:
        return any(run.status == "interrupted" for run in self.ended)

    @property
    def complete(self) -> bool:
        """Whether the study has succeeded: no run failed.

        A study with a search has succeeded if the search is over and each variant has a best trial,
        even if runs failed. A shard of such a study has succeeded if none of its runs failed.
        """
        if self.trials is None or self.shard is not None:
            return not self.failed
        if not self.trials.is_over:
            return False
        return all(self.trials.best(line) is not None for line in self.trials.lines)

    def _update(self) -> None:
        """Plan the trials or seeds that follow from finished runs, and read which runs are done."""
        if self.trials is not None:
            with code_from_file(self.study.allow_code):
                self.trials.grow(self.out, self._try_to_build)
        if self.seeding is not None:
            self.seeding.grow(self.out)
        self._read_states()

    def _read_states(self) -> None:
        self._selected_folders = self._select()
        self.states = files.states(self.out, self.study)

    def _select(self) -> frozenset[Path]:
        """Return the folders of the runs that ``only`` and the shard select for this process."""
        selected_folders = self.study.only(self._only)
        if self.shard is None or isinstance(self.trials, SharedTrials):
            return selected_folders
        runs = [run for run in self.study.runs if run.folder in selected_folders]
        return folders_of(self.shard, runs)

    def forecast(self) -> StudyForecast:
        """Predict real time, memory and disk space of the study, or of each shard, on this machine.

        To predict, the beginnings of some runs are carried out. The values of a search's later
        trials depend on results, so the cost of these trials is predicted with the values that the
        search would propose without results.

        Raises:
            ScenarioError: a scenario is invalid.
            DataError: the data of a scenario cannot be read.
        """
        selected_folders = self.study.only(self._only)
        runs = [run for run in self.study.runs if run.folder in selected_folders]
        if self.trials is not None:
            runs += self.trials.foreseen_runs()
        states = zip(self.study.runs, self.states, strict=True)
        finished = {run.folder for run, state in states if state == "done"}
        shard_count = 1 if self.shard is None else self.shard.count
        return forecast_study(
            runs, lambda run: run.folder in finished, shard_count, self.workers.local_number
        )

    def interrupt(self, number: int = signal.SIGINT) -> None:
        """Interrupt the active runs, which are saved, and begin no other run.

        Safe in a signal handler.

        Args:
            number: the signal to send to workers.
        """
        self._stop_signal = number
        if self._pool is not None:
            self._pool.interrupt(number)

    def run(self, progress: StudyProgress) -> None:
        """Carry out the missing runs, then write the tables of all finished runs.

        Trials or seeds that follow from results are planned and carried out, too. After an
        interrupt, no tables are written.

        Args:
            progress: display of the runs' progress.
        """
        with ExitStack() as stack:
            pool = self._pool = self._start_pool(stack, progress)
            if self._stop_signal is not None:  # interrupted before there was a pool
                pool.interrupt(self._stop_signal)
            if self.trials is not None:
                stack.callback(self.trials.close)  # releases the locks of trials
            if isinstance(self.trials, SharedTrials):
                with files.locked(self.out, files.TURN_S):
                    # The folder is marked before the journal is written, because the journal alone
                    # would not show that the folder is a study's.
                    files.mark(self.out, self.study)
            self._update()  # workers of a killed study may have ended runs since the last update
            # each pass carries out all planned runs, and plans the runs that follow from results
            while True:
                planned_batches = self._planned_batches
                self._write(tables=False)
                progress.keep_in(self.out)  # called here, because the folder exists only now
                self._carry_out(pool, progress)
                if self.interrupted:
                    return
                self._update()
                if self.seeding is not None:
                    for text in self.seeding.lines_of_text():
                        progress.tell(text)
                # the number has not grown: no trials or seeds were added
                if self._planned_batches == planned_batches:
                    break
            self._write(tables=True)

    @property
    def _planned_batches(self) -> int:
        """Number that grows each time trials or seeds are planned.

        ``run`` goes on carrying out runs until this number no longer grows.
        """
        return len(self.study.runs) if self.trials is None else self.trials.batches

    def _carry_out(self, pool: "WorkerPool | RayWorkers", progress: StudyProgress) -> None:
        """Carry out the missing runs with the workers, and store their outcomes in ``ended``.

        If another process carries out a run, this process waits for that run, after all other runs.
        """
        orders = self._orders()
        progress.begin(orders, len(self.selected_runs) - len(orders))
        orders_elsewhere = []
        for ended in pool.run(orders):
            if ended.status == "elsewhere":
                orders_elsewhere.append(replace(ended.order, waits=True))
            else:
                self.ended.append(ended)
        if orders_elsewhere and not self.interrupted:
            progress.begin(orders_elsewhere, len(self.selected_runs) - len(orders_elsewhere))
            self.ended += pool.run(orders_elsewhere)

    def _write(self, *, tables: bool) -> None:
        """Write the study's ``study.toml`` and ``index.json`` into its folder, under a lock.

        Args:
            tables: whether to write the tables of all finished runs, and of the search's trials,
                too.
        """
        with ExitStack() as stack:
            if not self._holds_lock:  # other processes may write into the folder, too
                stack.enter_context(files.locked(self.out, files.TURN_S))
            if self.trials is not None:  # the index also lists the trials of other processes
                self.trials.read(self.out)
                self._read_states()
            files.write_study(self.out, self.study)
            if tables:
                write_tables(self.out)
            if tables and self.trials is not None:
                self.trials.write(self.out)

    def _start_pool(self, stack: ExitStack, progress: StudyProgress) -> "WorkerPool | RayWorkers":
        """Start the workers, and lock the study's folder if only one process may carry it out.

        The folder is locked if results decide which trials or seeds follow. A Ray cluster is joined
        before the lock is taken, and left after the lock is released.

        Args:
            stack: the exit of this stack ends the workers and releases the lock.
            progress: display of the runs' progress.
        """
        if self.workers.are_on_ray:
            return self._start_on_ray(stack, progress)
        # the workers inherit the lock, which lasts until the last worker has ended
        lock_descriptors: Sequence[int] = ()
        if self._holds_lock:
            lock_descriptors = stack.enter_context(files.locked(self.out))
        # a run that names a GPU by its number needs to see all GPUs
        devices = set(self._torch_devices())
        gpus = usable_gpus() if "cuda" in devices and devices <= {"cpu", "cuda"} else []
        pool = WorkerPool(self.workers.local_number, progress, lock_descriptors, gpus=gpus)
        return stack.enter_context(closing(pool))

    def _start_on_ray(self, stack: ExitStack, progress: StudyProgress) -> "RayWorkers":
        """Start workers on a Ray cluster, as ``_start_pool`` does with the same arguments."""
        from fedsim.lab.study.cluster import RayWorkers

        accelerators = [device for device in self._torch_devices() if device != "cpu"]
        device = accelerators[0] if accelerators else "cpu"
        cluster = stack.enter_context(closing(self.workers.join_cluster(device)))
        if self._holds_lock:
            stack.enter_context(files.locked(self.out))
        assert self._inputs is not None
        return stack.enter_context(closing(RayWorkers(cluster, progress, self._inputs)))

    def _torch_devices(self) -> list[str]:
        """Return the torch device on which each selected run computes, such as ``cpu``."""
        return [run.scenario.training.device for run, _ in self.selected_runs]

    def _orders(self) -> list[RunOrder]:
        """Return orders to carry out the selected runs that are missing.

        Runs that are done, and runs that another process of a search carries out, are left out. So
        are failed runs of a search.
        """
        orders = []
        folders_of_others = set() if self.trials is None else self.trials.runs_of_others()
        for run, state in self.selected_runs:
            folder = self.out / run.folder
            if state == "done" or run.folder in folders_of_others:
                continue
            if self.trials is not None and has_failed(folder):
                continue
            orders.append(RunOrder(run.label, run.scenario.to_toml(), folder.absolute()))
        return orders


def _refuse_partial(study: Study, only: Sequence[str], shard: StudyShard | None) -> None:
    """Raise ``ScenarioError`` if options leave out runs of a study that needs all its runs.

    A study with a search, or with rules to add seeds, needs all, as their results decide which runs
    follow. A search may be divided into shards.

    Args:
        study: the planned study.
        only: texts of ``--only``, which select runs.
        shard: share of the runs that this process carries out; None for all.
    """
    if study.spec.search is not None and only:
        raise ScenarioError(
            f"--only is {only[0]!r}, but the study searches: which trials follow depends on all its "
            "runs"
        )
    if study.spec.until_sure is None:
        return
    reason = "--until-sure adds seeds: which ones follow depends on all its runs"
    if only:
        raise ScenarioError(f"--only is {only[0]!r}, but {reason}")
    if shard is not None:
        raise ScenarioError(f"--shard is '{shard}', but {reason}")


def try_to_build(run: PlannedRun) -> None:
    """Check that a run is valid by building its world, data and strategy, without learning.

    Raises:
        FedsimError: the run cannot be built; the message names the variant.
    """
    try:
        Simulation(run.scenario.model_copy(update={"learning": "off"}))
    except FedsimError as error:
        hint = "; --only runs others" if isinstance(error, DataError) else ""
        raise type(error)(f"variant {run.variant.label!r}: {error}{hint}") from None
