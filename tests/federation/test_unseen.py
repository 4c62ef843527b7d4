"""Devices that are tested and never train, against runs in which they do not exist."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import ScenarioError
from fedsim.federation.unseen import weighted_models
from fedsim.lab.audit import audit
from fedsim.learning.refs import Ref
from fedsim.testing import assert_same_run, eventful_world, go_on, quiet_world, run, run_until
from tests.strategies.runs import made
from tests.test_runs import STRATEGIES

Sections = dict[str, Any]


def with_unseen(sections: Sections, count: int = 5) -> Sections:
    population = sections["population"] | {"tested_only": count}
    return sections | {"population": population}


def test_no_strategy_meets_them(tmp_path: Path) -> None:
    """With alike devices the run is the one of a population without them."""
    alike = {"devices": 9, "speed": "10 samples/s", "samples": {"low": 30, "high": 30}}
    without = fedsim.Scenario(
        learning="off", population=alike, strategy={"clients_per_round": 4}, stop={"rounds": 3}
    )
    tables = without.model_dump(exclude_unset=True)
    partition = tmp_path / "partition.json"
    dealt = {str(device): [*range(30 * device, 30 * device + 30)] for device in range(12)}
    partition.write_text(str(dealt).replace("'", '"'))
    tables |= {"learning": "on", "data": {"source": "digits"}}
    tables["data"]["partition"] = {"kind": "file", "path": str(partition)}
    tables["population"] = {"devices": 12, "speed": "10 samples/s", "tested_only": 3}
    events = fedsim.run(without, tmp_path / "without").events
    more = fedsim.run(fedsim.Scenario(**tables), tmp_path / "with").events
    columns = ["time", "kind", "device", "task", "step"]
    assert events[columns].equals(more[columns])
    assert not any(audit(tmp_path / "with").values())


def test_their_accuracy_is_of_their_own_samples(tmp_path: Path) -> None:
    """The mean over the last devices, whose models are those of the run."""
    sections = with_unseen(quiet_world({"kind": "fedavg"}, rounds=3), 6)
    run(sections, tmp_path / "run")
    loaded = fedsim.load_run(tmp_path / "run")
    of_device = loaded.devices["accuracy"].to_numpy(float)
    sizes = loaded.devices["test_samples"].to_numpy(float)
    last = loaded.rounds["accuracy_unseen"].to_numpy(float)[-1]
    assert last == pytest.approx((of_device * sizes)[-6:].sum() / sizes[-6:].sum())
    seen = loaded.rounds["accuracy"].to_numpy(float)[-1]
    assert seen == pytest.approx((of_device * sizes)[:-6].sum() / sizes[:-6].sum())
    assert loaded.summary["accuracy"]["unseen"] == last
    assert np.isinf(loaded.devices["arrival"].to_numpy(float)[-6:]).all()
    data = made(sections).data
    assert data is not None
    model = loaded.models()["global"]
    right = 0
    total = 0
    for device in range(18, 24):  # by hand: a logistic model answers with its largest output
        x, y = data.test_samples(data.current(device))
        outputs = x.reshape(len(x), -1) @ model["1.weight"].T + model["1.bias"]
        right += int((outputs.argmax(axis=1) == y).sum())
        total += len(y)
    assert last == pytest.approx(right / total)


def test_without_a_model_for_all_it_is_the_mean_over_models() -> None:
    one, two, three = (Ref(f"model-{number}", number, None) for number in range(3))
    groups = {"group/0": (one, [0, 3]), "group/1": (two, [1]), "group/2": (three, [])}
    assert weighted_models(groups) == [(one, 2.0), (two, 1.0)]
    assert weighted_models({"device/0": (one, [0]), "global": (two, [1])}) == [(two, 1.0)]
    assert weighted_models({"group/0": (one, [0]), "first": (two, None)}) == [(two, 1.0)]
    assert weighted_models({"group/0": (one, []), "group/1": (two, [])}) == [(one, 1.0), (two, 1.0)]


def test_a_killed_run_goes_on_to_the_best_of_unseen_devices(tmp_path: Path) -> None:
    sections = with_unseen(
        eventful_world({"kind": "ifca", "groups": 2, "clients_per_round": 6}, rounds=5)
    )
    sections["stop"] |= {"monitor": "accuracy_unseen"}
    sections["evaluation"] = {"keep_best": True}
    whole = run(sections, tmp_path / "whole")
    assert run_until(sections, tmp_path / "cut", whole["events"] // 2) == "interrupted"
    go_on(sections, tmp_path / "cut")
    assert_same_run(tmp_path / "whole", tmp_path / "cut")
    assert not any(audit(tmp_path / "cut").values())
    rounds = fedsim.load_run(tmp_path / "cut").rounds["accuracy_unseen"].to_numpy(float)
    assert whole["best"]["value"] == rounds.max()


def test_the_audit_finds_one_that_worked(tmp_path: Path) -> None:
    sections = quiet_world({"kind": "fedavg"}, rounds=2)
    run(sections, tmp_path / "run")
    text = (tmp_path / "run" / "scenario.toml").read_text()
    forged = text.replace("devices = 24", "devices = 24\ntested_only = 20")
    (tmp_path / "run" / "scenario.toml").write_text(forged)
    found = audit(tmp_path / "run")["devices came and left as table and records say"]
    assert any("is tested only, and arrives at 0.0 s" in line for line in found)
    assert any("is tested only, and was selected" in line for line in found)
    assert any("is tested only, and has the task" in line for line in found)


REFUSED = [
    ({"population": {"devices": 12, "tested_only": 12}}, "allowed are 1 to 11"),
    ({"population": {"devices": 12, "tested_only": 3}}, "more than the population's 9 devices"),
    ({"population": {"tested_only": 3}, "learning": "off"}, "no device is tested"),
    ({"population": {"tested_only": 3}, "strategy": {"kind": "gossip"}}, "of its own alone"),
    ({"population": {"tested_only": 3}, "strategy": {"kind": "fedbn"}}, "first random ones"),
    ({"stop": {"rounds": 2, "patience": 1, "monitor": "accuracy_unseen"}}, "allowed are loss"),
]


@pytest.mark.parametrize(("sections", "reason"), REFUSED)
def test_what_is_refused(sections: Sections, reason: str) -> None:
    with pytest.raises(ScenarioError, match=reason):
        fedsim.Scenario(**{"strategy": {"clients_per_round": 10}} | sections)


EXPECTED = {
    "local": "model of its own alone",
    "fedper": "tensors stay on the devices",
    "fedbn": "tensors stay on the devices",
    "fedrep": "tensors stay on the devices",
}


def check_tests(strategies: list[Sections], place: Path) -> None:
    """Each strategy tests unseen devices in a sound run, or is refused by name."""
    refused = {}
    for number, strategy in enumerate(strategies):
        sections = with_unseen(eventful_world(strategy, rounds=3))
        try:
            fedsim.Scenario(**sections)
        except ScenarioError as error:
            refused[strategy["kind"]] = str(error)
            continue
        folder = place / str(number)
        run(sections, folder)
        found = audit(folder)
        assert not any(found.values()), (strategy, found)
        rounds = fedsim.load_run(folder).rounds
        assert rounds["accuracy_unseen"].notna().any(), strategy
    assert {"local", "gossip"} <= refused.keys()
    for kind, reason in refused.items():
        assert EXPECTED.get(kind, "model of its own alone") in reason


FAMILIES = ("fedasync", "scaffold", "local", "gossip", "hierfavg", "fesem")


def test_families_of_strategies_test_them_or_refuse_them_by_name(tmp_path: Path) -> None:
    check_tests([some for some in STRATEGIES if some["kind"] in FAMILIES], tmp_path)


@pytest.mark.long
def test_every_strategy_tests_them_or_refuses_them_by_name(tmp_path: Path) -> None:
    check_tests(STRATEGIES, tmp_path)
