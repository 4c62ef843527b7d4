"""How good ``fedsim check`` is: what it says of time, memory and disk, over what a run takes then. Prints JSON.

Run on an idle machine, with ``$FEDSIM_DATA`` for the scenarios on MNIST: ``python -m tests.benchmarks.forecast [SCENARIO...]``.
Each command is a process of its own, as a user would call it.
"""

import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path

SCENARIOS = [
    *("quickstart", "migration", "asynchronous", "mnist_fedavg", "fashion_fedavg", "flexcfl/mnist_mclr", "stragglers/small"),
    "population",
]


_CHECK = """
import json, sys
from fedsim.executors.threads import Threads
from fedsim.forecast import forecast
from fedsim.forecast.trial import Trial
from fedsim.scenario import load
found = forecast(Trial.built(load(sys.argv[1]), Threads(2)))
print(json.dumps(found._asdict() | {"real_s": found.real_s}))
"""
_RUN = """
import resource
from fedsim.cli import main
try:
    main()
finally:
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


def said(path: Path) -> dict[str, float]:
    """What a forecast says of a scenario, and how long it took to say so (s)."""
    began = time.perf_counter()
    found: dict[str, float] = json.loads(_python(_CHECK, str(path)))
    return found | {"check_s": time.perf_counter() - began}


def taken(path: Path) -> dict[str, float]:
    """What a run of it takes: seconds, bytes of memory, bytes on disk."""
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "run"
        began = time.perf_counter()
        peak = int(_python(_RUN, "run", str(path), "--out", str(out), "--quiet", "--workers", "2"))
        real = time.perf_counter() - began
        disk = sum(file.stat().st_size for file in out.rglob("*") if file.is_file() and "checkpoint" not in file.parts)
    return {"real_s": real, "memory_bytes": peak * 1024.0, "disk_bytes": float(disk)}


def _python(code: str, *arguments: str) -> str:
    return subprocess.run([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True, check=True).stdout


def main(names: list[str]) -> None:
    """Compare and print."""
    root = Path(__file__).parents[2] / "scenarios"
    results = {}
    for name in names or SCENARIOS:
        told, was = said(root / f"{name}.toml"), taken(root / f"{name}.toml")
        results[name] = {key: round(value, 2) for key, value in was.items()} | {"check_s": round(told["check_s"], 2)}
        results[name] |= {f"{key}_said_over_taken": round(told[key] / was[key], 2) for key in was}
        print(name, results[name], file=sys.stderr)
    print(json.dumps(results, indent=2))


if __name__ == "__main__":
    main(sys.argv[1:])
