"""What a large population costs: prints JSON. ``python -m tests.benchmarks.population
[--batteries] [--rounds N]``.

The week of ``scenarios/population.toml`` with 10,000, 100,000 and 1,000,000 devices, each run in a
process of its own: wall and CPU seconds, peak memory, events, their bytes on disk, and the median
CPU time of a round on the first day and on the last. Medians over the repeats. A day of 100 million
(``--devices 100000000 --rounds 48``) is to take less than 180 s and 4 GB.

With ``--batteries`` a day of 100,000 phones as in ``scenarios/batteries.toml``: less than 60 s
and 1 GB.
"""

import asyncio
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import fedsim
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record
from fedsim.common.files import read_toml
from fedsim.records import folder as files
from fedsim.running.runner import Job
from fedsim.running.shipped import shipped
from tests.benchmarks.script import parser
from tests.children import popen

DEVICES = (10_000, 100_000, 1_000_000)
ROUNDS_A_DAY = 48


def run_one(devices: int, rounds: int, batteries: bool, out: Path) -> dict[str, Any]:
    week = read_toml(shipped()["population"])
    week["population"]["devices"] = devices
    week["stop"] = {"rounds": rounds}
    if batteries:
        week["population"]["availability"] = {
            "kind": "diurnal",
            "most": 0.4,
            "least": 0.05,
            "peak": "02:00",
        }
        week["energy"] = read_toml(shipped()["batteries"])["energy"]
    job = Job(fedsim.Scenario(**week), out, Inline())
    began, took = 0.0, []

    def watch(record: Record) -> None:
        nonlocal began
        if record.kind == "round-start":
            began = time.process_time()
        elif record.kind == "round":
            took.append(time.process_time() - began)

    job.simulation.listen(watch)
    summary = asyncio.run(job.execute()).summary
    return {
        "events": summary["events"],
        "bytes an event": (out / files.EVENTS).stat().st_size / summary["events"],
        "CPU s a round, first day": statistics.median(took[:ROUNDS_A_DAY]),
        "CPU s a round, last day": statistics.median(took[-ROUNDS_A_DAY:]),
    }


def measure(devices: int, rounds: int, batteries: bool) -> dict[str, float]:
    """The same in a process of its own, with what that took."""
    with tempfile.TemporaryDirectory() as name:
        words = [
            sys.executable,
            "-m",
            __spec__.name,
            "--one",
            str(devices),
            "--rounds",
            str(rounds),
            "--out",
            f"{name}/run",
        ]
        words += ["--batteries"] * batteries
        began = time.perf_counter()
        child = popen(words, stdout=subprocess.PIPE)
        assert child.stdout is not None
        told = json.loads(child.stdout.read())
        _, status, used = os.wait4(child.pid, 0)
        child.returncode = os.waitstatus_to_exitcode(status)
        assert child.returncode == 0
    took = {
        "wall s": time.perf_counter() - began,
        "CPU s": used.ru_utime + used.ru_stime,
        "peak RSS MB": used.ru_maxrss / 1024,
    }
    return took | told


def main() -> None:
    # --one with --out: a child of this script
    arguments = parser(__doc__, batteries=False, rounds=0, repeats=1, one=0)
    arguments.add_argument("--devices", type=int, nargs="+")
    arguments.add_argument("--out", type=Path)
    options = arguments.parse_args()
    rounds = options.rounds or (1 if options.batteries else 7) * ROUNDS_A_DAY
    if options.one:
        print(json.dumps(run_one(options.one, rounds, options.batteries, options.out)))
        return
    report = {}
    for devices in options.devices or ((100_000,) if options.batteries else DEVICES):
        runs = [measure(devices, rounds, options.batteries) for _ in range(options.repeats)]
        report[f"{devices} devices"] = {
            name: round(statistics.median(run[name] for run in runs), 4) for name in runs[0]
        }
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
