"""CCS and RFedAvg against known answers, through whole simulated runs."""

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.toolbox.strategies.reweighting import (
    balance,
    class_imbalance,
    class_shares,
    cluster_imbalance,
    optimal_weights,
)
from tests.strategies.runs import initial_weights, model_of, of_kind, played, ran, told
from tests.strategies.worlds import Sections, file_data, scheduled, world

FEATURES, CLASSES = 5, 3
BY_CLASS = {"theta": 0.3, "least_loss": 1e6}
"""What is alike stays the same, however far training gets: in ``one_class`` worlds that is one
cluster a class.
"""

Vector = NDArray[np.float64]


def rfedavg(clients: int, **others: Any) -> Sections:
    return {"kind": "rfedavg", "clients_per_round": clients} | others


def one_class(
    folder: Path, sizes: Sequence[int], classes: int = CLASSES, seed: int = 1
) -> Sections:
    """Device d holds samples of class d mod ``classes`` alone, which differ little."""
    draw = np.random.default_rng(seed)
    shards = []
    for device, size in enumerate(sizes):
        x = draw.uniform(0.4, 0.6, size=(size, FEATURES))
        x[:, device % classes] += 1.0
        shards.append((x, [device % classes] * size))
    return file_data(folder, shards)


class Round:
    """One round of the paper by hand, in float64, on logistic regression: gradients, CCS,
    weights, the step of Eq. 5.
    """

    def __init__(self, data: Sections, sizes: Sequence[int], theta: float) -> None:
        with np.load(Path(data["root"]) / "data.npz") as file:
            ends = np.cumsum(sizes)
            self.x = np.split(file["x_train"].astype(np.float64), ends[:-1])
            self.y = np.split(file["y_train"], ends[:-1])
        self.sizes, self.theta = np.array(sizes), theta
        self.first_loss: float | None = None

    def gradient(self, flat: Vector, device: int) -> tuple[float, Vector]:
        kernel, bias = (
            flat[: CLASSES * FEATURES].reshape(CLASSES, FEATURES),
            flat[CLASSES * FEATURES :],
        )
        x, y = self.x[device], self.y[device]
        logits = x @ kernel.T + bias
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        error = (np.exp(logits) - np.eye(CLASSES)[y]) / len(y)
        return -logits[np.arange(len(y)), y].mean(), np.concatenate(
            [(error.T @ x).ravel(), error.sum(axis=0)]
        )

    def step(
        self, flat: Vector, lr: float, imbalance: str
    ) -> tuple[Vector, list[list[int]], list[float]]:
        devices = range(len(self.sizes))
        losses, gradients = zip(*(self.gradient(flat, device) for device in devices), strict=True)
        loss = float(self.sizes @ np.array(losses) / self.sizes.sum())
        self.first_loss = loss if self.first_loss is None else self.first_loss
        eps = math.cos(
            self.theta + (math.pi / 2 - self.theta) * (self.first_loss - loss) / self.first_loss
        )
        left, clusters, units = set(devices), [], [own / np.linalg.norm(own) for own in gradients]
        while left:
            near = {
                k: [j for j in sorted(left) if j == k or units[k] @ units[j] >= eps]
                for k in sorted(left)
            }
            clusters.append(max(near.values(), key=len))
            left -= set(clusters[-1])
        p = np.array([1 / self.imbalance(cluster, imbalance) for cluster in clusters])
        p /= p.sum()
        total = np.zeros_like(flat)
        for weight, cluster in zip(p, clusters, strict=True):
            size = sum(self.sizes[k] for k in cluster)
            total += weight * sum(self.sizes[k] * gradients[k] for k in cluster) / size
        return flat - lr * total, clusters, p.tolist()

    def imbalance(self, cluster: Sequence[int], how: str) -> float:
        own = []
        for device in cluster:
            mean = (self.sizes.sum() if how == "global" else self.sizes[device]) / CLASSES
            own.append(
                sum(abs(mean - int((self.y[device] == label).sum())) for label in range(CLASSES))
            )
        worst = cluster[own.index(max(own))]
        return max(
            max(own) - sum(int(self.sizes[device]) for device in cluster if device != worst), 1.0
        )


@pytest.mark.parametrize("imbalance", ["global", "local"])
@pytest.mark.parametrize("theta", [0.1, 0.7, math.pi / 2])
def test_rounds_are_those_of_the_paper(tmp_path: Path, theta: float, imbalance: str) -> None:
    """The gradient form of Eq. 5 by hand is what the means of models come to."""
    sizes, lr, rounds = [40, 7, 12, 25, 9, 5, 6], 0.5, 6
    data = one_class(tmp_path, sizes)
    sections = world(
        data, 7, rfedavg(7, theta=theta, imbalance=imbalance), rounds, training={"lr": lr}
    )
    run, records = played(sections)
    by_hand, flat = Round(data, sizes, theta), initial_weights(sections).astype(np.float64)
    for reweighting in told(records, "reweighting"):
        flat, clusters, p = by_hand.step(flat, lr, imbalance)
        assert reweighting["clusters"] == [len(cluster) for cluster in clusters]
        assert reweighting["weights"] == pytest.approx(p, rel=1e-9)
    assert len(told(records, "reweighting")) == rounds
    assert model_of(run) == pytest.approx(flat, abs=2e-6)


@pytest.mark.parametrize("clustering", ["ccs", "kmeans"])
def test_weights_by_samples_are_fedavg_whatever_the_clusters(
    tmp_path: Path, clustering: str
) -> None:
    """The same cohorts too: the paper's FedAvg can be run either way."""
    data = one_class(tmp_path, [30, 5, 20, 10, 15, 2, 44, 9])
    by_data, _ = played(
        world(data, 8, rfedavg(4, weights="uniform-by-data", clustering=clustering), 8)
    )
    fedavg, _ = played(
        world(data, 8, {"kind": "fedavg", "clients_per_round": 4}, 8, training={"batch_size": 1000})
    )
    reweighted, _ = played(world(data, 8, rfedavg(4), 8))
    assert model_of(by_data) == pytest.approx(model_of(fedavg), abs=1e-6)
    assert np.abs(model_of(reweighted) - model_of(fedavg)).max() > 1e-3


def test_the_optimum_mends_what_samples_get_wrong(tmp_path: Path) -> None:
    data = one_class(tmp_path, [60, 10, 5, 40, 10, 5])
    by_data = {}
    for kind in ("optimal", "rfedavg", "uniform-by-data"):
        _, records = played(world(data, 6, rfedavg(6, weights=kind, **BY_CLASS), 4))
        for event in told(records, "reweighting"):
            assert event["clusters"] == [2, 2, 2]
            before, after = event["balance"]["beta"]
            assert before == pytest.approx(10.0)
            by_data[kind] = after
            if kind == "optimal":
                assert event["weights"] == pytest.approx([1 / 3] * 3)
                shares = np.array([100, 20, 10]) / 130
                assert event["balance"]["distance"] == pytest.approx(
                    [((shares - 1 / 3) ** 2).sum(), 0.0], abs=1e-12
                )
    assert by_data["optimal"] == pytest.approx(1.0)
    assert by_data["uniform-by-data"] == pytest.approx(10.0)
    assert by_data["optimal"] < by_data["rfedavg"] < by_data["uniform-by-data"]


def test_several_gradient_steps_are_several_rounds_of_one(tmp_path: Path) -> None:
    data = file_data(tmp_path, [(np.random.default_rng(4).normal(size=(20, 4)), [0, 1] * 10)])
    one, three = (
        played(world(data, 1, rfedavg(1, local_epochs=6 // rounds), rounds))[0] for rounds in (6, 2)
    )
    assert model_of(three) == pytest.approx(model_of(one), abs=1e-6)


def test_clusterings_are_recorded_as_rounds_double(tmp_path: Path) -> None:
    data = one_class(tmp_path / "data", [30, 5, 20, 10, 15, 2])
    run = ran(world(data, 6, rfedavg(5, **BY_CLASS), 10), tmp_path / "run")
    events = of_kind(run, "clustering")
    assert [event["round"] for event in events] == [0, 1, 2, 4, 8]
    for event in events:
        found = event["data"]
        kinds, groups = np.array(found["devices"]) % CLASSES, np.array(found["groups"])
        alike = kinds[:, None] == kinds
        assert ((np.array(found["similarity"]) >= math.cos(0.3)) == alike).all()
        assert ((groups[:, None] == groups) == alike).all()


@pytest.mark.parametrize("learning", ["on", "off"])
@pytest.mark.parametrize(
    ("strategy", "scalars", "counts", "reports"),
    [
        ({}, 3, 0, True),
        ({"clustering": "kmeans"}, 2, 0, True),
        ({"clustering": "kmeans", "kmeans_clusters": "ccs"}, 3, 0, True),
        ({"imbalance": "local"}, 3, 0, False),
        ({"weights": "optimal"}, 2, CLASSES, False),
        ({"weights": "uniform-by-data", "clustering": "kmeans"}, 1, 0, False),
    ],
)
def test_the_ledger(
    tmp_path: Path, strategy: Sections, scalars: int, counts: int, reports: bool, learning: str
) -> None:
    devices, clients, rounds, model = 6, 4, 5, 4 * (CLASSES * FEATURES + CLASSES)
    data = one_class(tmp_path / "data", [30, 5, 20, 10, 15, 2])
    run = ran(
        world(data, devices, rfedavg(clients, **strategy), rounds, learning=learning),
        tmp_path / "run",
    )
    found = run.summary["bytes"]
    asked = clients * rounds
    met = sum(row["selected"] > 0 for row in run.devices)
    expected = {
        "model": asked * model,
        "update": asked * model,
        "control": 4 * (asked * scalars + met * reports),
    }
    expected |= {"class-counts": 4 * counts * asked} if counts else {}
    expected |= {"size-report": 4 * devices} if reports else {}
    assert found["by_purpose"] == expected
    assert found["paper"] == 2 * asked * model
    assert found["down"] == asked * model + 4 * met * reports
    assert run.summary["rounds"] == rounds


def test_a_newcomer_reports_its_size_and_changes_what_all_must_be_told(tmp_path: Path) -> None:
    data = one_class(tmp_path / "data", [30, 5, 20, 10])
    population = {"speed": "10 samples/s", "arrivals": scheduled(d2="7 s")}
    run = ran(world(data, 4, rfedavg(3), 6, population=population), tmp_path / "run")
    sizes_told = dict.fromkeys(range(6), 0)
    for row in run.transfers:
        if row["direction"] == "down":
            sizes_told[row["round"]] += len(row["payloads"]) - 1
    (arrival,) = of_kind(run, "arrival")
    later = [
        event["round"] for event in of_kind(run, "round-start") if event["time"] > arrival["time"]
    ]
    # rounds of 3 s: the slowest of those who are there at first has 30 samples
    assert later[0] == 3
    assert [*sizes_told.values()] == [3, 0, 0, 3, 1, 0]
    for number in range(6):
        asked = {row["device"] for row in run.transfers if row["round"] == number}
        assert (2 in asked) <= (number in later)


def test_an_update_that_is_not_finite_counts_for_nothing(tmp_path: Path) -> None:
    draw = np.random.default_rng(1)
    shards = [
        (draw.uniform(1, 2, size=(8, 4)) * (1e38 if device == 2 else 1.0), [device % 2] * 8)
        for device in range(5)
    ]
    run = ran(
        world(file_data(tmp_path / "data", shards), 5, rfedavg(5), 2, training={"lr": 20.0}),
        tmp_path / "run",
    )
    for aggregation, reweighting in zip(
        of_kind(run, "aggregate"), of_kind(run, "reweighting"), strict=True
    ):
        given = aggregation["data"]["weights"]
        assert sorted(given)[0] == 0.0 < sorted(given)[1]
        assert sum(given) == pytest.approx(1.0)
        assert sum(reweighting["data"]["clusters"]) == 4
    assert {event["device"] for event in of_kind(run, "non-finite")} == {2}


def test_imbalance_is_at_least_one_sample_and_the_first_of_the_most_imbalanced_members_is_spared() -> (
    None
):
    one_class = np.repeat([[0, 50, 0]], 3, axis=0)
    assert cluster_imbalance(
        class_imbalance(one_class), one_class.sum(axis=1), [[0, 1, 2]]
    ).tolist() == [1.0]
    everything = np.array([[5, 5], [5, 5]])
    assert cluster_imbalance(
        class_imbalance(everything, 20), everything.sum(axis=1), [[0, 1]]
    ).tolist() == [1.0]
    assert cluster_imbalance(
        np.array([70.0, 90.0, 90.0]), np.array([1, 20, 3]), [[2, 1, 0]]
    ).tolist() == [90 - 3 - 1]


def test_class_shares_and_how_balanced_they_are() -> None:
    counts = np.array([[3, 1], [0, 4], [2, 0]])
    shares = class_shares(counts, [[0, 1], [2]])
    assert shares.tolist() == [[3 / 8, 1], [5 / 8, 0]]
    found = balance(
        counts, [[0, 1], [2]], [np.array([1.0, 0.0]), np.array([0.0, 1.0]), np.array([0.8, 0.2])]
    )
    assert found == {
        "beta": [pytest.approx(5 / 3), None, pytest.approx(1.0)],
        "distance": pytest.approx([1 / 32, 0.5, 0.0]),
    }


def mixtures_alike(shares: np.ndarray, weights: np.ndarray) -> list[np.ndarray]:
    """The corners of {q >= 0, sum q = 1, B q = B weights}, by trying every set of independent
    columns.
    """
    rows = np.vstack((shares, np.ones(shares.shape[1])))
    target = rows @ weights
    rank = int(np.linalg.matrix_rank(rows, tol=1e-9))
    corners = []
    for size in range(1, rank + 1):
        for chosen in combinations(range(shares.shape[1]), size):
            part = rows[:, chosen]
            if np.linalg.matrix_rank(part, tol=1e-9) < size:
                continue
            solution = np.linalg.lstsq(part, target)[0]
            if np.abs(part @ solution - target).max() < 1e-9 and solution.min() > -1e-9:
                corner = np.zeros(shares.shape[1])
                corner[list(chosen)] = solution
                corners.append(corner)
    return corners


@given(
    st.tuples(st.integers(2, 4), st.integers(1, 7)).flatmap(
        lambda shape: st.lists(
            st.lists(st.integers(0, 4), min_size=shape[0], max_size=shape[0]).filter(any),
            min_size=shape[1],
            max_size=shape[1],
        )
    )
)
@example([[1, 0, 0], [1, 1, 0], [0, 1, 0], [2, 1, 0], [1, 0, 1]])
# the least norm is that of an even mixture of all three
@example([[1, 0, 0], [0, 1, 0], [1, 1, 0]])
# the third lies in the supporting line of the nearest mixture
@example([[1, 1, 0], [1, 1, 0], [1, 0, 0]])
def test_optimal_weights_satisfy_the_conditions_of_optimality(histograms: list[list[int]]) -> None:
    counts = np.array(histograms)
    shares = class_shares(counts, [[device] for device in range(len(counts))])
    weights = optimal_weights(shares)
    assert weights.min() >= 0
    assert weights.sum() == pytest.approx(1, abs=1e-12)
    # A minimum of the convex objective: no cluster's shares lie on the near side of the mixture.
    mixture = shares @ weights
    offset = mixture - 1 / len(mixture)
    assert (offset @ shares).min() >= offset @ mixture - 1e-10
    # The least norm among the minimisers: none of their corners lies on the near side of the
    # weights.
    corners = mixtures_alike(shares, weights)
    assert corners
    assert min(float(weights @ corner) for corner in corners) >= weights @ weights - 1e-8


@pytest.mark.parametrize("seed", [18, 63, 210])
def test_clusters_that_are_nearly_alike(seed: int) -> None:
    generator = np.random.default_rng(seed)
    n = int(generator.integers(4, 9))
    counts = generator.integers(0, 100, (3, 3))[np.arange(n) % 3] * 100 + generator.integers(
        0, 3, (n, 3)
    )
    shares = class_shares(counts, [[device] for device in range(n)])
    weights = optimal_weights(shares)
    assert (
        min(float(weights @ corner) for corner in mixtures_alike(shares, weights))
        >= weights @ weights - 1e-8
    )
