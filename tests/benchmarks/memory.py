"""Peak memory of one round by the size of its cohort, for a model of 45 MB: it must stay flat.

    python -m tests.benchmarks.memory                      # cohorts of 10, 40, 160, 640, 1 and 2 workers
    python -m tests.benchmarks.memory --workers 1 10 40    # these cohorts
    python -m tests.benchmarks.memory --strategy scaffold  # another strategy

Each run is a process of its own: a round of the strategy with a perceptron of 11.3 million weights,
three samples and one step for each client, and a test. A line has the peak of the resident memory,
the peak of its anonymous part (without pages of files, read every 5 ms), the growth of both over
the first cohort in models for each worker, bytes that were written to the scratch file, and the
round's time. Exit status 1 if either grows by more than two models a worker.
"""

import json
import subprocess
import sys
from typing import Any

from tests.benchmarks.script import parser

Sections = dict[str, Any]
HIDDEN = 3000
MOST = 2.0
COHORTS = [10, 40, 160, 640]
_RUN = """
import asyncio, json, resource, sys, threading, time
from pathlib import Path
import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.running.runner import Job
sections, workers = json.loads(sys.argv[1]), int(sys.argv[2])
job = Job(fedsim.Scenario(**sections), None, Inline() if workers == 1 else Threads(workers))
run = job.simulation.installed
anonymous = 0
def watch():
    global anonymous
    while True:
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("RssAnon:"):
                anonymous = max(anonymous, 1024 * int(line.split()[1]))
        time.sleep(0.005)
threading.Thread(target=watch, daemon=True).start()
began = time.perf_counter()
asyncio.run(job.execute())
computing = getattr(run.learner, "_computing", None)
print(json.dumps({
    "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
    "anonymous": anonymous,
    "model": 4 * run.learner.parameters,
    "written": computing.scratch.written_bytes if computing else 0,
    "seconds": time.perf_counter() - began,
}))
"""


def sections(strategy: str, cohort: int, codec: str) -> Sections:
    """The scenario of a run: one round in which all devices take part."""
    found: Sections = {
        "seed": 7,
        "data": {
            "source": {"kind": "synthetic", "features": 64, "classes": 10},
            "partition": {"kind": "synthetic", "log_mean": 1.2, "log_std": 0.1, "least": 3},
        },
        "model": {"kind": "mlp", "hidden": [HIDDEN, HIDDEN, 700]},
        "training": {"lr": 0.05, "batch_size": 100},
        "population": {"devices": cohort, "speed": "100 samples/s"},
        "strategy": {"kind": strategy, "clients_per_round": cohort},
        "stop": {"rounds": 1},
    }
    if codec != "plain":
        found["messages"] = {"up": codec}
    return found


def measured(strategy: str, cohort: int, workers: int, codec: str) -> dict[str, float]:
    """Peaks of memory, bytes of a model and in the scratch file, and seconds of a run."""
    words = [json.dumps(sections(strategy, cohort, codec)), str(workers)]
    done = subprocess.run(
        [sys.executable, "-c", _RUN, *words], stdout=subprocess.PIPE, check=True, text=True
    )
    return {name: float(value) for name, value in json.loads(done.stdout).items()}


def main() -> None:
    """Measure, and print a line for each run."""
    arguments = parser(__doc__, workers=0)
    arguments.add_argument("--strategy", default="fedavg")
    arguments.add_argument("--codec", default="plain")
    arguments.add_argument("cohorts", nargs="*", type=int, default=COHORTS)
    options = arguments.parse_args()
    cohorts = options.cohorts or COHORTS
    fails = False
    print("workers  cohort  peak MB  growth  anonymous MB  growth  on disk MB  seconds")
    for workers in [options.workers] if options.workers else [1, 2]:
        first: dict[str, float] = {}
        for cohort in cohorts:
            run = measured(options.strategy, cohort, workers, options.codec)
            first = first or run
            line = f"{workers:7} {cohort:7}"
            for name, width in (("peak", 8), ("anonymous", 13)):
                growth = (run[name] - first[name]) / run["model"] / workers
                fails = fails or growth > MOST
                line += f" {run[name] / 1e6:{width}.0f} {growth:7.2f}"
            print(f"{line} {run['written'] / 1e6:11.0f} {run['seconds']:8.1f}", flush=True)
    sys.exit(fails)


if __name__ == "__main__":
    main()
