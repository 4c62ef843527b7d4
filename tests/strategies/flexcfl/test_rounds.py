"""FlexCFL's rounds against known answers: one group, groups apart, and what happens between them."""

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.toolbox.strategies.flexcfl import FlexCFLParams
from tests.strategies.clustered import PAIRED, STARTED, groups_of, opposite_groups, played, ran, weights, world
from tests.strategies.flexcfl.common import FULL, flexcfl, made, pretrained


class TestOneGroup:
    """m = 1 without influence between groups."""

    def trajectories(self, folder: Path, alpha: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """(FlexCFL's model, that of FedAvg started from the mean of the models that were pre-trained), after six rounds."""
        data = opposite_groups(folder, [5, 12, 30, 8, 21, 9])
        strategy = flexcfl(1, 3, moment={"devices": alpha})
        sections = world(data, 6, strategy, 6, training=FULL)
        run, records = played(sections)
        (chosen,) = (record.fields["devices"] for record in records if record.kind == "clustering")
        assert len(chosen) == alpha
        initial, trained = pretrained(sections)
        start = initial + np.mean([trained[device] - initial for device in chosen], axis=0, dtype=np.float64)
        fedavg = {"kind": STARTED, "clients_per_round": 3, "local_epochs": 2, "start": start.tolist()}
        other, _ = played(sections | {"strategy": fedavg})
        return weights(run)[0], weights(other, [other.strategy.state["model"]])[0]

    @pytest.mark.parametrize("alpha", [6, 2])
    def test_it_goes_on_as_fedavg_from_the_mean_of_what_was_pretrained(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, alpha: int
    ) -> None:
        """With the same cohorts; devices without a group are pre-trained on the way, and no round is lost by it."""
        monkeypatch.setattr(FlexCFLParams, "sweeps", False)
        ours, theirs = self.trajectories(tmp_path, alpha)
        assert ours == pytest.approx(theirs, abs=2e-6)
        assert np.linalg.norm(ours) > 0.5

    def test_it_has_nobody_to_exchange_models_with(self) -> None:
        run, records = played(world(PAIRED, 6, flexcfl(1, 3, eta_g=1.0), 3))
        assert not [record for record in records if record.kind == "server-transfer"]
        apart, _ = played(world(PAIRED, 6, flexcfl(1, 3), 3))
        assert weights(run)[0].tobytes() == weights(apart)[0].tobytes()


class TestGroupsApart:
    def models(self, folder: Path, second: float, **strategy: Any) -> list[NDArray[np.float32]]:
        data = opposite_groups(folder, [20] * 8, second)
        run, records = played(world(data, 8, flexcfl(2, 5, **strategy), 5))
        (made,) = (record.fields for record in records if record.kind == "clustering")
        found = dict(zip(made["devices"], made["groups"], strict=True))
        even, odd = {found[device] for device in range(0, 8, 2)}, {found[device] for device in range(1, 8, 2)}
        assert (len(even), len(odd)) == (1, 1)
        assert even != odd
        values = weights(run)
        return [values[even.pop()], values[odd.pop()]]

    def test_without_influence_one_groups_data_are_nothing_to_the_other(self, tmp_path: Path) -> None:
        one, other = (self.models(tmp_path / str(second), second) for second in (1.0, 1.25))
        assert one[0].tobytes() == other[0].tobytes()
        assert one[1].tobytes() != other[1].tobytes()


class TestBetweenGroups:
    def mixed(self, folder: Path, members: list[int], **strategy: Any) -> list[list[float]]:
        """Two groups at (3, 0) and (0, 4), a third at (100, 100), after one mixing."""
        data = opposite_groups(folder, [4] * 4)
        model = {"kind": "module", "factory": "tests.strategies.curved:Centre", "args": {"start": [0.0, 0.0]}}
        run = made(world(data, 4, flexcfl(3, 2, eta_g=1.0, **strategy), 2, model=model, training={"init": "torch"}))
        state = run.strategy.state
        state["models"] = [run.learner.initial() for _ in range(3)]
        for model_ref, value in zip(state["models"], ([3, 0], [0, 4], [100, 100]), strict=True):
            model_ref.settle(np.array(value, dtype=np.float32))
        state["group"] = members
        asyncio.run(run.strategy.after_aggregation())  # type: ignore[attr-defined]
        return [value.tolist() for value in weights(run)]

    def test_two_groups(self, tmp_path: Path) -> None:
        """And a group without devices neither gives nor takes."""
        members = [0, 1, 0, -1]
        assert self.mixed(tmp_path, members)[:2] == [pytest.approx([2.4, 0.8]), pytest.approx([0.75, 3.0])]
        literal = self.mixed(tmp_path, members, **{"as": "paper"})
        assert literal == [pytest.approx([3, 1]), pytest.approx([1, 4]), [100, 100]]

    def test_a_single_group_is_left_alone(self, tmp_path: Path) -> None:
        assert self.mixed(tmp_path, [1, 1, -1, 1]) == [[3, 0], [0, 4], [100, 100]]

    @pytest.mark.parametrize("learning", ["on", "off"])
    def test_each_inhabited_group_sends_its_model_to_the_auxiliary_server(self, tmp_path: Path, learning: str) -> None:
        run = ran(world(PAIRED, 10, flexcfl(5, 4, eta_g=0.1), 6, learning=learning), tmp_path / "run")
        sent = [row for row in run.transfers if row["sender"] is not None]
        inhabited = len({group for group in groups_of(run) if group is not None})
        assert inhabited == 5
        assert [row["sender"] for row in sent] == [f"group-{group}" for group in range(5)] * 6
        assert {(row["receiver"], row["purpose"], row["direction"], row["device"]) for row in sent} == {
            ("auxiliary", "group-exchange", "up", None)
        }
        assert run.summary["bytes"]["by_purpose"]["group-exchange"] == 6 * 5 * 650 * 4
        assert all(row["start"] == row["end"] for row in sent)
