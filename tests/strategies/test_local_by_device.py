"""Local epochs, steps, batch sizes and learning rates by device, against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.common.training import Batching, Training
from fedsim.testing import assert_same_run, eventful_world, go_on, run, run_until
from fedsim.world.own_training import OwnTraining
from tests.strategies.runs import model_after, ran, trainings
from tests.strategies.worlds import curved

FEDAVG: dict[str, Any] = {"kind": "fedavg", "aggregation": "mean"}


def with_own(sections: dict[str, Any], **local: Any) -> dict[str, Any]:
    """The scenario with own local trainings of its devices."""
    return sections | {"population": sections["population"] | {"local": local}}


def test_the_mean_is_of_each_devices_own_training(tmp_path: Path) -> None:
    """Pulls of devices enter a step linearly, with equal curvature: the model of a round is the
    mean of what each device would reach, and device d alone is found by its share in it.
    """
    sections = curved(tmp_path, FEDAVG, 1, 5)
    alike = with_own(sections, epochs=[5, 5, 5, 5], lr=0.1, batch_size=10)
    np.testing.assert_array_equal(model_after(alike), model_after(sections))
    slower = [
        with_own(sections, epochs=[5] * 4, lr=[0.1] * device + [0.01] + [0.1] * (3 - device))
        for device in range(4)
    ]
    both = with_own(sections, lr=[0.01] * 4)
    changes = [model_after(one) - model_after(sections) for one in slower]
    whole = model_after(both) - model_after(sections)
    np.testing.assert_allclose(sum(changes), whole, atol=1e-5)
    assert abs(whole).max() > 1e-2


def test_epochs_are_steps_where_a_batch_is_all_data(tmp_path: Path) -> None:
    sections = curved(tmp_path, FEDAVG, 1, 5)
    by_epochs = model_after(with_own(sections, epochs=[1, 2, 3, 4]))
    by_steps = model_after(with_own(sections, steps=[1, 2, 3, 4]))
    np.testing.assert_array_equal(by_epochs, by_steps)
    assert not np.array_equal(by_epochs, model_after(sections))


def test_each_device_takes_the_time_of_its_own_training(tmp_path: Path) -> None:
    """Ten samples at 100 samples/s are 0.1 s a pass; steps are of the device's own batches."""
    sections = curved(tmp_path, FEDAVG, 1, 5)
    table = "device,epochs,steps,batch\n0,3,,\n1,,4,5\n2,,1,20\n3,,,\n"
    (tmp_path / "own.csv").write_text(table)
    columns = {"epochs": "epochs", "steps": "steps", "batch_size": "batch"}
    local = {
        key: {"file": str(tmp_path / "own.csv"), "column": column}
        for key, column in columns.items()
    }
    folder = ran(with_own(sections, **local), tmp_path / "run")
    ends = {end["device"]: end["time"] for end in trainings(folder)}
    begins = {
        event["device"]: event["time"]
        for event in folder.rows("events.parquet")
        if event["kind"] == "step-start" and event["step"] == "train"
    }
    durations = [ends[device] - begins[device] for device in range(4)]
    assert durations == pytest.approx([0.3, 0.2, 0.1, 0.5], abs=1e-6)
    loaded = fedsim.load_run(tmp_path / "run")
    assert loaded.devices["local_epochs"].tolist()[0] == 3
    assert np.isnan(loaded.devices["local_epochs"].to_numpy(float)[1:]).all()


def test_a_step_takes_the_own_batch_and_a_drop_its_rest() -> None:
    zeros = np.zeros(2, dtype=np.int64)
    own = OwnTraining(zeros, np.array([0, 7]), np.array([4, 0]), np.zeros(2))
    assert own.with_batch(0, Training(None)).batching(Batching(10)).size == 4
    assert own.with_batch(1, Training(None)).batching(Batching(10)).size == 10
    passes = own.passes(slice(0, 2), 3, np.array([30, 30]), Batching(10))
    assert passes.tolist() == [3.0, 7 / 3]


@pytest.mark.parametrize("kind", ["fedavg", "fedbuff"])
def test_a_killed_run_goes_on_with_the_own_trainings(kind: str, tmp_path: Path) -> None:
    sections = eventful_world({"kind": kind}, rounds=4)
    local = {
        "epochs": {"kind": "choice", "values": [1, 2, 3]},
        "batch_size": {"kind": "choice", "values": [4, 8]},
        "lr": {"kind": "lognormal", "median": 0.05, "spread": 1.5},
    }
    sections["population"] |= {"local": local}
    run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", 60) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


PHONES = {"devices": 4, "device": ["phone-low", "phone-mid", "phone-mid", "phone-high"]}


def test_values_by_kind_of_device(tmp_path: Path) -> None:
    sections = curved(tmp_path, FEDAVG, 1, 5) | {"population": PHONES}
    local = {"epochs": {"phone-low": 1, "default": 2}, "lr": {"phone-high": 0.02}}
    ran(with_own(sections, **local), tmp_path / "run")
    devices = fedsim.load_run(tmp_path / "run").devices
    assert devices["local_epochs"].tolist() == [1, 2, 2, 2]
    assert devices["lr"].to_numpy(float)[3] == 0.02
    assert np.isnan(devices["lr"].to_numpy(float)[:3]).all()


REFUSED = [
    ({"epochs": [1, 2]}, "lists 2 values for 4 devices"),
    ({"epochs": 0}, "it must be 1 or more"),
    ({"epochs": {"phone-lo": 1}}, "did you mean 'phone-low'"),
    ({"epochs": {"laptop": 1}}, "no device is of that kind"),
    ({"epochs": 2, "steps": 3}, "allowed is one of them"),
    ({}, "is empty; allowed are epochs, steps, batch_size and lr"),
]


@pytest.mark.parametrize(("local", "reason"), REFUSED)
def test_own_trainings_that_are_refused(local: dict[str, Any], reason: str) -> None:
    sections = {"population": PHONES | {"local": local}, "learning": "on"}
    sections |= {"data": {"source": "digits"}, "strategy": {"clients_per_round": 2}}
    with pytest.raises(ScenarioError, match=reason):
        fedsim.Simulation(fedsim.Scenario(**sections))


STRATEGIES = [
    ("cata-fed", {}, "epochs", "as many epochs as fit"),
    ("fedrep", {}, "steps", "FedRep"),
    ("fednova", {}, "lr", "one learning rate"),
    ("pfedme", {}, "epochs", "local_rounds"),
    ("rfedavg", {}, "batch_size", "all of its data"),
    ("diloco", {"local_steps": 3}, "steps", "local_steps"),
    ("gossip", {"local_epochs": 0}, "epochs", "nothing is trained"),
    ("flower", {"app": "app.py"}, "lr", "brings its own"),
]


@pytest.mark.parametrize(("kind", "keys", "key", "reason"), STRATEGIES)
def test_strategies_that_refuse_a_key(
    kind: str, keys: dict[str, Any], key: str, reason: str
) -> None:
    sections = {"population": {"devices": 40, "local": {key: 1}}}
    with pytest.raises(ScenarioError, match=reason):
        fedsim.Scenario(**sections, strategy={"kind": kind} | keys)


def test_the_one_value_of_all_devices_is_no_table() -> None:
    with pytest.raises(ScenarioError, match=r"\[population.local\]"):
        fedsim.Scenario(strategy={"local_epochs": {"phone-low": 2}})
    with pytest.raises(ScenarioError, match=r"\[population.local\]"):
        fedsim.Scenario(training={"lr": [0.1, 0.2]})
