"""How the time of a study of 200 runs falls with the count of its shards, by counting CPU.

    python -m tests.benchmarks.shards

Shards are done one after another, each in a folder of its own by one worker, and their CPU (user
and system, all processes, s) is counted: on machines of their own they would take the longest
shard's. Of each count the first shard is done, since all have the same predicted work, or with
--all every shard. Then all runs are merged. Prints a table of 1, 2, 4 and 8 shards, and the parts
of a shard that do not shrink. Takes about four minutes of CPU, with --all seven.
"""

import resource
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import tomli_w

from tests.benchmarks.script import parser, start

_COUNTS = (2, 4, 8)
_SEEDS = 8
_IMPORTS = """
from pathlib import Path
import fedsim.learning.engine
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.plan import read_study
from fedsim.lab.study.shards import StudyShard
"""

STUDY: dict[str, Any] = {
    "name": "200 runs",
    "seeds": list(range(1, _SEEDS + 1)),
    "baseline": "fedavg",
    "target": 0.5,
    "base": {
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.5}},
        "training": {"lr": 0.1},
        "population": {
            "devices": 50,
            "speed": {"kind": "lognormal", "median": "6 samples/s", "spread": 2.5},
        },
        "strategy": {"clients_per_round": 10, "local_epochs": 2},
        "stop": {"rounds": 20},
    },
    "variants": {
        "fedavg": {},
        "fedprox": {"strategy": {"kind": "fedprox", "mu": 0.1}},
        "fednova": {"strategy": {"kind": "fednova"}},
        "scaffold": {"strategy": {"kind": "scaffold"}},
        "feddyn": {"strategy": {"kind": "feddyn"}},
    },
    "grid": {"strategy.deadline": ["20 s", "40 s", "60 s", "90 s", "2 min"]},
}


def main() -> int:
    options = parser(__doc__, seeds=_SEEDS, all=False).parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        study = folder / "study.toml"
        tables = STUDY | {"seeds": list(range(1, options.seeds + 1))}
        study.write_text(tomli_w.dumps(tables), encoding="utf-8")
        print("shards  longest  merge  longest + merge  speed-up  of N", flush=True)
        alone_s = shard_s(study, folder / "whole", 1, 1)
        print(f"{1:6}  {alone_s:7.1f}  {'':5}  {alone_s:15.1f}", flush=True)
        merge_s = cpu_s("study", "merge", folder / "whole", "--out", folder / "merged")
        for count in _COUNTS:
            times_s = []
            for number in range(1, count + 1 if options.all else 2):
                times_s.append(shard_s(study, folder / f"{count}-{number}", number, count))
            whole_s = max(times_s) + merge_s
            speedup = alone_s / whole_s
            print(
                f"{count:6}  {max(times_s):7.1f}  {merge_s:5.1f}  {whole_s:15.1f}  "
                f"{speedup:8.2f}  {speedup / count:.0%}",
                flush=True,
            )
        last = _COUNTS[-1]
        for part, seconds in fixed_parts(study, folder / f"{last}-1", last).items():
            print(f"{seconds:5.1f} s  {part}")
    return 0


def shard_s(study: Path, out: Path, number: int, count: int) -> float:
    """Return the CPU (s) of a shard, in a new folder."""
    share = () if count == 1 else ("--shard", f"{number}/{count}")
    return cpu_s("study", study, "--out", out, "--workers", "1", *share)


def fixed_parts(study: Path, done: Path, count: int) -> dict[str, float]:
    """Return the CPU (s) of parts that each shard has, whatever its share.

    Args:
        study: the study's file.
        done: folder of the first shard, which is done.
        count: count of shards.
    """
    words = ("study", study, "--out", done, "--shard", f"1/{count}")
    planning_s = cpu_s(*words, "--dry-run", "--no-trial")
    again_s = cpu_s(*words)
    new = f"{str(done.with_name('new'))!r}, shard=StudyShard(1, {count})"
    conducting = f"Conductor(read_study({str(study)!r}), Path({new}), try_variants="
    return {
        "the command is loaded, the study read and planned": planning_s,
        "the tables of the shard": again_s - planning_s,
        "the first run of each variant is built, to refuse mistakes": python_s(
            f"{_IMPORTS}{conducting}True)"
        )
        - python_s(f"{_IMPORTS}{conducting}False)"),
        "a worker starts and loads what learning needs": python_s(
            "from fedsim.lab.study.costs import load_worker; load_worker()"
        ),
    }


def cpu_s(*words: object) -> float:
    """Return the CPU (s) of ``fedsim WORDS`` and of all its processes."""
    before_s = children_s()
    process = start(*map(str, words), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    status = process.wait()
    assert status == 0, f"{words}: exit status {status}"
    return children_s() - before_s


def python_s(code: str) -> float:
    """Return the CPU (s) of a Python process."""
    before_s = children_s()
    subprocess.run([sys.executable, "-c", code], check=True)
    return children_s() - before_s


def children_s() -> float:
    """Return the CPU (s) of all processes that this one has waited for."""
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


if __name__ == "__main__":
    raise SystemExit(main())
