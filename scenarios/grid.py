"""Many runs side by side: each in a folder of its own, made whole or not at all, so that a stopped study can go on."""

import os
import sys
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path

import fedsim
from fedsim.units import show_seconds


@dataclass(frozen=True)
class Job:
    """One run: the scenario file, the changes to it, the seed, and the folder to leave it in."""

    scenario: Path
    changes: tuple[str, ...]
    seed: int
    folder: Path


def run_all(jobs: Sequence[Job], workers: int) -> None:
    """Run what has not been run, ``workers`` at a time, and say on stderr how far it is and how long it may still take."""
    waiting = [job for job in dict.fromkeys(jobs) if not job.folder.exists()]
    if not waiting:
        return
    print(f"{len(waiting)} runs to do, {len(set(jobs)) - len(waiting)} are there", file=sys.stderr)
    began = time.perf_counter()
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(run_one, job) for job in waiting]
        for done, future in enumerate(as_completed(futures), 1):
            name = future.result()
            left = (time.perf_counter() - began) / done * (len(waiting) - done)
            print(f"{done}/{len(waiting)} {name}, about {show_seconds(left)} left", file=sys.stderr, flush=True)


def run_one(job: Job) -> str:
    """Run one job beside its folder and rename it when it is whole."""
    beside = job.folder.with_name(f"{job.folder.name}.writing-{os.getpid()}")
    scenario = fedsim.load(job.scenario, job.changes, job.seed)
    result = fedsim.run(scenario, beside, executor="inline")
    beside.rename(job.folder)
    accuracy = result.summary["accuracy"]["best"]
    shown = "no accuracy" if accuracy is None else f"best {accuracy:.4f}"
    return f"{'/'.join(job.folder.parts[-4:])}: {shown} in {result.summary['wall_s']:.0f} s"
