"""What must not change: the events and the models of every registered strategy, in four worlds.

    python -m tests.benchmarks.hashes                      # run all, compare with the table beside this file
    python -m tests.benchmarks.hashes fedavg local         # these alone
    python -m tests.benchmarks.hashes --native             # with the code that the libraries choose for this processor
    python -m tests.benchmarks.hashes --traces             # with every link's rate as a constant trace: all is the same
    python -m tests.benchmarks.hashes --write              # replace the table: only for a change that is meant, and says why

``star`` has disconnections and deadlines, ``tree`` newcomers, leavers and shifts of data, ``off``
2,000 devices and no learning, ``flat`` batteries that run flat, and TCP. All is computed by machine
code that every x86-64 processor runs (``processors.PORTABLE``), so that the table ``hashes.json``
holds on each of them with the versions that it states. ``times_sha256`` is of the events without
what they say of values: kind, time, device, round, group, task, step and outcome. ``--native``
compares what is promised across processors: these, bytes and energy. Exit status 1 if anything
differs.
"""

import asyncio
import json
import os
import platform
import sys
import tomllib
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from importlib.metadata import version
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import nn

import fedsim
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Record, Sink
from fedsim.records.chain import RowChain
from fedsim.records.schema import event_row
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES as REGISTERED
from tests.benchmarks.processors import PORTABLE
from tests.benchmarks.script import parser

TABLE = Path(__file__).with_suffix(".json")
_TOLD = tomllib.loads(TABLE.with_suffix(".toml").read_text(encoding="utf-8"))
WORLDS: dict[str, dict[str, Any]] = _TOLD["worlds"]
STRATEGIES: dict[str, dict[str, Any]] = _TOLD["strategies"]
OF_WORLDS: dict[str, dict[str, Any]] = _TOLD["of_worlds"]
OF_WORLDS |= {kind: {"energy": None} for kind in ("d-psgd", "epidemic", "gossip")}
STAY = {
    "devices": 6,
    "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
    "jitter": 0.2,
}
# they wait for every device
OF_WORLDS |= {kind: {"energy": None, "population": STAY} for kind in ("diloco", "local-sgd")}
_ANYWHERE = ("rounds", "events", "times_sha256", "bytes", "energy")
_STATED = (*_ANYWHERE, "events_sha256", "models_sha256", "accuracy")


def normed() -> nn.Module:
    """A perceptron with a layer norm."""
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 10)
    )


def over_traces(network: dict[str, Any], folder: Path) -> dict[str, Any]:
    """A network whose constant rates are constant traces, which are written into ``folder``."""
    traced: dict[str, Any] = dict(network)
    for part in ("device", "server", "cell", "edge"):
        links = dict(network.get(part, {}))
        for name, rate in links.items():
            if name == "latency" or not isinstance(rate, str):
                continue
            number, unit = rate.split()
            file = folder / f"{number}{unit.replace('/', '')}"
            file.write_text("".join(f"{time} {number}\n" for time in (0, 0.7, 3)))
            links[name] = {"kind": "trace", "file": str(file), "rate": unit}
        if links:
            traced[part] = links
    return traced


def fingerprint(kind: str, world: str, *sinks: Sink, traces: Path | None = None) -> dict[str, Any]:
    """What a strategy's run in a world comes to; ``sinks`` receive its records.

    With a folder for ``traces`` constant rates are constant traces.
    """
    sections = (
        WORLDS[world]
        | OF_WORLDS.get(kind, {})
        | {"strategy": {"kind": kind} | STRATEGIES.get(kind, {})}
    )
    if traces is not None:
        sections["network"] = over_traces(sections["network"], traces)
    job = Job(fedsim.Scenario(**sections), None, Inline())
    times = RowChain()

    def add_time(record: Record) -> None:
        times.extend([(*event_row(record)[:-1], None)])

    for sink in (add_time, *sinks):
        job.simulation.listen(sink)
    summary = asyncio.run(job.execute()).summary | {"times_sha256": times.hexdigest()}
    return {name: summary[name] for name in _STATED if name in summary}


def require_portable(module: str) -> None:
    """Start the script ``module`` again in the environment ``PORTABLE``, unless it is set."""
    # it is read when numpy and torch are loaded
    if not PORTABLE.items() <= os.environ.items():
        arguments = [sys.executable, "-m", module, *sys.argv[1:]]
        os.execve(sys.executable, arguments, os.environ | PORTABLE)


def made_with() -> dict[str, str]:
    """What the table depends on besides the code."""
    return {name: version(name) for name in ("numba", "numpy", "torch")} | {
        "libc": " ".join(platform.libc_ver())
    }


def main() -> int:
    """Run, and compare or write."""
    arguments = parser(__doc__, write=False, native=False, traces=False, workers=2)
    arguments.add_argument(
        "kinds", nargs="*", metavar="STRATEGY", help="by default every registered one"
    )
    options = arguments.parse_args()
    if options.write and options.native:
        arguments.error("the table is of portable code: --write goes without --native")
    if not options.native:
        require_portable("tests.benchmarks.hashes")
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"runs": {}}
    # ``flower`` is what its app is: tests/flower has some
    kinds = options.kinds or [
        kind for kind in dict.fromkeys([*REGISTERED, *STRATEGIES]) if kind != "flower"
    ]
    differing, pairs = 0, [(kind, world) for kind in kinds for world in WORLDS]
    with ProcessPoolExecutor(options.workers) as pool, TemporaryDirectory() as folder:
        run = partial(fingerprint, traces=Path(folder) if options.traces else None)
        for (kind, world), found in zip(
            pairs, pool.map(run, *zip(*pairs, strict=True)), strict=True
        ):
            kept = table["runs"].get(kind, {}).get(world, {})
            if options.write:
                table["runs"].setdefault(kind, {})[world] = found
            wrong = [
                name
                for name in (_ANYWHERE if options.native else _STATED)
                if kept.get(name) != found.get(name)
            ]
            differing += bool(wrong)
            told = f"DIFFERS in {', '.join(wrong)}" if wrong else "same"
            print(f"{kind:<10} {world:<5} {found['events']:>6} events  {told}")
    if options.write:
        table["made_with"] = made_with()
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif table["made_with"] != made_with():
        print(
            f"the table was made with {table['made_with']}, this is {made_with()}: last bits "
            "may differ"
        )
    print(f"{differing} runs differ" if differing else "all are as they were")
    return 1 if differing and not options.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
