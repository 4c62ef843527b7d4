"""Devices with too little memory for the training: refused, with fewer layers, or failing."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError
from fedsim.common.training import Training, union
from fedsim.lab.audit import audit
from fedsim.lab.whole_forecast import forecast_lines
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.testing import assert_same_run, assert_sound, go_on, quiet_world, run, run_until
from tests.lab.test_audit import read, reseal
from tests.lab.test_audit_fields import write
from tests.test_runs import STRATEGIES
from tests.world.test_device_kinds import world

Sections = dict[str, Any]
ZERO = {"like": "raspberry-pi-zero-2w", "memory_share": 1.0}
KINDS = {"small": ZERO | {"memory": "100 kB"}, "tiny": ZERO | {"memory": "9 kB"}}
LAST = 200 * 10 + 10  # numbers of the last layer
WHOLE = 64 * 200 + 200 + LAST


def mixed(short: str, **others: Any) -> Sections:
    """A third of the devices trains all layers, a third has memory for the last, a third for none."""
    names = ["laptop", "small", "tiny"] * 4
    return world(device=names, kinds=KINDS, short_of_memory=short) | others


def built(sections: Sections) -> Run:
    return Run(fedsim.Scenario(**sections), Simulation())


def outcomes(folder: Path) -> set[tuple[int, str, int | None]]:
    """Index of the kind, outcome and layers of each training."""
    found = set()
    for event in RunFolder(folder).events:
        if event["kind"] == "step-end" and event["step"] == "train":
            found.add((event["device"] % 3, event["outcome"], event["data"].get("layers")))
    return found


def test_the_memory_of_the_last_layer_by_hand() -> None:
    """Its input and the logarithms of its outputs are kept; gradients are of its numbers alone."""
    rooflines = built(mixed("fewer-layers")).population.rooflines
    assert rooflines is not None
    batch = 10
    whole = rooflines.needed(Training(None), 120)
    last = rooflines.needed(Training(None, layers=1), 120)
    kept = 4 * (200 + 10) + 8  # with the target, int64
    assert last == 4 * (WHOLE + LAST) + batch * kept
    assert whole == 4 * 2 * WHOLE + batch * (4 * 64 + 4 * 200 + 4 * 10 + 8)


@pytest.mark.parametrize(
    ("short", "expected"),
    [
        ("fail", {(0, "done", None), (1, "memory", None), (2, "memory", None)}),
        ("refuse", {(0, "done", None)}),
        ("fewer-layers", {(0, "done", None), (1, "done", 1), (2, "memory", None)}),
    ],
)
def test_each_treatment(
    short: str, expected: set[tuple[int, str, int | None]], tmp_path: Path
) -> None:
    sections = mixed(short)
    run(sections, tmp_path / "r")
    assert outcomes(tmp_path / "r") == expected
    folder = assert_sound(tmp_path / "r")
    arrivals = [row["arrival"] for row in folder.devices]
    never = [device for device in range(12) if np.isinf(arrivals[device])]
    assert never == [device for device in range(12) if device % 3 and short == "refuse"]
    assert run_until(sections, tmp_path / "cut", 25) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "r", tmp_path / "cut")


def test_fewer_layers_take_less_time_and_leave_the_others_as_they_were(tmp_path: Path) -> None:
    sections = mixed("fewer-layers")
    population = built(sections).population
    small = Training(None, layers=1)
    assert population.training_s(1, small, 120) < population.training_s(1, Training(None), 120)
    alone = sections | {"learning": "on", "stop": {"rounds": 1}}
    alone["population"] = {"devices": 2, "device": "small"} | {
        key: sections["population"][key] for key in ("kinds", "short_of_memory")
    }
    alone["strategy"] = {"kind": "fedavg", "clients_per_round": 2}
    run(alone, tmp_path / "r")
    of_last = alone | {"model": alone["model"] | {"train": ["3.*"]}}
    run(of_last, tmp_path / "last")
    models = RunFolder(tmp_path / "r").models()["global"]
    expected = RunFolder(tmp_path / "last").models()["global"]
    assert models["3.weight"] == pytest.approx(expected["3.weight"], abs=1e-6)
    run(alone | {"training": {"lr": 1e-30}}, tmp_path / "still")
    first = RunFolder(tmp_path / "still").models()["global"]
    assert models["1.weight"] == pytest.approx(first["1.weight"], abs=0)
    assert np.abs(models["3.weight"] - first["3.weight"]).max() > 1e-3


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["kind"])
def test_every_strategy_goes_on_with_fewer_layers(strategy: Sections, tmp_path: Path) -> None:
    sections = quiet_world(strategy, rounds=2)
    del sections["population"]["speed"]
    small = ZERO | {"flops": "1 MFLOP/s", "bandwidth": "10 MB/s"}
    kinds = {
        "large": small | {"memory": "1 MB"},
        "small": small | {"memory": "20 kB"},
        "tiny": small | {"memory": "1 kB"},
    }
    sections["population"] |= {
        "device": ["large", "small", "small", "tiny"] * 6,
        "kinds": kinds,
        "short_of_memory": "fewer-layers",
    }
    sections["model"] = {"kind": "mlp", "hidden": [40]}
    run(sections, tmp_path / "r")
    folder = assert_sound(tmp_path / "r")
    layers = set()
    for event in folder.events:
        if event["kind"] == "step-end" and event["step"] == "train":
            layers.add(event["data"].get("layers"))
    assert layers <= {None, 1}
    assert 1 in layers or strategy["kind"] == "rfedavg"  # which selects large ones alone here


def test_layers_that_fit_do_not_depend_on_simulated_times() -> None:
    """A deployment at the pace of the real devices forgets the times of kinds, not their memory."""
    built_run = built(mixed("fewer-layers"))
    fewer = built_run.fewer_layers
    assert fewer is not None
    trainings = [fewer.limit(device, Training(None)) for device in range(3)]
    built_run.population.rooflines = None
    assert [fewer.limit(device, Training(None)) for device in range(3)] == trainings
    assert [training.layers for training in trainings] == [None, 1, None]


def test_a_forged_count_of_layers_is_found(tmp_path: Path) -> None:
    run(mixed("refuse"), tmp_path / "r")
    rows = read(tmp_path / "r", files.EVENTS)
    row = next(row for row in rows if row["kind"] == "step-end" and row["step"] == "train")
    row["data"] = json.dumps(json.loads(row["data"]) | {"layers": 1})
    write(tmp_path / "r", rows)
    reseal(tmp_path / "r")
    findings = audit(tmp_path / "r")
    assert findings["fewer layers were trained only where the scenario allows it"]


def test_check_says_which_kinds_cannot() -> None:
    def lines(short: str) -> list[str]:
        forecast = forecast_lines(fedsim.Scenario(**mixed(short)), Inline(), 0.0)
        return [line for line in forecast if "devices of kind" in line]

    takes = "of kind '{}' have {} for a training that takes 131 kB: "
    small = "4 of 4 devices " + takes.format("small", "100 kB")
    tiny = "4 of 4 devices " + takes.format("tiny", "9 kB")
    fail = "their tasks end for lack of memory"
    refuse = "they are never admitted"
    assert lines("fail") == [small + fail, tiny + fail]
    assert lines("refuse") == [small + refuse, tiny + refuse]
    assert lines("fewer-layers") == [small + "they train the last 1 of 2 layers", tiny + fail]


@pytest.mark.parametrize(
    ("sections", "message"),
    [
        (
            {"model": {"kind": "size", "bytes": "4 MB"}},
            "short_of_memory is 'fewer-layers', and model.kind is 'size', which has no layers",
        ),
        ({"population": {"short_of_memory": "refuse"}}, "'short_of_memory' is 'refuse'"),
    ],
)
def test_what_is_refused(sections: Sections, message: str) -> None:
    with pytest.raises(ScenarioError, match=message):
        built(mixed("fewer-layers", **sections))


def test_devices_are_refused_by_the_size_of_their_kind(tmp_path: Path) -> None:
    """A small device trains a narrow model, for which its memory suffices."""
    widths = {"laptop": 1.0, "small": 0.3, "tiny": 0.3}
    sections = mixed("refuse")
    sections["strategy"] = {"kind": "heterofl", "clients_per_round": 5, "sizes": widths}
    run(sections, tmp_path / "r")
    assert outcomes(tmp_path / "r") == {(0, "done", None), (1, "done", None)}


def test_ranges_join() -> None:
    assert union(((0, 3), (7, 9)), ((2, 5), (9, 10))) == ((0, 5), (7, 10))
    assert union((), ()) == ()
