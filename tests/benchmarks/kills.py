"""Runs killed with SIGKILL at random moments and resumed: how many come to the same events and models, and are sound?

    python -m tests.benchmarks.kills --runs 100

Each run is a random strategy in a random eventful world, two of three with batteries that run flat, with TCP, and with secure
aggregation where that goes, saved every few simulated seconds, and killed up to three times at moments of real time that nobody
chose. Prints a line a run, and at the end JSON with how many agree.
"""

import argparse
import json
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import fedsim
from fedsim.checkpoint import store
from fedsim.records.audit import audit
from fedsim.testing import TABLES, eventful_world
from tests.test_energy import BATTERY, CHARGED, ENERGY
from tests.test_runs import STRATEGIES

_MAIN = "from fedsim.cli import main; main()"
_COMPARED = ("events_sha256", "models_sha256")
_MOST_KILLS = 3
_SECURE = ("fedavg", "fedprox", "fednova")
_SERVERLESS = ("d-psgd", "gossip", "epidemic")  # what they draw is not counted


def main() -> int:
    """Kill, resume, compare."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=60)
    options = parser.parse_args()
    results = []
    for number in range(options.runs):
        with tempfile.TemporaryDirectory() as folder:
            results.append(kill_one(random.Random(f"{options.seed}/{number}"), Path(folder), options.rounds))
        print(json.dumps(results[-1]), flush=True)
    same, kills = sum(result["same"] for result in results), sum(result["kills"] for result in results)
    hit = sum(result["kills"] > 0 for result in results)
    print(json.dumps({"runs": len(results), "same": same, "kills": kills, "hit": hit}))
    return 0 if same == len(results) else 1


def kill_one(draw: random.Random, folder: Path, rounds: int) -> dict[str, Any]:
    """A random run: once never stopped, and once killed now and then."""
    strategy = draw.choice(STRATEGIES)
    if strategy["kind"] in _SECURE and draw.random() < 2 / 3:
        strategy = strategy | {"secure_aggregation": {}}
    sections = eventful_world(strategy, seed=draw.randrange(1000), rounds=rounds)
    if draw.random() < 2 / 3 and strategy["kind"] not in _SERVERLESS:
        sections["energy"] = ENERGY | {"battery": BATTERY | CHARGED, "idle_while": draw.choice(["there", "working"])}
    if draw.random() < 2 / 3:
        sections["network"]["protocol"] = "tcp"
    sections["checkpoint"] = draw.choice([{"time": f"{draw.uniform(2, 30):.3f} s"}, {"rounds": draw.randrange(1, 9)}])
    return kill(sections, draw, folder)


def kill(sections: dict[str, Any], draw: random.Random, folder: Path, *options: str) -> dict[str, Any]:
    """One run that is never stopped, and one that is killed up to three times; with more ``options`` of ``fedsim run``."""
    path = folder / "scenario.toml"
    path.write_text(fedsim.Scenario(**sections).to_toml(), encoding="utf-8")
    whole, cut = folder / "whole", folder / "cut"
    began = time.perf_counter()
    _start(path, whole, options).wait()
    length_s = time.perf_counter() - began
    kills, process = 0, _start(path, cut, options)
    while True:
        try:
            status = process.wait(draw.uniform(0, 1.2 * length_s) if kills < _MOST_KILLS else None)
            break
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            process.wait()
            kills += 1
            if (cut / "summary.json").exists():  # it was done before it was killed
                status = 0
                break
            process = _start(path, cut, options, resume=any((cut / store.FOLDER).glob("[0-9]*[0-9]")))
    same = status == 0 and _alike(whole, cut) and not any(audit(cut).values())
    return {"strategy": sections["strategy"]["kind"], "kills": kills, "status": status, "same": same}


def _start(path: Path, out: Path, options: Sequence[str], *, resume: bool = False) -> "subprocess.Popen[bytes]":
    if not resume and out.exists():  # killed before its first checkpoint: it can only begin again
        shutil.rmtree(out)
    words = ["run", str(path), "--out", str(out), "--quiet", "--allow-code", *options, *(["--resume"] if resume else [])]
    return subprocess.Popen([sys.executable, "-c", _MAIN, *words])


def _alike(one: Path, other: Path) -> bool:
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    if any(summaries[0][name] != summaries[1][name] for name in _COMPARED):
        return False
    return all((one / name).read_bytes() == (other / name).read_bytes() for name in TABLES)


if __name__ == "__main__":
    sys.exit(main())
