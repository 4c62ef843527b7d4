"""FAVOR against known answers: its agent, and what it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from fedsim.toolbox.selection.favor import (
    FAVOR,
    along,
    new_agent,
    principal_axes,
    q_values,
    state_values,
    trained_agent,
    weights,
)
from tests.strategies.runs import moved, played, ran, told
from tests.strategies.runs import weights as values
from tests.strategies.worlds import file_data, world

SIZES: dict[str, Any] = {"hidden": 5, "action_count": 4}


def test_the_axes_are_sklearns() -> None:
    draw = np.random.default_rng(3)
    models = [*(draw.normal(size=(7, 20)) * np.linspace(3, 0.1, 20)).astype(np.float32)]
    others = [*draw.normal(size=(2, 20)).astype(np.float32)]
    pca = PCA(4).fit(np.array(models))
    axes = principal_axes(models, 4)
    mean, *directions = axes.reshape(5, 20)
    signs = np.sign((np.array(directions) * pca.components_).sum(axis=1))
    assert mean == pytest.approx(pca.mean_, abs=1e-5)
    assert np.array(directions) * signs[:, None] == pytest.approx(pca.components_, abs=1e-4)
    places = along([axes.astype(np.float32), *others]).reshape(2, 4)
    assert places * signs == pytest.approx(pca.transform(np.array(others)), abs=1e-4)
    few = principal_axes(models[:3], 4).reshape(5, 20)  # three models differ along two axes
    assert np.linalg.norm(few[1:], axis=1) == pytest.approx([1, 1, 0, 0])


def fresh_agent(seed: int) -> np.ndarray[Any, Any]:
    return new_agent([], inputs=3, rng=np.random.default_rng(seed), **SIZES).astype(np.float32)


def test_a_step_by_hand() -> None:
    """Double Q-learning: the agent says which action comes next, the older one what that is
    worth; Adam as torch has it.
    """
    agent, older = fresh_agent(1), fresh_agent(2)
    size = weights(3, **SIZES)
    befores, afters = np.random.default_rng(5).normal(size=(2, 6, 3)).astype(np.float32)
    chosen, rewards = [0, 1, 2, 3, 1, 1], [-0.9, -0.5, 0.0, -0.1, -0.2, -0.3]
    parameter = torch.nn.Parameter(torch.tensor(agent[:size]))
    adam = torch.optim.Adam([parameter], lr=0.01)
    for _ in range(3):
        targets = []
        for reward, after in zip(rewards, afters, strict=True):
            best = int(np.argmax(state_values([agent, after], **SIZES)))
            targets.append(reward + 0.8 * float(state_values([older, after], **SIZES)[best]))
        predicted = q_values(parameter, torch.tensor(befores), **SIZES)[torch.arange(6), chosen]
        adam.zero_grad()
        error = torch.nn.functional.mse_loss(predicted, torch.tensor(targets))
        error.backward()  # type: ignore[no-untyped-call]
        adam.step()
        rule: dict[str, Any] = {"discount": 0.8, "lr": 0.01, "chosen": chosen, "rewards": rewards}
        agent = trained_agent([agent, older, *befores, *afters], **rule, **SIZES).astype(np.float32)
        assert agent[:size] == pytest.approx(parameter.detach().numpy(), abs=1e-6)
    assert agent[-1] == 3.0


def half_of_them_liars(folder: Path, rounds: int, **keys: Any) -> dict[str, Any]:
    """Six devices, of which the last three have wrong labels; all are tested on right ones, and
    a round changes much.
    """
    draw = np.random.default_rng(2)
    shards, tests = [], []
    for device in range(6):
        x, held = draw.normal(size=(2, 20, 4))
        y = (x[:, 0] > 0).astype(np.int64)
        shards.append((x, 1 - y if device > 2 else y))
        tests.append((held, (held[:, 0] > 0).astype(np.int64)))
    sizes = {"components": 2, "hidden": 16, "batch": 8, "decay": 0.9, "lr": 0.01}
    selection = {"kind": "favor", "target": 0.95} | sizes | keys
    strategy = {
        "kind": "fedavg",
        "clients_per_round": 2,
        "local_epochs": 10,
        "selection": selection,
    }
    return world(
        file_data(folder, shards, tests),
        6,
        strategy,
        rounds,
        training={"lr": 0.5},
        evaluation={"every": rounds},
    )


def test_it_comes_to_prefer_the_devices_that_help(tmp_path: Path) -> None:
    run, records = played(half_of_them_liars(tmp_path, 40))
    late = [
        fields["device"]
        for fields in told(records, "task-start")
        if fields["round"] is not None and fields["round"] >= 25
    ]
    assert np.mean([device < 3 for device in late]) > 0.85
    expected = run.strategy.state["selection"].q_values
    assert np.mean(expected[:3]) > np.mean(expected[3:])


def test_what_it_remembers_by_hand(tmp_path: Path) -> None:
    """Who was asked and what that was worth; the older agent is the one of up to ``refresh``
    rounds ago; memory has an end.
    """
    run, records = played(half_of_them_liars(tmp_path, 7, memory=8, refresh=3, exploration=0.0))
    state = run.strategy.state["selection"]
    asked = [
        fields["device"] for fields in told(records, "task-end") if fields["round"] is not None
    ]
    # the last round is not learnt from
    assert [action for _, action, _, _ in state["replay"]] == asked[-10:-2]
    assert len(state["local"]) == 6
    assert state["older"] is not state["agent"]
    older, agent = values(run, [state["older"], state["agent"]])
    assert (older[-1], agent[-1]) == (3 * 8.0, 6 * 8.0)  # after rounds 0, 1 and 2
    accuracy = 0.95 + np.log(1 + state["replay"][-1][2]) / np.log(64)
    assert accuracy * 120 == pytest.approx(round(accuracy * 120))
    assert [FAVOR(target=0.9).epsilon(number) for number in (0, 1, 1000)] == pytest.approx(
        [0.9, 0.9 * 0.95, 0.05]
    )


def test_profiling_has_bytes_and_takes_time(tmp_path: Path) -> None:
    purposes = moved(ran(half_of_them_liars(tmp_path, 2), tmp_path / "run"))
    assert purposes == {"profile": 6 * 40, "local-model": 6 * 40, "model": 4 * 40, "update": 4 * 40}
