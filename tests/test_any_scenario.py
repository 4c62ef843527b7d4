"""Whatever a scenario says: it is refused with a message that names the key, or runs and passes the audit. No traceback ever.

200 scenarios here, always the same; ``FEDSIM_SCENARIOS=5000 pytest tests/test_any_scenario.py`` tries more.
"""

import json
import os
import tempfile
from pathlib import Path
from typing import Any

import tomli_w
from click.testing import CliRunner
from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from fedsim.cli import main
from fedsim.records.audit import audit
from fedsim.testing import eventful_world
from tests.test_runs import STRATEGIES

MANY = int(os.environ.get("FEDSIM_SCENARIOS", "200"))

NUMBERS = [0, 1, 2, 3, 7, 30, -1, 0.0, 0.5, 1.5, -0.1, 1e30, float("inf"), float("nan"), "many", True, [], {}, "3 s"]
TIMES = ["0 s", "1 s", "20 s", "3 min", "1 h", "-1 s", "3", 5, 0, -2, "5 apples", "nan s", "inf s", "", [], "1 s "]
RATES = ["1 Mbit/s", "8 kbit/s", "0 bit/s", "-1 bit/s", "1 GB/s", "fast", 1000, "inf bit/s", {"kind": "constant"}, "5 s"]
KINDS = [
    "fedavg",
    "fedbuff",
    "star",
    "renewal",
    "swap-all",
    "swap-part",
    "digits",
    "iid",
    "nonsense",
    "",
    "a:b",
    7,
    "\x00",
    "é",
]
KEYS = {
    "seed": NUMBERS,
    "name": ["x", "", "a" * 300, "<b>\n'\"", 5, "\x1b[31m"],
    "learning": ["on", "off", "maybe", 1],
    "data.source": ["digits", "mnist", "nonsense", {"kind": "synthetic"}, 5, {"kind": "npz", "file": "../../etc/passwd"}],
    "data.partition": [
        *("iid", "rotations", "nonsense", {"kind": "label-groups", "groups": 3}, {"kind": "dirichlet", "alpha": 0.0}),
        *(
            {"kind": "power-law"},
            {"kind": "permutations"},
            {"kind": "class-imbalance"},
            {"kind": "file", "file": "no.json"},
            {},
        ),
    ],
    "data.normalise": ["pixel", "standardise", "none", "x"],
    "data.root": ["/nowhere", "", 5],
    "model.kind": ["logistic", "mlp", "cnn", "size", "module", *KINDS],
    "model.hidden": [[8], [], [0], [-3], "x", [1e9]],
    "training.lr": NUMBERS,
    "training.batch_size": NUMBERS,
    "training.momentum": NUMBERS,
    "training.device": ["cpu", "cuda", "cuda:9", "tpu", 5],
    "population.devices": [*NUMBERS, 24, 5, 100],
    "population.speed": ["10 samples/s", "0 samples/s", "inf samples/s", "fast", {"kind": "lognormal"}, {"kind": "x"}, 3],
    "population.jitter": NUMBERS,
    "population.availability": [{"kind": "always"}, {"kind": "flash"}, {"kind": "renewal"}, "always", 5, None]
    + [{"kind": "renewal", "mean_on": on, "mean_off": off} for on in TIMES[:5] for off in TIMES[:4]],
    "population.arrivals": [{"kind": "poisson", "rate": "5 /h"}, {"kind": "poisson", "rate": "-5 /h"}, {"kind": "poisson"}, 5]
    + [{"kind": "schedule", "times": times} for times in (["1 s"], ["2 s", "1 s"], [], ["x"], "1 s")],
    "population.departures": [{"kind": "exponential", "mean_stay": time} for time in TIMES]
    + [{"kind": "schedule", "times": ["1 s"], "devices": [device]} for device in (0, 23, 99, -1)],
    "population.samples": [{"low": 1, "high": 9}, {"low": 9, "high": 1}, "long-tail", {"low": 0, "high": 0}, 5],
    "network.server.down": RATES,
    "network.device.up": RATES,
    "network.device.latency": TIMES,
    "network.kind": ["star", "tree", "graph", "ring"],
    "drift.kind": ["swap-all", "swap-part", "incremental", "rotation", "label-permutation", *KINDS],
    "drift.probability": NUMBERS,
    "drift.at": [{"rounds": [0, 1]}, {"every": "5 s"}, {"times": ["1 s"]}, {}, {"rounds": [3, 1]}, {"every": "0 s"}, 5],
    "drift.among": ["all", "selected", "none"],
    "messages.up.dtype": ["int8", "float32", "bits"],
    "strategy.kind": KINDS,
    "strategy.clients_per_round": NUMBERS,
    "strategy.groups": NUMBERS,
    "strategy.local_epochs": NUMBERS,
    "strategy.deadline": TIMES,
    "strategy.relative_deadline": NUMBERS,
    "strategy.over_selection": NUMBERS,
    "strategy.retry": TIMES,
    "strategy.concurrency": NUMBERS,
    "strategy.eta_g": NUMBERS,
    "strategy.nonsense": NUMBERS,
    "evaluation.every": NUMBERS,
    "evaluation.from_round": NUMBERS,
    "stop.rounds": [1, 2, 3, 0, -1, "x", 2.5],
    "stop.simulated_time": TIMES,
    "stop.accuracy": NUMBERS,
    "checkpoint.rounds": NUMBERS,
    "checkpoint.time": TIMES,
    "nonsense.key": [1],
}

change = st.sampled_from(sorted(KEYS)).flatmap(lambda key: st.tuples(st.just(key), st.sampled_from(KEYS[key])))
changes = st.lists(change, min_size=1, max_size=4)
SECTIONS = ("strategy.", "population.", "data.", "drift.", "network.", "stop.", "training.")


@settings(max_examples=MANY, derandomize=MANY == 200, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    strategy=st.sampled_from(STRATEGIES),
    seed=st.integers(0, 99),
    changes=changes,
    learning=st.sampled_from(["off", "off", "on"]),
)
@example(strategy=STRATEGIES[0], seed=1, changes=[("strategy.kind", "a:b")], learning="off")
@example(strategy=STRATEGIES[0], seed=0, changes=[("population.speed", "0 samples/s")], learning="off")
@example(strategy=STRATEGIES[0], seed=1, changes=[("name", "\x1b[31m")], learning="off")
def test_it_runs_or_is_refused(strategy: dict[str, Any], seed: int, changes: list[tuple[str, Any]], learning: str) -> None:
    sections = eventful_world(strategy, seed=seed, rounds=2) | {"learning": learning}
    sections["stop"]["simulated_time"] = "2 h"
    for path, value in changes:
        put(sections, path.split("."), value)
    with tempfile.TemporaryDirectory() as folder:
        scenario, out = Path(folder) / "scenario.toml", Path(folder) / "out"
        scenario.write_text(tomli_w.dumps(json_like(sections)), encoding="utf-8")
        told = CliRunner().invoke(main, ["run", str(scenario), "--out", str(out), "--quiet", "--executor", "inline"])
        event(f"exit status {told.exit_code}")
        assert "Traceback" not in told.output
        if told.exit_code == 0:
            assert not any(audit(out).values())
        elif told.exit_code == 2:
            assert not out.exists(), "something was written before it was refused"
            assert told.output.startswith("fedsim: ")
            names = {part for path, _ in changes for part in (path.rpartition(".")[2], path.split(".")[0])}
            assert any(name in told.output for name in (*names, *SECTIONS)), told.output
        else:
            assert told.exit_code == 1, told.output
            assert "finite" in told.output, f"{told.exit_code}: {told.output} {told.exception!r}"  # the training diverged


def put(table: Any, keys: list[str], value: Any) -> None:
    for key in keys[:-1]:
        if not isinstance(table.get(key), dict):
            table[key] = {}
        table = table[key]
    table[keys[-1]] = value


def json_like(value: Any) -> Any:
    """What TOML can hold: no None."""
    if isinstance(value, dict):
        return {key: json_like(item) for key, item in value.items() if item is not None}
    return [json_like(item) for item in value] if isinstance(value, list) else json.loads(json.dumps(value))
