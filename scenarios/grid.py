"""Many runs side by side: each in a folder of its own, made whole or not at all, so that a stopped study can go on."""

import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from multiprocessing import get_context
from pathlib import Path

import fedsim
from fedsim.runner import make_executor
from fedsim.units import show_seconds


@dataclass(frozen=True)
class Job:
    """One run: the scenario file, the changes to it, the seed, and the folder to leave it in."""

    scenario: Path
    changes: tuple[str, ...]
    seed: int
    folder: Path

    def absolute(self) -> "Job":
        """The same job, wherever it is done."""
        return replace(self, scenario=self.scenario.absolute(), folder=self.folder.absolute())


def run_all(jobs: Sequence[Job], workers: int, address: str | None = None) -> None:
    """Run what has not been run, and say on stderr how far it is and how long it may still take.

    Args:
        jobs: the runs.
        workers: how many at a time, on this machine.
        address: of a Ray cluster to do them instead, one a core. Its nodes must see the same files at the same paths.
    """
    waiting = [job.absolute() for job in dict.fromkeys(jobs) if not job.folder.exists()]
    if not waiting:
        return
    print(f"{len(waiting)} runs to do, {len(set(jobs)) - len(waiting)} are there", file=sys.stderr)
    began = time.perf_counter()
    with _pool(workers, address) as submit:
        futures = [submit(run_one, job) for job in waiting]
        for done, future in enumerate(as_completed(futures), 1):
            name = future.result()
            left = (time.perf_counter() - began) / done * (len(waiting) - done)
            print(f"{done}/{len(waiting)} {name}, about {show_seconds(left)} left", file=sys.stderr, flush=True)


@contextmanager
def _pool(workers: int, address: str | None) -> Iterator[Callable[..., "Future[str]"]]:
    """What takes a call and gives its future: processes of this machine, or of a Ray cluster."""
    if address is None:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            yield pool.submit
    else:
        with closing(make_executor("ray", address=address)) as executor:
            yield executor.submit


def run_one(job: Job) -> str:
    """Run one job beside its folder and rename it when it is whole."""
    name = "/".join(job.folder.parts[-4:])
    if job.folder.exists():  # done by a worker that was lost before it could say so
        return f"{name}: is there"
    beside = job.folder.with_name(f"{job.folder.name}.writing-{os.getpid()}")
    scenario = fedsim.load(job.scenario, job.changes, job.seed)
    result = fedsim.run(scenario, beside, executor="inline")
    beside.rename(job.folder)
    accuracy = result.summary["accuracy"]["best"]
    shown = "no accuracy" if accuracy is None else f"best {accuracy:.4f}"
    return f"{name}: {shown} in {result.summary['wall_s']:.0f} s"
