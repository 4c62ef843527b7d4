"""FlexCFL's group cold start: what makes the groups, and who is lost on the way."""

from pathlib import Path

import numpy as np
import pytest

import fedsim
from fedsim.toolbox.strategies.flexcfl import cluster_updates
from tests.strategies.clustered import PAIRED, ROTATED, Sections, file_data, of_kind, played, ran, weights, world
from tests.strategies.flexcfl.common import FULL, flexcfl, pretrained


class TestClustering:
    """What makes the groups."""

    def test_two_directions_at_any_length(self) -> None:
        lengths, axis = [1e-3, 5.0, 0.2, 80.0, 1.0, 1.0], [0, 1, 1, 0, 1, 0]
        updates = np.zeros((6, 9), dtype=np.float32)
        updates[range(6), axis] = lengths
        groups, record = cluster_updates(updates, 2, "edc", np.random.default_rng(1))
        assert groups == record["groups"] == axis
        assert np.linalg.norm(record["features"], axis=1) == pytest.approx([1.0] * 6)
        scaled, again = cluster_updates(updates * np.float32(7.5), 2, "edc", np.random.default_rng(1))
        assert scaled == groups
        assert np.array(again["features"]) == pytest.approx(np.array(record["features"]), abs=1e-6)

    @pytest.mark.parametrize("measure", ["edc", "madc"])
    def test_the_groups_of_rotated_and_of_paired_digits_are_found(self, tmp_path: Path, measure: str) -> None:
        for number, (data, kinds) in enumerate([(ROTATED, 4), (PAIRED, 5)]):
            strategy = flexcfl(kinds, 5, measure=measure)
            run = ran(world(data, 6 * kinds, strategy, 2), tmp_path / str(number))
            assert run.rounds[-1]["ari"] == run.rounds[-1]["nmi"] == run.rounds[-1]["purity"] == 1.0

    def test_groups_begin_with_the_means_of_their_members_and_directions_never_change(self) -> None:
        sections = world(PAIRED, 10, flexcfl(5, 4), 3)
        run, records = played(sections)
        (record,) = (record for record in records if record.kind == "clustering")
        initial, trained = pretrained(sections)
        for group, direction in enumerate(weights(run, run.strategy.state["directions"])):
            members = [
                device for device, own in zip(record.fields["devices"], record.fields["groups"], strict=True) if own == group
            ]
            mean = np.mean([trained[device].astype(np.float64) for device in members], axis=0)
            assert direction == pytest.approx(mean - initial, abs=1e-6)


class TestTheGroupColdStart:
    """Devices that are lost on the way."""

    def schedule(self, *away: int, devices: int = 20, at: str = "300 ms") -> Sections:
        leaves = {"kind": "schedule", "times": [at] * len(away), "devices": list(away)}
        return {"speed": "1000 samples/s", "devices": devices, "departures": leaves}

    def test_groups_are_made_from_those_who_came_back(self, tmp_path: Path) -> None:
        """Pre-training takes half a second; three leave before."""
        run = ran(world(PAIRED, 20, flexcfl(5, 4), 3, population=self.schedule(0, 6, 13)), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == sorted(set(range(20)) - {0, 6, 13})
        assert run.rounds[-1]["ari"] == 1.0

    def test_with_fewer_than_groups_it_is_repeated(self, tmp_path: Path) -> None:
        """Five are asked for five groups and one leaves: four are too few, so five of the others are asked again."""
        population = self.schedule(*range(0, 20, 2))
        strategy = flexcfl(5, 4, moment={"devices": 1}, retry="2 s")
        run = ran(world(PAIRED, 20, strategy, 3, population=population), tmp_path / "run")
        asked = [event for event in of_kind(run, "task-start") if event["round"] is None]
        assert len({event["time"] for event in asked}) == 2
        (event,) = of_kind(run, "clustering")
        assert len(event["data"]["devices"]) == 5
        assert all(device % 2 for device in event["data"]["devices"])

    def test_when_too_few_will_ever_be_there_the_run_ends_and_says_so(self, tmp_path: Path) -> None:
        population = self.schedule(*range(16))
        run = ran(world(PAIRED, 20, flexcfl(5, 4), 3, population=population), tmp_path / "run")
        assert run.summary["rounds"] == 0
        assert run.summary["stopped"] == "fewer than 5 devices will ever be there again"

    def test_a_deadline_bounds_it_too(self, tmp_path: Path) -> None:
        population = {"speed": {"kind": "lognormal", "median": "800 samples/s", "spread": 2.0}}
        strategy = flexcfl(5, 4, deadline="1 s", local_epochs=1)
        run = ran(world(PAIRED, 20, strategy, 3, population=population), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert 5 <= len(event["data"]["devices"]) < 20
        assert event["time"] == 1.0

    def test_devices_that_all_do_the_same_make_no_groups(self, tmp_path: Path) -> None:
        one = (np.tile(np.random.default_rng(1).normal(size=4), (6, 1)), [1] * 6)  # in whatever order they come, sums are equal
        sections = world(file_data(tmp_path, [one] * 6), 6, flexcfl(2, 2), 2, training=FULL)
        with pytest.raises(
            fedsim.SimulationError, match="2 groups needs as many distinct feature rows, and the 6 devices have 1"
        ):
            fedsim.run(fedsim.Scenario(**sections))

    def test_updates_that_are_not_finite_are_left_out(self, tmp_path: Path) -> None:
        draw = np.random.default_rng(1)
        shards = [(draw.normal(size=(6, 4)) * (1e30 if device == 3 else 1.0), [0, 1, 0, 1, 0, 1]) for device in range(6)]
        run = ran(world(file_data(tmp_path / "data", shards), 6, flexcfl(2, 2), 3), tmp_path / "run")
        (event,) = of_kind(run, "clustering")
        assert sorted(event["data"]["devices"]) == [0, 1, 2, 4, 5]
        with pytest.raises(
            fedsim.SimulationError, match=r"6 devices gave 5 finite updates, fewer than the 6 groups .* training.lr"
        ):
            fedsim.run(fedsim.Scenario(**world(file_data(tmp_path / "data", shards), 6, flexcfl(6, 2), 3)))
