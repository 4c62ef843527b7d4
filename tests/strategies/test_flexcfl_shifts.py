"""FlexCFL and FedGroup when data shift: who notices, and who migrates."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.records.reading import RunFolder
from fedsim.strategies.grouped import distance
from tests.strategies.clustered import PAIRED, Sections, file_data, groups_of, homes, moves, of_kind, ran, world
from tests.strategies.test_flexcfl import flexcfl


class TestShiftTest:
    """Eq. 9 with n = 100, C = 10: tau = 2."""

    def counts(self, *numbers: int) -> NDArray[np.int64]:
        return np.array([*numbers, *([0] * (10 - len(numbers)))])

    def test_labels_that_change_places_are_seen_by_the_aligned_distance_alone(self) -> None:
        before, after = self.counts(50, 50), self.counts(50, 50)[::-1]
        assert distance(after, before, "aligned_l1") == 20
        assert distance(after, before, "sorted_counts") == 0
        assert distance(before, before, "oracle") == math.inf

    @pytest.mark.parametrize(("other", "fires"), [(40, False), (39, True), (60, False), (61, True)])
    def test_nor_does_it_in_a_run(self, tmp_path: Path, other: int, fires: bool) -> None:
        """Two devices with 50 samples of each of two classes, and (other, 100 - other), exchange their data: tau = 10."""
        draw = np.random.default_rng(1)
        labels = [[0] * zeros + [1] * (100 - zeros) for zeros in (50, other)]
        data = file_data(tmp_path / "data", [(draw.normal(size=(100, 4)), own) for own in labels])
        drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [1]}}
        run = ran(world(data, 2, flexcfl(1, 2), 3, drift=drift), tmp_path / "run")
        for event in of_kind(run, "shift-test"):
            assert event["data"] == {"distance": abs(50 - other), "threshold": 10.0, "fired": fires}
        assert len(of_kind(run, "shift-test")) == 2

    def test_what_has_been_shifted_to_is_the_next_reference(self, tmp_path: Path) -> None:
        """There and back: both shifts are seen. Without a migration the reference stays, and coming back is no shift."""
        draw = np.random.default_rng(1)
        for other, fires in ((10, [True, True]), (45, [False, False])):
            labels = [[0] * zeros + [1] * (100 - zeros) for zeros in (50, other)]
            data = file_data(tmp_path / f"{other}", [(draw.normal(size=(100, 4)), own) for own in labels])
            drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [2, 4]}}
            run = ran(world(data, 2, flexcfl(1, 2), 6, drift=drift), tmp_path / f"run-{other}")
            for device in (0, 1):
                own = [event["data"] for event in of_kind(run, "shift-test") if event["device"] == device]
                assert [test["fired"] for test in own] == fires
                assert [test["distance"] for test in own] == ([40.0, 40.0] if fires[0] else [5.0, 0.0])

    def test_the_sorted_distance_is_scipys_of_the_counts_as_samples(self) -> None:
        from scipy.stats import wasserstein_distance

        draw = np.random.default_rng(1)
        for _ in range(20):
            one, other = draw.integers(0, 40, (2, 10))
            assert distance(one, other, "sorted_counts") == pytest.approx(wasserstein_distance(one, other))


def evenly_rotated(folder: Path) -> Sections:
    """Sixteen devices with ten digits of each class, turned by as many quarters as the device's number says."""
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    images = images.reshape(-1, 8, 8) / 16
    places = [np.flatnonzero(labels == label) for label in range(10)]
    shards = []
    for device in range(16):
        kind, place = device % 4, device // 4
        index = np.concatenate([np.random.default_rng(kind).permutation(own)[10 * place : 10 * place + 10] for own in places])
        shards.append((np.rot90(images[index], kind, axes=(1, 2))[:, None], labels[index]))
    return file_data(folder, shards)


class TestAfterASwap:
    """Two devices of different groups exchange all their data."""

    def swapped(
        self, folder: Path, data: Sections, kind: str, kinds: int = 5, **strategy: Any
    ) -> tuple[RunFolder, list[tuple[int, int]]]:
        """The run, and the pairs that crossed over between true groups."""
        drift = {"kind": "swap-all", "probability": 1.0, "at": {"rounds": [4]}}
        shape = {"kind": kind, "groups": kinds, "clients_per_round": 5, "local_epochs": 2}
        run = ran(world(data, 4 * kinds, shape | strategy, 8, drift=drift), folder)
        partners = {event["device"]: event["data"]["partner"] for event in of_kind(run, "shift")}
        assert len(partners) == 4 * kinds
        return run, [(one, other) for one, other in partners.items() if one < other and (one - other) % kinds]

    def test_flexcfl_ends_with_them_exchanged(self, tmp_path: Path) -> None:
        run, crossed = self.swapped(tmp_path / "run", PAIRED, "flexcfl")
        before = self.before(run)
        found = groups_of(run)
        assert len(crossed) >= 5
        assert len({before[device] for device in range(5)}) == 5
        for one, other in crossed:
            assert (found[one], found[other]) == (before[other], before[one])
        assert run.rounds[-1]["ari"] == 1.0
        # A migration is recorded, and costs each device four bytes.
        assert len(moves(run, "migration")) == 2 * len(crossed)
        tests = of_kind(run, "shift-test")
        assert len(tests) == 20
        for event in tests:
            assert event["data"]["fired"] == (event["data"]["distance"] > event["data"]["threshold"])
        fired = {event["device"] for event in tests if event["data"]["fired"]}
        assert fired >= {device for pair in crossed for device in pair}
        (at,) = {event["time"] for event in tests}
        ids = [row for row in run.transfers if row["purpose"] == "id" and row["start"] >= at]
        assert (len(ids), {row["bytes"] for row in ids}) == (len(fired), {4.0})
        assert not [row for row in run.transfers if "directions" in row["purpose"] and row["start"] >= at]

    def before(self, run: RunFolder) -> dict[int, int]:
        """The group of each device before the shift."""
        (first,) = {event["time"] for event in of_kind(run, "shift")}
        return {event["device"]: event["group"] for event in of_kind(run, "assign") if event["time"] < first}

    def test_fedgroup_does_not(self, tmp_path: Path) -> None:
        run, crossed = self.swapped(tmp_path / "run", PAIRED, "fedgroup")
        before = self.before(run)
        assert len(crossed) >= 5
        assert groups_of(run) == [before[device] for device in range(20)]
        assert run.rounds[-1]["ari"] < 0.5
        assert not of_kind(run, "shift-test")

    def test_labels_alone_are_looked_at(self, tmp_path: Path) -> None:
        """Rotated digits, ten of each on every device: the test of Eq. 9 is blind to what has happened."""
        for metric in ("aligned_l1", "oracle"):
            data = evenly_rotated(tmp_path / "data")
            run, crossed = self.swapped(tmp_path / metric, data, "flexcfl", kinds=4, moment={"shift": metric})
            before = self.before(run)
            home = homes([device % 4 for device in range(16)], [before[device] for device in range(16)])
            assert len(set(home.values())) == 4
            assert len(crossed) >= 4
            tests = of_kind(run, "shift-test")
            assert len(tests) == 16
            if metric == "aligned_l1":
                assert {(event["data"]["fired"], event["data"]["distance"]) for event in tests} == {(False, 0.0)}
                assert groups_of(run) == [before[device] for device in range(16)]
            else:
                assert all(groups_of(run)[one] == home[other % 4] for pair in crossed for one, other in (pair, pair[::-1]))
