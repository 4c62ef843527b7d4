"""Many runs side by side: each in a folder of its own, made whole or not at all, so that a stopped study can go on.

And what the command lines of all studies have in common: where runs are done, and which data are not there.
"""

import argparse
import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import as_completed
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path

import fedsim
from fedsim.data.sources import Synthetic
from fedsim.language.units import show_seconds
from fedsim.running.runner import make_executor
from fedsim.study.folder import state_of
from fedsim.study.pool import Ended, Order, Pool


@dataclass(frozen=True)
class Job:
    """One run: the scenario file, the changes to it, the seed, and the folder to leave it in."""

    scenario: Path
    changes: tuple[str, ...]
    seed: int
    folder: Path

    @property
    def name(self) -> str:
        """For people."""
        return "/".join(self.folder.parts[-4:])

    def absolute(self) -> "Job":
        """The same job, wherever it is done."""
        return replace(self, scenario=self.scenario.absolute(), folder=self.folder.absolute())


def add_worker_options(parser: argparse.ArgumentParser) -> None:
    """``--jobs`` and ``--ray``: where ``run_as_asked`` does the runs."""
    cores = os.cpu_count() or 1
    parser.add_argument("--jobs", type=at_least_one, default=cores, help="runs at a time; by default one a core")
    parser.add_argument("--ray", metavar="HOST:PORT", help="a Ray cluster that does the runs, whose nodes see the same files")


def at_least_one(text: str) -> int:
    """A number on the command line, for argparse."""
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not allowed; it must be a whole number, at least 1")
    return int(text)


def missing_data(scenario: "fedsim.Scenario") -> str | None:
    """Why a scenario's data cannot be loaded, in words that name no folder of this machine; None if they can."""
    data = scenario.data
    if isinstance(data.source, Synthetic):
        return None
    try:
        data.source.load(data.folder())
    except fedsim.DataError as error:
        return str(error).replace(str(data.folder()), "$FEDSIM_DATA")
    return None


def run_as_asked(jobs: Sequence[Job], options: argparse.Namespace) -> int:
    """``run_all`` where ``add_worker_options`` says: the exit status, and on stderr what is wrong if it is not 0."""
    try:
        run_all(jobs, options.jobs, options.ray)
    except fedsim.FedsimError as error:
        print(f"fedsim: {error}", file=sys.stderr)
        return error.exit_status
    return 0


def run_all(jobs: Sequence[Job], workers: int, address: str | None = None) -> None:
    """Run what has not been run, and say on stderr how far it is and how long it may still take.

    Args:
        jobs: the runs.
        workers: how many at a time, on this machine.
        address: of a Ray cluster to do them instead, one a core. Its nodes must see the same files at the same paths.

    Raises:
        SimulationError: some have failed; all others were run.
    """
    waiting = [job.absolute() for job in dict.fromkeys(jobs) if not job.folder.exists()]
    if not waiting:
        return
    print(f"{len(waiting)} runs to do, {len(set(jobs)) - len(waiting)} are there", file=sys.stderr)
    if address is None:
        _run_here(waiting, workers)
    else:
        _run_on_ray(waiting, address)


def _run_here(jobs: Sequence[Job], workers: int) -> None:
    """In processes of this machine; a run that was stopped and had been saved goes on."""
    ended = Pool(workers, _Printed(jobs)).run([_order(job) for job in jobs])
    failed = [run for run in ended if run.status != "done"]
    if failed:
        raise fedsim.SimulationError(
            f"{len(failed)} runs have failed, the first of them {failed[0].order.label}: {failed[0].error}"
        )


def _order(job: Job) -> Order:
    scenario = fedsim.load(job.scenario, job.changes, job.seed).to_toml()
    beside = job.folder.with_name(f"{job.folder.name}.unfinished")
    state = state_of(beside, scenario)
    return Order(job.name, scenario, beside, "again" if state == "done" else state)


class _Printed:
    """Gives whole runs their names, and prints how far it is."""

    def __init__(self, jobs: Sequence[Job]) -> None:
        self._jobs = jobs
        self._began = time.perf_counter()
        self._ended = 0

    def begin(self, orders: Sequence[Order], there: int) -> None:
        """Nothing to do."""

    def progress(self, place: int, share: float) -> None:
        """Nothing to do: runs are short."""

    def note(self, place: int, text: str) -> None:
        """Something about a run."""
        print(f"{self._jobs[place].name}: {text}", file=sys.stderr, flush=True)

    def ended(self, place: int, run: Ended) -> None:
        """A run has ended."""
        if run.status == "done":
            run.order.folder.rename(self._jobs[place].folder)
        self._ended += 1
        how = run.error or f"{_best(run.accuracy)} in {run.wall_s:.0f} s"
        _say_how_far(self._ended, len(self._jobs), f"{run.order.label}: {how}", self._began)


def _run_on_ray(jobs: Sequence[Job], address: str) -> None:
    began = time.perf_counter()
    with closing(make_executor("ray", address=address)) as executor:
        futures = [executor.submit(run_one, job) for job in jobs]
        for done, future in enumerate(as_completed(futures), 1):
            _say_how_far(done, len(jobs), future.result(), began)


def _say_how_far(done: int, of: int, what: str, began: float) -> None:
    left = (time.perf_counter() - began) / done * (of - done)
    print(f"{done}/{of} {what}, about {show_seconds(left)} left", file=sys.stderr, flush=True)


def _best(accuracy: float | None) -> str:
    return "no accuracy" if accuracy is None else f"best {accuracy:.4f}"


def run_one(job: Job) -> str:
    """On a node of the cluster: run one job beside its folder and rename it when it is whole."""
    if job.folder.exists():  # done by a worker that was lost before it could say so
        return f"{job.name}: is there"
    beside = job.folder.with_name(f"{job.folder.name}.writing-{os.getpid()}")
    scenario = fedsim.load(job.scenario, job.changes, job.seed)
    result = fedsim.run(scenario, beside, executor="inline")
    beside.rename(job.folder)
    return f"{job.name}: {_best(result.summary['accuracy']['best'])} in {result.summary['wall_s']:.0f} s"
