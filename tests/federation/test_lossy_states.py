"""Lossy codecs with strategies whose devices keep a state that the server adds up too: both have the same, and it learns."""

from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.learning.refs import Ref
from tests.strategies.clustered import Sections, played, weights, world

DATA = {"source": "digits", "partition": {"kind": "dirichlet", "alpha": 0.3}}
LOSSY: list[Sections] = [
    {"kind": "top-k", "share": 0.05},
    {"kind": "random-k", "share": 0.1},
    {"kind": "qsgd", "levels": 1},
    {"kind": "sign"},
    {"kind": "int8"},
    {"kind": "float16"},
]
SERVERS = {"scaffold": ("control", "control"), "feddyn": ("moved", "moved"), "feddr": ("z", "model"), "fpfc": ("model", "own")}
"""The state of a device, and the server's."""


def scenario(strategy: Sections, up: Sections, rounds: int) -> Sections:
    strategy = {"clients_per_round": 5, "local_epochs": 2} | strategy
    return world(DATA, 12, strategy, rounds, messages={"up": up}, evaluation={"every": rounds})


@pytest.mark.parametrize(
    ("kind", "up"),
    [(kind, up) for kind in SERVERS for up in (LOSSY if kind == "scaffold" else LOSSY[:3])],
    ids=lambda value: value["kind"] if isinstance(value, dict) else value,
)
def test_what_the_server_has_is_what_its_devices_have(kind: str, up: Sections) -> None:
    run, _ = played(scenario({"kind": kind}, up, 5))
    on_device, on_server = SERVERS[kind]
    devices, state = run.dispatch.snapshot()["devices"]["states"], run.strategy.state[on_server]
    own = {number: kept[on_device] for number, kept in devices.items() if on_device in kept}
    assert len(own) >= 5
    if kind == "fpfc":
        pairs = [(state[number], model) for number, model in own.items()]
        assert all(np.array_equal(*weights(run, pair)) for pair in pairs)
        return
    first: list[Ref] = [run.learner.initial(0)] if kind == "feddr" else []
    values = weights(run, [state, *own.values(), *first])
    total = sum(values[1 : 1 + len(own)]) + (12 - len(own)) * (values[-1] if first else 0.0)
    assert values[0] == pytest.approx(total / 12, abs=1e-5)


@pytest.mark.parametrize(
    ("strategy", "up"),
    [
        ({"kind": "fedavg"}, {"kind": "qsgd", "levels": 1, "error_feedback": True}),
        ({"kind": "scaffold"}, {"kind": "qsgd", "levels": 1}),
        ({"kind": "scaffold"}, {"kind": "random-k", "share": 0.2}),
    ],
    ids=str,
)
def test_what_is_left_out_does_not_grow(strategy: Sections, up: Sections) -> None:
    found = fedsim.run(fedsim.Scenario(**scenario(strategy, up, 30)), executor="inline").summary["accuracy"]["final"]
    assert found > 0.7


@pytest.mark.parametrize(
    ("up", "value"),
    [({"kind": "top-k", "error_feedback": False}, "false"), ({"kind": "random-k", "error_feedback": True}, "true")],
)
@pytest.mark.parametrize("kind", ["feddyn", "feddr"])
def test_error_feedback_that_changes_nothing_is_refused(kind: str, up: dict[str, Any], value: str) -> None:
    with pytest.raises(
        fedsim.ScenarioError, match=f"messages.up has error_feedback = {value}, and with the strategy '{kind}' that"
    ):
        fedsim.Scenario(strategy={"kind": kind}, messages={"up": up})
    fedsim.Scenario(strategy={"kind": kind}, messages={"up": up["kind"]})
