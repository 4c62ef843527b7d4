"""Runs killed with SIGKILL at random moments and resumed: how many come to the same events and
models, and are sound?

    python -m tests.benchmarks.kills --runs 100

Each run is a random strategy in a random eventful world, two of three with batteries that run flat,
with TCP, and with secure aggregation where that goes, saved every few simulated seconds, and killed
up to three times at moments of real time that nobody chose. Prints a line a run, and at the end
JSON with how many agree.
"""

import json
import random
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from fedsim.running.checkpoint import store
from fedsim.testing import TABLES, eventful_world
from tests.benchmarks.script import Result, agree, is_sound, parser, start, tried, whole_run
from tests.records.test_energy import BATTERY, CHARGED, PHONE
from tests.test_runs import STRATEGIES

_MOST_KILLS = 3
_SECURE = ("fedavg", "fedprox", "fednova")
_SERVERLESS = ("d-psgd", "gossip", "epidemic")  # what they draw is not counted


def main() -> int:
    options = parser(__doc__, runs=100, seed=1, rounds=60).parse_args()
    results = tried(
        options.runs, options.seed, lambda draw, folder: kill_one(draw, folder, options.rounds)
    )
    same, kills = (
        sum(result["same"] for result in results),
        sum(result["kills"] for result in results),
    )
    hit = sum(result["kills"] > 0 for result in results)
    print(json.dumps({"runs": len(results), "same": same, "kills": kills, "hit": hit}))
    return 0 if same == len(results) else 1


def kill_one(draw: random.Random, folder: Path, rounds: int) -> Result:
    """A random run: once never stopped, and once killed now and then."""
    strategy = draw.choice(STRATEGIES)
    if strategy["kind"] in _SECURE and draw.random() < 2 / 3:
        strategy = strategy | {"secure_aggregation": {}}
    sections = eventful_world(strategy, seed=draw.randrange(1000), rounds=rounds)
    if draw.random() < 2 / 3 and strategy["kind"] not in _SERVERLESS:
        sections["energy"] = PHONE | {"battery": BATTERY | CHARGED}
    if draw.random() < 2 / 3:
        sections["network"]["protocol"] = "tcp"
    sections["checkpoint"] = draw.choice(
        [{"time": f"{draw.uniform(2, 30):.3f} s"}, {"rounds": draw.randrange(1, 9)}]
    )
    return kill(sections, draw, folder)


def kill(sections: dict[str, Any], draw: random.Random, folder: Path, *options: str) -> Result:
    """One run that is never stopped, and one that is killed up to three times; with more
    ``options`` of ``fedsim run``.
    """
    path, whole, length_s = whole_run(sections, folder, *options)
    cut = folder / "cut"

    def begin(*more: str) -> "subprocess.Popen[bytes]":
        return start("run", path, "--out", cut, "--quiet", "--allow-code", *options, *more)

    kills, process, status = 0, begin(), None
    while status is None:
        try:
            status = process.wait(draw.uniform(0, 1.2 * length_s) if kills < _MOST_KILLS else None)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            if (cut / "summary.json").exists():  # it was done before it was killed
                status = 0
            elif any((cut / store.FOLDER).glob("[0-9]*[0-9]")):
                process = begin("--resume")
            else:
                shutil.rmtree(cut, ignore_errors=True)
                process = begin()
    same = status == 0 and agree(whole, cut) and is_sound(cut)
    same = same and all((whole / name).read_bytes() == (cut / name).read_bytes() for name in TABLES)
    return {
        "strategy": sections["strategy"]["kind"],
        "kills": kills,
        "status": status,
        "same": same,
    }


if __name__ == "__main__":
    sys.exit(main())
