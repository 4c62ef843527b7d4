"""Runs in which every table has its rows, for forgeries of each column."""

from typing import Any

from tests.lab.test_forgeries import ENERGY, WORLD

_COSTS = {"device": {"per_hour": 1.0, "per_gigabyte": 3.0}, "server": {"per_request": 0.01}}
_FEW = {"rounds": 3, "simulated_time": "1 h"}
_STAY = {"devices": 6, "speed": {"kind": "lognormal", "median": "40 samples/s", "spread": 2.0}}
_OUTAGE = {
    "kind": "link-outage",
    "link": "server up",
    "every": "20 s",
    "lasts": "5 s",
    "rate": "1 kbit/s",
}
RUNS: dict[str, dict[str, Any]] = {
    "energy": WORLD
    | {
        "strategy": {"kind": "fedavg", "clients_per_round": 6, "deadline": "60 s"},
        "energy": ENERGY,
        "stop": _FEW,
    },
    "costs": WORLD
    | {
        "strategy": {"kind": "fedprox", "clients_per_round": 6, "aggregation": "mean"},
        "messages": {"up": {"kind": "qsgd", "levels": 3}},
        "costs": _COSTS,
        "world": {"processes": [_OUTAGE, {"kind": "upload-slots", "slots": 2}]},
        "drift": {"kind": "label-permutation", "probability": 0.3},
        "stop": _FEW,
    },
    "hosts": WORLD
    | {
        "population": _STAY | {"host": {"number": 2, "cores": 1, "workers": 2, "start_up": "1 s"}},
        "strategy": {"kind": "ifca", "groups": 2, "clients_per_round": 6},
        "stop": _FEW,
    },
    "edges": WORLD
    | {
        "network": {
            "kind": "tree",
            "cells": 2,
            "cell": {"down": "400 kbit/s", "up": "200 kbit/s"},
            "edge": {"latency": "30 ms"},
            "device": {"down": "200 kbit/s", "up": "100 kbit/s"},
        },
        "strategy": {"kind": "hierfavg", "clients_per_round": 6, "kappa2": 2},
        "stop": _FEW,
    },
    "versions": WORLD
    | {"strategy": {"kind": "fedbuff", "concurrency": 6, "buffer": 3}, "stop": _FEW},
    "peers": WORLD
    | {"population": _STAY, "strategy": {"kind": "d-psgd", "topology": "ring"}, "stop": _FEW},
}
