"""SCAFFOLD against known answers."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.records.reading import RunFolder
from tests.strategies.clustered import played as play
from tests.strategies.clustered import ran, weights
from tests.strategies.curved import OPTIMUM, PULLS, curved, model_after


def test_it_reaches_the_optimum_of_all_where_fedavg_stays_away(tmp_path: Path) -> None:
    scaffold = model_after(curved(tmp_path, {"kind": "scaffold"}, 150))
    fedavg = model_after(curved(tmp_path, {"kind": "fedavg", "aggregation": "mean"}, 150))
    assert scaffold[0] == pytest.approx(OPTIMUM, abs=1e-6)
    progress = 1 - (1 - 0.1 * PULLS[:, 1]) ** 5  # how far five steps bring a device towards its own optimum
    assert fedavg[0] == pytest.approx((PULLS[:, 0] * progress).sum() / progress.sum(), abs=1e-5)
    assert abs(fedavg[0] - OPTIMUM) > 0.01


def test_it_reaches_it_with_unequal_steps(tmp_path: Path) -> None:
    found = model_after(curved(tmp_path, {"kind": "scaffold"}, 100, 2, (1, 2, 3, 4)))
    assert found[0] == pytest.approx(OPTIMUM, abs=1e-6)


def test_option_one_reaches_it_too_and_its_control_variates_are_the_gradients(tmp_path: Path) -> None:
    scaffold = {"kind": "scaffold", "option": "I"}
    run, _ = play(curved(tmp_path, scaffold, 100, 2, (1, 2, 3, 4)))
    (found,) = weights(run, [run.strategy.state["model"]])
    assert found[0] == pytest.approx(OPTIMUM, abs=1e-6)
    own = weights(run, [run.dispatch.devices.states[device]["control"] for device in range(4)])
    assert [value[0] for value in own] == pytest.approx(PULLS[:, 1] * (OPTIMUM - PULLS[:, 0]), abs=1e-5)


def test_option_one_goes_through_the_data_once_more(tmp_path: Path) -> None:
    times = {}
    for option in ("I", "II"):
        run = ran(digits(strategy=digits()["strategy"] | {"option": option}, stop={"rounds": 1}), tmp_path / option)
        ends = [event for event in run.events if event["kind"] == "task-end"]
        times[option] = {event["device"]: event["time"] * 100 / run.devices[event["device"]]["samples"] for event in ends}
    assert list(times["I"].values()) == pytest.approx([3, 3, 3])
    assert list(times["II"].values()) == pytest.approx([2, 2, 2])


def test_a_deadline_for_one_training_is_refused_with_option_one() -> None:
    with pytest.raises(fedsim.ScenarioError, match=r"'deadline_from' is 'download'.*allowed is 'round'"):
        fedsim.Scenario(strategy={"kind": "scaffold", "option": "I", "relative_deadline": 1.0})
    fedsim.Scenario(strategy={"kind": "scaffold", "option": "I", "deadline": "9 s"})


def test_it_reaches_it_with_partial_participation(tmp_path: Path) -> None:
    found = model_after(curved(tmp_path, {"kind": "scaffold", "clients_per_round": 2}, 600))
    assert found[0] == pytest.approx(OPTIMUM, abs=1e-6)


def test_two_rounds_by_hand(tmp_path: Path) -> None:
    run, _ = play(curved(tmp_path, {"kind": "scaffold"}, 2, epochs=3))
    model, lr, steps, count = 5.0, 0.1, 3, len(PULLS)
    control, own = 0.0, np.zeros(count)
    for _ in range(2):
        ends, changes = [], []
        for device, (center, strength) in enumerate(PULLS):
            here = model
            for _ in range(steps):
                here -= lr * (strength * (here - center) + control - own[device])
            ends.append(here)
            changes.append((model - here) / (steps * lr) - control)
        own += changes
        model, control = float(np.mean(ends)), control + sum(changes) / count
    found = weights(run, [run.strategy.state["model"], run.strategy.state["control"]])
    assert found[0][0] == pytest.approx(model, abs=1e-6)
    assert found[1][0] == pytest.approx(control, abs=1e-6)


def test_the_first_round_is_fedavgs(tmp_path: Path) -> None:
    scaffold, fedavg = ({"kind": "scaffold"}, {"kind": "fedavg", "aggregation": "mean"})
    assert model_after(curved(tmp_path, scaffold, 1)) == model_after(curved(tmp_path, fedavg, 1))


def digits(**others: Any) -> dict[str, Any]:
    return {
        "seed": 2,
        "population": {"devices": 8, "speed": "100 samples/s"},
        "strategy": {"kind": "scaffold", "clients_per_round": 3, "local_epochs": 2},
        "stop": {"rounds": 3},
    } | others


def test_both_payloads_are_charged_each_way(tmp_path: Path) -> None:
    run: RunFolder = ran(digits(), tmp_path / "run")
    purposes = run.summary["bytes"]["by_purpose"]
    assert purposes["model"] == purposes["update"] == 9 * 650 * 4
    assert purposes["control-variate"] == 2 * purposes["model"]


def test_a_cut_off_answer_changes_neither_side(tmp_path: Path) -> None:
    """A device that is lost while it uploads keeps the c_i that it had, as the server keeps c."""
    network = {"kind": "star", "device": {"up": "10 kbit/s"}}
    run, records = play(digits(network=network, strategy=digits()["strategy"] | {"deadline": "3 s"}))
    ends = [record.fields["outcome"] for record in records if record.kind == "task-end"]
    assert set(ends) == {"late"}
    assert all(not state for state in run.dispatch.devices.states.values())
    assert not weights(run, [run.strategy.state["control"]])[0].any()
