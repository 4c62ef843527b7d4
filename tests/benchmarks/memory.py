"""Peak memory of one round by the size of its cohort, for a model of 45 MB: it must stay flat.

    python -m tests.benchmarks.memory                      # cohorts of 10, 40, 160 with 1 and 2 workers
    python -m tests.benchmarks.memory --workers 1 10 640   # these cohorts
    python -m tests.benchmarks.memory --strategy scaffold  # another strategy

Each run is a process of its own: a round of the strategy with a perceptron of 11.3 million weights,
two samples and one step for each client, and a test. A line has the peak of the resident memory,
its growth over the first cohort in models for each worker, bytes that were written to the scratch
file, and the round's time. Exit status 1 if memory grows by more than two models a worker.
"""

import json
import subprocess
import sys
from typing import Any

from tests.benchmarks.script import parser

Sections = dict[str, Any]
HIDDEN = 3000
MOST = 2.0
_RUN = """
import asyncio, json, resource, sys, time
import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.running.runner import Job
sections, workers = json.loads(sys.argv[1]), int(sys.argv[2])
job = Job(fedsim.Scenario(**sections), None, Inline() if workers == 1 else Threads(workers))
run = job.simulation.installed
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
began = time.perf_counter()
asyncio.run(job.execute())
computing = getattr(run.learner, "_computing", None)
print(json.dumps({
    "peak": 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss,
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
    """Peak memory (bytes), bytes of a model and in the scratch file, and seconds of a run."""
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
    arguments.add_argument("cohorts", nargs="*", type=int, default=[10, 40, 160])
    options = arguments.parse_args()
    cohorts = options.cohorts or [10, 40, 160]
    fails = False
    print("workers  cohort   peak MB  growth in models a worker  on disk MB  seconds")
    for workers in [options.workers] if options.workers else [1, 2]:
        first = 0.0
        for cohort in cohorts:
            run = measured(options.strategy, cohort, workers, options.codec)
            first = first or run["peak"]
            growth = (run["peak"] - first) / run["model"] / workers
            fails = fails or growth > MOST
            print(
                f"{workers:7} {cohort:7} {run['peak'] / 1e6:9.0f} {growth:26.2f} "
                f"{run['written'] / 1e6:11.0f} {run['seconds']:8.1f}",
                flush=True,
            )
    sys.exit(fails)


if __name__ == "__main__":
    main()
