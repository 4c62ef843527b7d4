"""Two shards of a study that start in the same moment in one folder, again and again: is a run
lost, or done twice?

    python -m tests.clusters.races --times 20

Each time two processes do a shard each and, every other time, both do all runs, so that each run is
contended for. Each beginning of a run is counted by a process of its world. Prints a line each
time, and at the end JSON with the count of failures. Takes a quarter of an hour on two cores.
"""

import json
import os
import subprocess
import tempfile
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Any

import tomli_w

from fedsim.plugin import Process
from tests.benchmarks.script import parser, start

_COUNTED = "COUNTED_RUNS"  # variable with the path of the file of counts
_TABLES = ("compare.csv", "compare.md", "paired.csv", "index.json", "study.toml")
_SEEDS = 6

STUDY: dict[str, Any] = {
    "name": "races",
    "seeds": list(range(1, _SEEDS + 1)),
    "baseline": "fedavg",
    "base": {
        "learning": "off",
        "data": {"source": "digits"},
        "population": {"devices": 20},
        "strategy": {"clients_per_round": 5},
        "stop": {"rounds": 3},
        "world": {"processes": [{"kind": "tests.clusters.races:Counted"}]},
    },
    "variants": {"fedavg": {}, "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1}}},
}


class Counted(Process):
    """Writes a line into a file when its run begins, which names the seed by a random number."""

    restorable = True
    kind: str

    def run(self, world: Any) -> Generator[Any, Any, Any]:
        counts = os.environ.get(_COUNTED)
        if counts is not None:
            line = f"{world.rng('counted').integers(1 << 60)}\n"
            descriptor = os.open(counts, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
            os.write(descriptor, line.encode())
            os.close(descriptor)
        yield world.until(0.0)


def main() -> int:
    options = parser(__doc__, times=20).parse_args()
    failures = 0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = folder / "study.toml"
        study.write_text(tomli_w.dumps(STUDY), encoding="utf-8")
        whole = folder / "whole"
        processes = begin(study, whole, [()], folder / "once")
        assert processes[0].wait() == 0, processes[0].communicate()
        assert set(counts(folder / "once").values()) == {2}, "a seed has two variants"
        for number in range(options.times):
            shards: list[tuple[str, ...]] = [("--shard", "1/2"), ("--shard", "2/2")]
            if number % 2:
                shards = [(), ()]
            result = race(study, folder / str(number), shards, whole)
            print(json.dumps({"time": number + 1, "shards": not number % 2, **result}), flush=True)
            failures += bool(result["failures"])
    print(json.dumps({"times": options.times, "failures": failures}))
    return 1 if failures else 0


def begin(
    study: Path, out: Path, shares: list[tuple[str, ...]], counted: Path
) -> list["subprocess.Popen[Any]"]:
    """Start a process for each of the shares, in one folder, without a pause."""
    words = ("study", str(study), "--out", str(out), "--workers", "2", "--allow-code", "--quiet")
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    environment = os.environ | {_COUNTED: str(counted)}
    return [start(*words, *share, env=environment, **pipes) for share in shares]


def race(
    study: Path, out: Path, shares: list[tuple[str, ...]], whole: Path
) -> dict[str, list[str] | int]:
    """Let the processes of the shares run to their end, and compare what they leave."""
    counted = out.with_suffix(".counts")
    failures = []
    for process in begin(study, out, shares, counted):
        _, errors = process.communicate()
        if process.returncode:
            failures.append(f"exit status {process.returncode}: {errors.strip()}")
    done = {path.parent.relative_to(out) for path in out.glob("runs/*/*/summary.json")}
    if len(done) != 2 * _SEEDS:
        failures.append(f"{len(done)} of {2 * _SEEDS} runs are there")
    begun = counts(counted)
    if any(count != 2 for count in begun.values()):
        failures.append(f"beginnings of the two runs of each seed: {sorted(begun.values())}")
    for table in _TABLES:
        if (
            not (out / table).is_file()
            or (out / table).read_bytes() != (whole / table).read_bytes()
        ):
            failures.append(f"{table} differs")
    failures += [f"{path.name} is left" for path in out.rglob("*.lock")]
    return {"runs": sum(begun.values()), "failures": failures}


def counts(counted: Path) -> Counter[str]:
    """Count the beginnings of runs by seed."""
    return Counter(counted.read_text(encoding="utf-8").split())


if __name__ == "__main__":
    raise SystemExit(main())
