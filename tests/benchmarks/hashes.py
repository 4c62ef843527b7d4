"""What must not change: the events and the models of every registered strategy, in four worlds.

    python -m tests.benchmarks.hashes                      # run all, compare with the table beside this file
    python -m tests.benchmarks.hashes fedavg local         # these alone
    python -m tests.benchmarks.hashes --native             # with the code that the libraries choose for this processor
    python -m tests.benchmarks.hashes --write              # replace the table: only for a change that is meant, and says why

``star`` has disconnections and deadlines, ``tree`` newcomers, leavers and shifts of data, ``off`` 2,000 devices and no
learning, ``flat`` batteries that run flat, and TCP. All is computed by machine code that every x86-64 processor runs
(``processors.PORTABLE``), so that the table ``hashes.json`` holds on each of them with the versions that it states.
``times_sha256`` is of the events without what they say of values: kind, time, device, round, group, task, step and outcome.
``--native`` compares what is promised across processors: these, bytes and energy. Exit status 1 if anything differs.
"""

import argparse
import asyncio
import json
import os
import platform
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from importlib.metadata import version
from pathlib import Path
from typing import Any

from torch import nn

import fedsim
from fedsim.executors.inline import Inline
from fedsim.records.digest import EventChain
from fedsim.records.schema import event_row
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES as REGISTERED
from tests.benchmarks.processors import PORTABLE

TABLE = Path(__file__).with_suffix(".json")

_ONCE = {"groups": 3, "local_epochs": 2, "participation": 0.5, "moment": {"rounds": 2, "participation": 0.3}}
_FORMS = {"groups": 3, "clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "cata-fed": {"clients_per_round": 6, "deadline": "3 s", "clusters": 2, "smallest_part": 10, "rejoin": True},
    "cfl": {"local_epochs": 2, "deadline": "30 s", "split_rounds": [1, 3]},
    "d-psgd": {"deadline": "30 s"},
    "ditto": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    "fedasync": {"concurrency": 6, "rho": 0.1},
    "fedavg": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    "fedat": {"clients_per_round": 4, "tiers": 3},
    "fedbn": {"clients_per_round": 6, "deadline": "30 s"},
    "fedbuff": {"concurrency": 7, "buffer": 3},
    "feddr": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    "feddyn": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s", "alpha": 0.1},
    "fedgroup": _FORMS | {"moment": {"devices": 3}},
    "fednova": {"clients_per_round": 5, "local_epochs": 3, "deadline": "20 s"},
    "fedper": {"clients_per_round": 6, "head": ["*.bias"], "deadline": "30 s"},
    "fedprox": {"clients_per_round": 5, "local_epochs": 3, "deadline": "20 s", "mu": 0.1},
    "fedrep": {"clients_per_round": 6, "head": ["*.bias"], "head_epochs": 2, "deadline": "30 s"},
    "epidemic": {"deadline": "30 s"},
    "favor": {"kind": "fedavg", "clients_per_round": 6, "deadline": "30 s"}
    | {"selection": {"kind": "favor", "target": 0.9, "components": 5, "hidden": 16}},
    "fesem": _FORMS,
    "fesem-mig": _FORMS,
    "fl-hc": _ONCE,
    "flanp": {"kind": "fedavg", "clients_per_round": 20, "selection": {"kind": "flanp", "accuracy": 50.0}},
    "flexcfl": _FORMS | {"moment": {"devices": 3}, "eta_g": 0.1},
    "fpfc": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s", "lam": 0.3},
    "gossip": {"deadline": "30 s"},
    "hierfavg": {"clients_per_round": 9, "kappa2": 2, "deadline": "40 s"},
    "hypcluster": _FORMS,
    "ifca": _FORMS,
    "ifca-mig": _FORMS,
    "lcfl": _ONCE,
    "local": {"clients_per_round": 7},
    "moon": {"clients_per_round": 6, "local_epochs": 2, "deadline": "30 s"},
    "pfedme": {"clients_per_round": 6, "local_rounds": 3, "steps": 3, "deadline": "30 s"},
    "refl": {"clients_per_round": 5, "over_selection": 1.6, "local_epochs": 2, "deadline": "12 s"},
    "rfedavg": {"clients_per_round": 6, "clustering": "kmeans", "kmeans_clusters": "ccs", "deadline": "30 s"},
    "tifl": {"clients_per_round": 3, "tiers": 3, "mode": "credits", "interval": 2, "deadline": "30 s"},
}
"""The parameters with which each is run; a strategy that is not named here has its defaults. Selections are with FedAvg."""


def normed() -> nn.Module:
    """A perceptron with a layer norm."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 7), nn.LayerNorm(7), nn.ReLU(), nn.Linear(7, 10))


_DEVICE = {"down": "1 Mbit/s", "up": "500 kbit/s", "latency": "40 ms"}
WORLDS: dict[str, dict[str, Any]] = {
    "star": {
        "seed": 11,
        "data": {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 1.0}},
        "training": {"lr": 0.05, "batch_size": 8, "momentum": 0.5, "l2": 0.001},
        "model": {"kind": "mlp", "hidden": [13]},
        "population": {
            "devices": 24,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
            "jitter": 0.2,
            "slow_phases": {"factor": 0.4, "mean_normal": "60 s", "mean_slow": "20 s"},
            "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
        },
        "network": {"kind": "star", "server": {"down": "2 Mbit/s", "up": "1 Mbit/s"}, "device": _DEVICE},
        "stop": {"rounds": 12, "simulated_time": "1 day"},
    },
    "tree": {
        "seed": 12,
        "data": {"source": "digits", "partition": "rotations"},
        "training": {"lr": 0.05, "batch_size": 8},
        "population": {
            "devices": 24,
            "speed": {"kind": "lognormal", "median": "60 samples/s", "spread": 2.0},
            "jitter": 0.2,
            "availability": {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
            "arrivals": {"kind": "poisson", "rate": "300 /h", "newcomers": 6},
            "departures": {"kind": "exponential", "mean_stay": "10 min", "share": 0.3},
        },
        "network": {
            "kind": "tree",
            "cells": 3,
            "cell": {"down": "4 Mbit/s", "up": "2 Mbit/s"},
            "server": {"down": "6 Mbit/s", "up": "3 Mbit/s"},
            "device": _DEVICE,
        },
        "drift": {"kind": "swap-all", "probability": 0.3},
        "stop": {"rounds": 12, "simulated_time": "1 day"},
    },
    "off": {
        "seed": 13,
        "learning": "off",
        "data": {"source": "digits"},
        "population": {
            "devices": 2_000,
            "samples": {"low": 20, "high": 200},
            "speed": {"kind": "lognormal", "median": "20 samples/s", "spread": 2.0},
            "jitter": 0.1,
            "availability": {"kind": "renewal", "mean_on": "10 min", "mean_off": "20 min"},
        },
        "network": {"kind": "star", "server": {"down": "8 Mbit/s", "up": "4 Mbit/s"}, "device": _DEVICE},
        "stop": {"rounds": 8, "simulated_time": "1 day"},
    },
    "flat": {
        "seed": 14,
        "learning": "off",
        "data": {"source": "digits"},
        "population": {
            "devices": 200,
            "samples": {"low": 20, "high": 200},
            "speed": {"kind": "lognormal", "median": "40 samples/s", "spread": 2.0},
            "availability": {"kind": "diurnal", "most": 0.8, "least": 0.3, "lasts": "10 min"},
        },
        "network": {"kind": "star", "protocol": "tcp", "server": {"down": "8 Mbit/s", "up": "4 Mbit/s"}, "device": _DEVICE},
        "energy": {
            "preset": ["smartphone-4g", "smartphone-wifi"],
            "idle_while": "there",
            "carbon": "400 g/kWh",
            "battery": {
                "capacity": {"kind": "uniform", "low": "50 J", "high": "400 J"},
                "initial": {"kind": "uniform", "low": 0.1, "high": 1.0},
                "charge": "2 W",
                "charging": {"kind": "renewal", "mean_on": "5 min", "mean_off": "10 min"},
            },
        },
        "stop": {"rounds": 8, "simulated_time": "1 day"},
    },
}

_EDGES: dict[str, Any] = {
    "kind": "tree",
    "cells": 3,
    "cell": {"down": "4 Mbit/s", "up": "2 Mbit/s"},
    "server": {"down": "6 Mbit/s", "up": "3 Mbit/s"},
    "edge": {"latency": "30 ms"},
    "device": _DEVICE,
}
OF_WORLDS: dict[str, dict[str, Any]] = {
    **{kind: {"energy": None} for kind in ("d-psgd", "epidemic", "gossip")},
    "fedbn": {"model": {"kind": "module", "factory": "tests.benchmarks.hashes:normed"}},
    "hierfavg": {"network": _EDGES},
    "moon": {"model": {"kind": "mlp", "hidden": [13]}},
}
"""What a strategy needs of a world that others do without."""


_ANYWHERE = ("rounds", "events", "times_sha256", "bytes", "energy")
_STATED = (*_ANYWHERE, "events_sha256", "models_sha256", "accuracy")


def fingerprint(kind: str, world: str) -> dict[str, Any]:
    """What a strategy's run in a world comes to."""
    sections = WORLDS[world] | OF_WORLDS.get(kind, {}) | {"strategy": {"kind": kind} | STRATEGIES.get(kind, {})}
    job, times = Job(fedsim.Scenario(**sections), None, Inline()), EventChain()
    job.simulation.listen(lambda record: times.extend([(*event_row(record)[:-1], None)]))
    summary = asyncio.run(job.execute()).summary | {"times_sha256": times.hexdigest()}
    return {name: summary[name] for name in _STATED if name in summary}


def made_with() -> dict[str, str]:
    """What the table depends on besides the code."""
    return {name: version(name) for name in ("numba", "numpy", "torch")} | {"libc": " ".join(platform.libc_ver())}


def _all(kinds: list[str], workers: int) -> Iterator[tuple[str, str, dict[str, Any]]]:
    pairs = [(kind, world) for kind in kinds for world in WORLDS]
    with ProcessPoolExecutor(workers) as pool:
        futures = [pool.submit(fingerprint, *pair) for pair in pairs]
        for pair, future in zip(pairs, futures, strict=True):
            yield *pair, future.result()


def main() -> int:
    """Run, and compare or write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kinds", nargs="*", metavar="STRATEGY", help="by default every registered one")
    how = parser.add_mutually_exclusive_group()
    how.add_argument("--write", action="store_true", help="replace what the table says of them")
    how.add_argument("--native", action="store_true", help="this processor's own code; compares what holds on every one")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    if not options.native and not PORTABLE.items() <= os.environ.items():  # they are read when numpy and torch are loaded
        os.execve(sys.executable, [sys.executable, "-m", "tests.benchmarks.hashes", *sys.argv[1:]], os.environ | PORTABLE)
    table = json.loads(TABLE.read_text(encoding="utf-8")) if TABLE.exists() else {"runs": {}}
    # ``flower`` is what its app is: tests/flower has some
    kinds = options.kinds or [kind for kind in dict.fromkeys([*REGISTERED, *STRATEGIES]) if kind != "flower"]
    differing = 0
    for kind, world, found in _all(kinds, options.workers):
        kept = table["runs"].get(kind, {}).get(world, {})
        if options.write:
            table["runs"].setdefault(kind, {})[world] = found
        wrong = [name for name in (_ANYWHERE if options.native else _STATED) if kept.get(name) != found.get(name)]
        differing += bool(wrong)
        print(f"{kind:<10} {world:<5} {found['events']:>6} events  {'same' if not wrong else 'DIFFERS in ' + ', '.join(wrong)}")
    if options.write:
        table["made_with"] = made_with()
        TABLE.write_text(json.dumps(table, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    elif table["made_with"] != made_with():
        print(f"the table was made with {table['made_with']}, this is {made_with()}: last bits may differ")
    print(f"{differing} runs differ" if differing else "all are as they were")
    return 1 if differing and not options.write else 0


if __name__ == "__main__":
    raise SystemExit(main())
