"""Does the audit stay silent on every honest run? Small worlds of today's parts, drawn at
random, run and audited.

    python -m tests.benchmarks.honest_worlds --worlds 500              # so many worlds, batteries in half of them
    python -m tests.benchmarks.honest_worlds --only 17 --out /tmp/kept # one again; its run folder stays

A world is drawn by its number and ``--seed`` from the registries: a strategy with some of its
parts, a network with its protocol, availability, lifetimes, batteries with chargers, meters,
processes, hosts, drift, attacks and codecs. Those that fedsim refuses are drawn again. Prints each
alarm with its world; exit status 1 if there is any.
"""

import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import fedsim
from fedsim.lab.audited import audit_run
from fedsim.learning.spec import TRAINERS
from fedsim.plugin import World
from fedsim.strategies import STRATEGIES
from fedsim.testing import run
from tests.benchmarks.parts_matrix import OWN, PARTS, able_parts
from tests.benchmarks.script import parser

Sections = dict[str, Any]

_PEERS = ("d-psgd", "diloco", "epidemic", "gossip", "local-sgd")
_ALL_THERE = ("diloco", "local-sgd")  # their all-reduces wait for every device
_ON_EDGES = ("hierfavg",)
KINDS = sorted({*STRATEGIES.kinds} - {"flower"})
_NORMED = {"kind": "module", "factory": "tests.benchmarks.hashes:normed"}
_MLP = {"kind": "mlp", "hidden": [5]}
_LORA = _MLP | {"lora": {"rank": 2}}
_MODELS: dict[str, list[Sections]] = {
    "fedbn": [_NORMED],
    "fedper": [_MLP],
    "fedrep": [_MLP],
    "moon": [_MLP],
    "heterofl": [_MLP],
    "hetlora": [_LORA],
    "flora": [_LORA | {"train": "*"}],
}
_USUAL = [{"kind": "logistic"}, _MLP, _MLP | {"width": 0.5}, _MLP | {"train": "3.*"}, _LORA]
_KEEPING = [_MLP | {"keep": "3.*"}, _MLP | {"send": "1.*"}]
_SIZES: dict[str, Sections] = {
    "heterofl": {"sizes": [1.0, 0.5]},
    "hetlora": {"sizes": [1.0, 2.0]},
    "flora": {"sizes": [1.0, 2.0]},
}
_DEVICE = {
    "down": "400 kbit/s",
    "up": {"kind": "choice", "values": ["100 kbit/s", "30 kbit/s"]},
    "latency": "40 ms",
}
_SERVER = {"down": "1 Mbit/s", "up": "300 kbit/s"}
_CELL = {"down": "600 kbit/s", "up": "200 kbit/s"}
_TREE: Sections = {"kind": "tree", "cells": 2, "cell": _CELL, "server": _SERVER, "device": _DEVICE}
_NETWORKS: list[Sections] = [
    {"kind": "star", "server": _SERVER, "device": _DEVICE},
    {"kind": "star", "device": _DEVICE},
    {"kind": "star"},
    _TREE,
    _TREE | {"edge": {"latency": "30 ms"}},
    {"kind": "regions", "of": ["aws:eu-west-1", "aws:us-east-1"]},
]
_LISTS: dict[str, list[Any]] = {
    "availability": [
        "always",
        {"kind": "renewal", "mean_on": "60 s", "mean_off": "10 s"},
        {"kind": "diurnal", "most": 0.9, "least": 0.4, "lasts": "2 min"},
    ],
    "speed": [
        "20 samples/s",
        {"kind": "lognormal", "median": "20 samples/s", "spread": 1.8},
        {"kind": "uniform", "low": "5 samples/s", "high": "40 samples/s"},
    ],
    "drift": [
        {"kind": "swap-all", "probability": 0.4},
        {"kind": "label-permutation", "probability": 0.5},
        {"kind": "swap-part", "probability": 0.3},
        {"kind": "incremental", "at": {"every_rounds": 1}, "shares": [0.5, 0.75, 1.0]},
    ],
    "attack": [
        {"kind": "sign-flip", "factor": 3.0},
        "gaussian",
        {"kind": "scaled", "factor": 4.0},
        "label-flip",
    ],
    "down": [
        "plain",
        "float16",
        {"kind": "plain", "dtype": "float16"},
        {"kind": "int8", "bucket": 64},
    ],
    "deadline": [
        "40 s",
        {"kind": "relative", "times": 3.0},
        {"kind": "quantile", "most": "60 s", "over": 5},
    ],
    "local": [
        {"epochs": {"kind": "choice", "values": [1, 3]}},
        {"steps": {"kind": "choice", "values": [1, 4, 9]}},
        {"batch_size": {"kind": "choice", "values": [4, 40]}},
    ],
}
_PROCESSES: list[Sections] = [
    {"kind": "link-outage", "link": "server up", "every": "30 s", "lasts": "5 s"},
    {
        "kind": "link-outage",
        "link": "device 3 up",
        "every": "20 s",
        "lasts": "5 s",
        "rate": "1 kbit/s",
    },
    {"kind": "upload-slots", "slots": 2},
    {"kind": "heat", "warms": "20 s", "slow_at": 0.5, "fast_at": 0.4},
    {"kind": "edge-outage", "edge": 1, "every": "40 s", "lasts": "10 s"},
    {"kind": "tests.benchmarks.honest_worlds:beacon", "every": 7.0},
]


def beacon(world: World, every: float) -> Any:
    """A process of one's own: it says something from time to time, and slows a device."""
    number = 0
    while True:
        yield world.timeout(every)
        world.emit("beacon", number=number, device=2)
        number += 1
        with world.slow(2, 0.5):
            yield world.timeout(1.0)


def _battery(draw: random.Random) -> Sections:
    charging = [
        {"kind": "never"},
        {"kind": "renewal", "mean_on": "20 s", "mean_off": "20 s"},
        {"kind": "daily", "begins": "0 h", "lasts": "1 h", "chance": 0.5},
    ]
    return {
        "capacity": {"kind": "uniform", "low": "30 J", "high": "400 J"},
        "initial": {"kind": "uniform", "low": 0.2, "high": 1.0},
        "charge": draw.choice(["2 W", "6 W"]),
        "charging": draw.choice(charging),
    }


def _energy(draw: random.Random, batteries: bool) -> Sections:
    told: Sections = {
        "idle": "0.5 W",
        "compute": {"kind": "uniform", "low": "2 W", "high": "4 W"},
        "send": "1 W",
    }
    more: Sections = {
        "tail": "1 W",
        "tail_lasts": "3 s",
        "send_byte": "1 J/MB",
        "server": {"idle": "20 W", "byte": "1 Wh/GB", "update": "2 J"},
        "carbon": {"zones": [{"intensity": "400 g/kWh", "share": 0.5}, {"intensity": "100 g/kWh"}]},
    }
    told |= {key: more[key] for key in more if draw.random() < 0.5}
    return told | ({"battery": _battery(draw)} if batteries else {})


def _population(draw: random.Random, kind: str, batteries: bool) -> Sections:
    devices = draw.choice([8, 12, 15])
    found: Sections = {
        "devices": devices,
        "speed": draw.choice(_LISTS["speed"]),
        "jitter": draw.choice([0.0, 0.2]),
    }
    if kind in _ALL_THERE:
        return found | {"devices": 6}
    found["availability"] = draw.choice(_LISTS["availability"])
    if draw.random() < 0.2:
        found["arrivals"] = {"kind": "poisson", "rate": "300 /h", "newcomers": 3}
    if draw.random() < 0.2:
        found["departures"] = {"kind": "exponential", "mean_stay": "10 min", "share": 0.3}
    if draw.random() < 0.2:
        found["slow_phases"] = {"factor": 0.4, "mean_normal": "60 s", "mean_slow": "20 s"}
    if draw.random() < 0.2:
        found["stragglers"] = {"share": 0.3, "factor": 0.5}
    if draw.random() < 0.3 and not batteries:
        limits = [{"workers": 2}, {"workers": 3, "start_up": "2 s"}, {"start_up": "1 s"}, {}]
        found["host"] = {"number": draw.choice([1, 2]), "cores": draw.choice([1, 2])} | draw.choice(
            limits
        )
    return found


def _strategy(draw: random.Random, kind: str) -> Sections:
    cohort = {"clients_per_round": draw.choice([4, 6])}
    found: Sections = (
        {"kind": kind}
        | OWN.get(kind, {} if kind in (*_PEERS, "cata-fed") else cohort)
        | _SIZES.get(kind, {})
    )
    if kind == "cata-fed":
        found |= {"clients_per_round": 4, "clusters": 2, "smallest_part": 4, "deadline": "20 s"}
    if kind in _PEERS and kind not in _ALL_THERE:
        found["deadline"] = "40 s"
    if kind in ("d-psgd", "gossip") and draw.random() < 0.7:
        found["topology"] = draw.choice(
            ["complete", {"kind": "random-regular", "parameters": {"d": 4}, "every": 2}, "star"]
        )
    if kind in _ALL_THERE:
        found |= {"collective": draw.choice(["ring", "tree", "butterfly"])}
        found |= draw.choice([{}, {"fragments": 2}, {"overlap": True}, {"local_steps": 3}])
    fields = STRATEGIES.spec(kind).model_fields
    able = able_parts(kind)
    for part in able:
        if part != "codec" and draw.random() < (0.1 if part == "secure_aggregation" else 0.25):
            found[part] = draw.choice(PARTS[part])
    if "over_selection" in fields and draw.random() < 0.2:
        found["over_selection"] = 1.5
    if "deadline" in fields and "deadline" not in found and draw.random() < 0.5:
        found["deadline"] = draw.choice(_LISTS["deadline"])
    if "local_epochs" in fields and "local_epochs" not in found and kind not in _PEERS:
        found["local_epochs"] = draw.choice([1, 2])
    return found


def world(number: int, seed: int) -> Sections:
    """The sections of a world, whether fedsim takes them or not."""
    draw = random.Random(f"{seed}/{number}")
    kind = KINDS[number % len(KINDS)]
    batteries = number // len(KINDS) % 2 == 0 and kind not in _PEERS
    found: Sections = {
        "name": f"honest {number}",
        "seed": draw.randrange(1000),
        "data": {
            "source": "digits",
            "partition": draw.choice([{"kind": "dirichlet", "alpha": 1.0}, "rotations", "iid"]),
        },
        "model": draw.choice(
            _MODELS.get(kind, _USUAL + (_KEEPING if kind in ("fedavg", "fedprox") else []))
        ),
        "training": {"lr": 0.05, "batch_size": draw.choice([8, 32])},
        "population": _population(draw, kind, batteries),
        "network": draw.choice(_NETWORKS[4:5] if kind in _ON_EDGES else _NETWORKS),
        "strategy": _strategy(draw, kind),
        "stop": {
            "rounds": 8 if kind in ("fedasync", "fedat", "fedbuff") else 3,
            "simulated_time": "2 h",
        },
    }
    found["network"] = found["network"] | {"protocol": draw.choice(["fluid", "tcp", "bbr"])}
    found["messages"] = {}
    if draw.random() < 0.3 and kind != "local":
        found["messages"]["up"] = draw.choice([*PARTS["codec"], {"kind": "plain", "size": "3 kB"}])
    if draw.random() < 0.3 and kind not in (*_PEERS, "local"):
        found["messages"]["down"] = draw.choice(_LISTS["down"])
    if kind not in _PEERS and (batteries or draw.random() < 0.3):
        found["energy"] = _energy(draw, batteries)
    if draw.random() < 0.2:
        found["drift"] = draw.choice(_LISTS["drift"])
    if draw.random() < 0.15:
        found["malicious"] = {"attack": draw.choice(_LISTS["attack"]), "devices": [1, 4]}
    if draw.random() < 0.3:
        found["world"] = {"processes": draw.sample(_PROCESSES, draw.choice([1, 1, 2]))}
    if draw.random() < 0.2:
        found["costs"] = {
            "device": {"per_hour": 1.0, "per_gigabyte": 3.0, "per_task": 0.1},
            "server": {"per_request": 0.01},
        }
    if draw.random() < 0.2:
        found["meters"] = [{"kind": "tests.own_parts:Moved"}]
    if draw.random() < 0.1:
        found["learning"] = "off"
    if draw.random() < 0.2 and "torch" in TRAINERS.kinds:
        found["training"] = {"kind": "torch", "optimizer": "Adam", "lr": 0.01, "batch_size": 16}
    if draw.random() < 0.1:
        found["server"] = {"patience": "5 s"}
    found["training"]["last_batch"] = draw.choice(["keep", "drop", "merge"])
    if kind == "hierfavg" and draw.random() < 0.5:
        found["strategy"] |= {"kappa1": draw.choice([1, 30]), "local_epochs": 1}
    if draw.random() < 0.2:
        found["population"]["local"] = draw.choice(_LISTS["local"])
    return found


def honest(number: int, seed: int, folder: Path) -> tuple[str, list[str]]:
    """``refused``, ``failed``, ``silent`` or ``alarm``, and why."""
    sections = world(number, seed)
    try:
        run(sections, folder)
    except fedsim.ScenarioError as error:
        return "refused", [str(error)]
    except fedsim.FedsimError as error:
        return "failed", [str(error)]
    findings = audit_run(folder, allow_code=True).findings
    alarms = [
        f"{name}: {problem}" for name, problems in findings.items() for problem in problems[:2]
    ]
    return ("alarm" if alarms else "silent"), alarms


def main() -> int:
    """Run worlds until so many are not refused, and print the alarms."""
    arguments = parser(__doc__, worlds=60, seed=1, first=0)
    arguments.add_argument("--only", type=int, action="append")
    arguments.add_argument("--out", type=Path, help="where run folders with alarms stay")
    chosen = arguments.parse_args()
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    number = chosen.first
    with tempfile.TemporaryDirectory() as place:
        while counts["silent"] + counts["alarm"] < chosen.worlds:
            if chosen.only and number >= len(chosen.only):
                break
            case = chosen.only[number] if chosen.only else number
            folder = Path(place) / "run"
            verdict, why = honest(case, chosen.seed, folder)
            counts[verdict] += 1
            if "battery" in world(case, chosen.seed).get("energy", {}) and verdict in (
                "silent",
                "alarm",
            ):
                counts["with batteries"] += 1
            if verdict in ("alarm", "failed"):
                print(
                    f"{verdict}: world {case}",
                    json.dumps(world(case, chosen.seed)),
                    *why[:8],
                    sep="\n    ",
                    flush=True,
                )
            if verdict == "refused":
                reasons[why[0][:90]] += 1
            if chosen.out and folder.exists() and (verdict == "alarm" or chosen.only):
                shutil.copytree(folder, chosen.out / f"world-{case}", dirs_exist_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            number += 1
    print(dict(counts))
    for reason, count in reasons.most_common(15):
        print(f"  refused {count}: {reason}")
    return 1 if counts["alarm"] else 0


if __name__ == "__main__":
    sys.exit(main())
