"""LCFL against known answers, through whole runs: its distances, its clusters, its bytes, and
who comes and goes.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.common.training import Training
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_same_run, run, run_until
from fedsim.toolbox.clustering.algorithms import k_medoids
from fedsim.toolbox.clustering.comparison import by_losses, by_rows
from fedsim.toolbox.clustering.similarity import row_distances
from fedsim.toolbox.strategies.fl_hc import update_distances
from tests.strategies.runs import made, model_of, moved, of_kind, played, ran, weights
from tests.strategies.worlds import ROTATED, Centre, file_data, module, opposite_groups, world


class LeastSquares(Centre):
    """L(w) = mean (w'x - y)^2, where y is the last entry of a sample."""

    def forward(self, x: Tensor) -> Tensor:
        return (x[:, :-1] @ self.w - x[:, -1])[:, None]

    def loss(self, outputs: Tensor, y: Tensor) -> Tensor:
        return outputs[:, 0].square()


def with_module(
    loss: type[Centre], samples: list[np.ndarray], folder: Path, lr: float, features: int
) -> dict[str, Any]:
    """Device i holds ``samples[i]``, under labels that do not matter; models begin at the
    origin.
    """
    data = file_data(folder, [(own, np.arange(len(own)) % 2) for own in samples])
    model, training = module(loss, start=[0.0] * features), {"lr": lr, "batch_size": 1000}
    return world(data, len(samples), {"kind": "lcfl"}, 1, model=model, training=training)


def rotated_digits(devices: int, **strategy: Any) -> dict[str, Any]:
    """Handwritten digits, turned four ways; groups are found after a good local training."""
    return world(ROTATED, devices, {"kind": "lcfl", "local_epochs": 2} | strategy, 1, seed=1)


LOCAL: dict[str, Any] = {"moment": {"kind": "local", "epochs": 10}}
OWN = {"kind": "local", "epochs": 1, "start": "own"}


def models_after(scenario: dict[str, Any]) -> np.ndarray:
    """The clusters' models at the end of a run, [k, d]."""
    return np.stack(weights(played(scenario)[0]))


def clustering_of(run: RunFolder) -> dict[str, Any]:
    (found,) = of_kind(run, "clustering")
    return dict(found["data"])


def off(devices: int, rounds: int, **strategy: Any) -> dict[str, Any]:
    return {
        "learning": "off",
        "model": {"kind": "size", "bytes": "1000 B"},
        "population": {
            "devices": devices,
            "samples": {"low": 50, "high": 300},
            "speed": "100 samples/s",
        },
        "strategy": {"kind": "lcfl", "local_epochs": 2, "groups": 3} | strategy,
        "stop": {"rounds": rounds},
    }


def test_quadratics_are_as_far_apart_as_the_squares_of_their_centres(tmp_path: Path) -> None:
    """Eq. 2 of L_i(w) = |w - c_i|^2 / 2 at w_i = c_i is |c_i - c_j|^2, the square of DiffNorm."""
    centres = np.array([[0.0, 1.0], [3.0, 0.0], [0.5, 1.0], [3.0, 0.5], [-0.5, 0.5]])
    scenario = with_module(
        Centre, [np.tile(c, (4, 1)) for c in centres], tmp_path, lr=1.0, features=2
    )
    scenario["strategy"] = {
        "kind": "lcfl",
        "groups": 2,
        "moment": {"kind": "local", "steps": 1},
        "local_epochs": 1,
    }
    squares = ((centres[:, None] - centres[None]) ** 2).sum(axis=2)
    found = clustering_of(ran(scenario, tmp_path / "lcfl"))
    assert np.array(found["distance"]) == pytest.approx(squares, abs=1e-5)
    assert (found["devices"], found["groups"]) == ([0, 1, 2, 3, 4], [0, 1, 0, 1, 0])
    scenario["strategy"] |= {"measure": "diff-norm"}
    found = clustering_of(ran(scenario, tmp_path / "diff-norm"))
    assert np.array(found["distance"]) ** 2 == pytest.approx(squares, abs=1e-5)


def test_gradients_are_those_of_all_data_at_the_devices_own_models(tmp_path: Path) -> None:
    """Gradient descent on least squares by hand: w <- w - lr 2 X'(X w - y) / n from 0, and the
    gradient where it ends.

    The last step's own gradient is the one before that.
    """
    generator, lr, steps = np.random.default_rng(6), 0.1, 5
    samples = [generator.standard_normal((12, 4)) for _ in range(4)]
    expected, last, changes = [], [], []
    for own in samples:
        x, y, w = own[:, :-1], own[:, -1], np.zeros(3)
        for _ in range(steps):
            gradient = 2 * x.T @ (x @ w - y) / len(y)
            w = w - lr * gradient
        expected.append(2 * x.T @ (x @ w - y) / len(y))
        last.append(gradient)
        changes.append(w)
    scenario = with_module(LeastSquares, samples, tmp_path, lr=lr, features=3)
    scenario["strategy"] = {
        "kind": "lcfl",
        "groups": 2,
        "moment": {"kind": "local", "steps": steps},
        "local_epochs": 1,
    }
    for measure, vectors in (
        ("grad-cos", expected),
        ("last-batch-cos", last),
        ("update-cos", changes),
    ):
        scenario["strategy"] |= {"measure": measure}
        units = np.array(vectors) / np.linalg.norm(vectors, axis=1)[:, None]
        found = clustering_of(ran(scenario, tmp_path / measure))
        assert np.array(found["distance"]) == pytest.approx(1 - units @ units.T, abs=1e-5)


class ShiftedSoftmax(torch.nn.Module):
    """A softmax model whose classes all begin at the same row phi, a draw: the uniform
    distribution, whatever phi is.
    """

    def __init__(self, features: int, classes: int, scale: float) -> None:
        super().__init__()
        phi = scale * torch.randn(features)
        self.w = torch.nn.Parameter(phi.repeat(classes, 1))

    def forward(self, x: Tensor) -> Tensor:
        return x @ self.w.T


def test_a_shift_of_a_softmax_model_deceives_distances_of_models_and_not_losses(
    tmp_path: Path,
) -> None:
    """Section IV: w and w + phi for all K classes are one function, sqrt(K) |phi| apart.

    Devices 0 and 2 hold the same data, 1 and 3 the same others, and each begins at its own phi.
    Training never moves the part that all rows have in common, so models on the same data differ by
    their phi alone.
    """
    classes, features = 3, 4
    draw = np.random.default_rng(8)
    x = draw.normal(size=(60, features))
    labels = x[:, :classes].argmax(axis=1)
    shards = [(x, labels), (x, (labels + 1) % classes)] * 2
    model = module(ShiftedSoftmax, features=features, classes=classes, scale=10.0)
    how = {"model": model, "training": {"lr": 0.5, "batch_size": 60}, "seed": 4}
    strategy = {
        "kind": "lcfl",
        "groups": 2,
        "moment": {"kind": "local", "steps": 20, "start": "own"},
        "local_epochs": 1,
    }
    data = file_data(tmp_path, shards) | {"normalize": "none"}
    scenario = world(data, 4, strategy, 1, **how)
    run = made(scenario)
    begins = weights(run, [run.learner.initial(1 + device) for device in range(4)])
    phis = np.array([begin.reshape(classes, features)[0] for begin in begins], dtype=np.float64)
    apart = np.sqrt(classes) * np.linalg.norm(phis[:, None] - phis[None], axis=2)

    by_loss = clustering_of(ran(scenario, tmp_path / "lcfl"))
    distance = np.array(by_loss["distance"])
    assert [distance[0, 2], distance[1, 3]] == pytest.approx([0.0, 0.0], abs=1e-5)
    assert distance[0, 1] > 0.5
    assert by_loss["groups"] == [0, 1, 0, 1]

    scenario["strategy"] = strategy | {"measure": "diff-norm"}
    by_norm = clustering_of(ran(scenario, tmp_path / "diff-norm"))
    distance = np.array(by_norm["distance"])
    assert [distance[0, 2], distance[1, 3]] == pytest.approx([apart[0, 2], apart[1, 3]], rel=1e-4)
    assert by_norm["groups"] != [0, 1, 0, 1]


def test_who_has_diverged_is_left_out_and_all_else_is_as_without() -> None:
    losses = np.arange(16.0).reshape(4, 4)
    without = by_losses(losses[np.ix_([0, 2, 3], [0, 2, 3])])[1]
    for broken in (np.nan, np.inf):
        diverged = losses.copy()
        diverged[:, 1] = broken
        kept, distance = by_losses(diverged)
        assert kept == [0, 2, 3]
        assert np.array_equal(distance, without)
        empty = losses.copy()
        empty[1] = broken  # one that has no data finds nothing out
        assert by_losses(empty)[0] == [0, 2, 3]
    elsewhere = losses.copy()
    elsewhere[0, 2] = np.inf
    assert by_losses(elsewhere)[0] == [0, 1, 3]
    assert by_losses(np.full((2, 2), np.nan))[0] == []
    models = [np.ones(3, np.float32), np.array([1, np.nan, 0], np.float32), np.zeros(3, np.float32)]
    assert by_rows(models, row_distances)[0] == [0, 2]
    assert by_rows([models[1]], row_distances)[0] == []


FOUND_BY: list[dict[str, Any]] = [
    {"clusterer": "k-medoids"},
    {"clusterer": {"start": "k-medoids++"}},
]
FOUND_BY += [{"clusterer": "hierarchical"}, {"clusterer": "dbscan", "groups": 6}]


@pytest.mark.parametrize("clustering", FOUND_BY, ids=str)
def test_rotations_are_found_after_a_local_warm_up(
    clustering: dict[str, Any], tmp_path: Path
) -> None:
    run = ran(rotated_digits(24, **LOCAL, **clustering), tmp_path / "run")
    found = clustering_of(run)
    distance, truth = np.array(found["distance"]), np.arange(24) % 4
    assert distance[truth[:, None] != truth].min() > 2 * distance[truth[:, None] == truth].max()
    assert found["groups"] == [row["group"] for row in run.devices] == truth.tolist()


def test_as_the_published_code_medoids_may_begin_in_one_cluster(tmp_path: Path) -> None:
    samples = [
        np.full((2, 1), c)
        for c in (0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 100.0, 100.1, 100.2)
    ]
    scenario = with_module(Centre, samples, tmp_path, lr=1.0, features=1)
    strategy = {
        "kind": "lcfl",
        "groups": 2,
        "measure": "diff-norm",
        "moment": {"kind": "local", "steps": 1},
    }
    for source, begins in (("paper", "build"), ("published-code", "heuristic")):
        found = clustering_of(
            ran(scenario | {"strategy": strategy | {"follows": source}}, tmp_path / source)
        )
        assert (found["groups"] == [0] * 10 + [1] * 3) == (source == "paper")
        by_hand = k_medoids(np.array(found["distance"]), 2, begins, np.random.default_rng(0))  # type: ignore[arg-type]
        assert found["groups"] == by_hand.tolist()


def test_each_cluster_is_fedavg_by_itself(tmp_path: Path) -> None:
    """Two clusters of quadratics: with full steps each model is its members' mean, whatever the
    others do.
    """
    centres = np.array([[0.0, 1.0], [10.0, 0.0], [1.0, 1.0], [12.0, 0.0], [0.5, 4.0]])
    scenario = with_module(
        Centre, [np.tile(c, (3, 1)) for c in centres], tmp_path, lr=1.0, features=2
    )
    scenario["strategy"] = {"kind": "lcfl", "groups": 2, "moment": {"rounds": 1}, "local_epochs": 1}
    scenario["stop"] = {"rounds": 2}
    assert models_after(scenario) == pytest.approx(
        np.array([centres[[0, 2, 4]].mean(axis=0), [11.0, 0.0]]), abs=1e-5
    )


@pytest.mark.parametrize(("start", "first"), [("global", [5.5, 5.5]), ("members", [0.5, 10.5])])
def test_where_clusters_begin(start: str, first: list[float], tmp_path: Path) -> None:
    """Centres 0, 1 and 10, 11: a full step each in the warm-up, and then, as the learning rate
    decays, none to speak of.
    """
    samples = [np.full((2, 1), c) for c in (0.0, 1.0, 10.0, 11.0)]
    scenario = with_module(Centre, samples, tmp_path, lr=1.0, features=1)
    scenario["training"] |= {"lr_decay": 1e-9}
    scenario["strategy"] = {
        "kind": "lcfl",
        "groups": 2,
        "moment": {"rounds": 1},
        "local_epochs": 1,
        "clusters_start": start,
    }
    scenario["stop"] = {"rounds": 2}
    assert models_after(scenario).ravel().tolist() == pytest.approx(first, abs=1e-5)


def test_a_share_of_each_cluster_is_asked(tmp_path: Path) -> None:
    """As many as are really asked share the weight: of 6 members 0.4 are 2, and each counts a
    half.
    """
    run = ran(
        rotated_digits(24, **LOCAL, participation=0.4) | {"stop": {"rounds": 4}}, tmp_path / "run"
    )
    assert [row["selected"] for row in run.rounds] == [8] * 4
    for event in run.events:
        if event["kind"] == "aggregate":
            assert event["data"]["weights"] == [0.5, 0.5]
    asked = [event["device"] for event in of_kind(run, "task-start") if event["round"] == 0]
    assert sorted(device % 4 for device in asked) == [0, 0, 1, 1, 2, 2, 3, 3]


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_warm_up_is_fedavg_bit_for_bit(share: float, tmp_path: Path) -> None:
    """As in Tables II and III of the paper, where both have the same figures at iteration 5."""
    scenario = rotated_digits(12) | {"stop": {"rounds": 4}}
    fedavg = scenario | {
        "strategy": {"kind": "fedavg", "clients_per_round": round(12 * share), "local_epochs": 2}
    }
    lcfl = {
        "kind": "lcfl",
        "moment": {"rounds": 4, "participation": share},
        "local_epochs": 2,
        "aggregation": "weighted",
    }
    expected = ran(fedavg, tmp_path / "fedavg")
    alone = ran(scenario | {"strategy": lcfl}, tmp_path / "alone")
    longer = ran(scenario | {"strategy": lcfl, "stop": {"rounds": 6}}, tmp_path / "longer")
    assert alone.summary["models_sha256"] == expected.summary["models_sha256"]
    assert alone.rounds == expected.rounds
    assert longer.rounds[:4] == expected.rounds


def test_who_was_never_drawn_trains_before_the_exchange(tmp_path: Path) -> None:
    scenario = off(20, 3, moment={"rounds": 1, "participation": 0.25})
    run = ran(scenario, tmp_path / "run")
    assert (moved(run)["warm-up"], moved(run)["exchange"]) == (2 * 15 * 1000.0, 20 * 19 * 1000.0)
    assert clustering_of(run)["devices"] == list(range(20))


@pytest.mark.parametrize("warmup", ["federated", "local"])
def test_the_bytes_of_an_exchange_among_200(warmup: str, tmp_path: Path) -> None:
    """M = 200 and the paper's CNN of 417,482 parameters: M (M - 1) models down, M models and M
    (M - 1) scalars up.
    """
    moment = {"rounds": 1} if warmup == "federated" else {"kind": "local", "start": "own"}
    scenario = off(200, 1, moment=moment)
    scenario["model"] = {"kind": "size", "bytes": "1669928 B"}
    scenario["stop"] = {"rounds": 2 if warmup == "federated" else 1}
    purposes, models = moved(ran(scenario, tmp_path / "run")), 200 * 417_482 * 4.0
    assert models == 333_985_600
    assert purposes["exchange"] == 66_463_134_400
    assert purposes["probe-loss"] == 159_200
    assert purposes.get("warm-up", 0.0) == (models if warmup == "local" else 0.0)
    rounds = scenario["stop"]["rounds"]
    assert (purposes["model"], purposes["update"]) == (rounds * models, rounds * models)


@pytest.mark.parametrize(
    ("measure", "gradients"),
    [("diff-norm", 0), ("grad-cos", 10), ("last-batch-cos", 10), ("update-cos", 0)],
)
def test_other_metrics_need_no_exchange(measure: str, gradients: int, tmp_path: Path) -> None:
    run = ran(off(10, 3, moment={"rounds": 2}, measure=measure), tmp_path / "run")
    extra = {"gradient": gradients * 1000.0} if gradients else {}
    assert moved(run) == {"model": 30 * 1000.0, "update": 30 * 1000.0} | extra
    assert clustering_of(run)["measure"] == measure
    rotated = rotated_digits(24, **LOCAL, measure=measure)
    groups = clustering_of(ran(rotated, tmp_path / "rotated"))["groups"]
    truth = (np.arange(24) % 4).tolist()
    assert (groups == truth) == (measure != "last-batch-cos"), (
        "the noise of a mini-batch hides the groups"
    )


def test_the_last_gradient_is_there_since_the_training_and_takes_no_time(tmp_path: Path) -> None:
    """After the warm-up each device sends 1,000 B over 8 kbit/s, and computes nothing."""
    run = ran(slow_four(moment=OWN, measure="last-batch-cos"), tmp_path / "run")
    (begin,) = [
        event["time"] for event in of_kind(run, "campaign") if event["data"]["what"] == "gradient"
    ]
    (end,) = [event["time"] for event in of_kind(run, "clustering")]
    assert end - begin == pytest.approx(1.0)


def test_gradients_of_mini_batches_survive_a_stop(tmp_path: Path) -> None:
    scenario = opposite_groups(tmp_path, [30] * 4)
    strategy = {
        "kind": "lcfl",
        "groups": 2,
        "local_epochs": 2,
        "moment": {"rounds": 2},
        "measure": "last-batch-cos",
    }
    sections = world(scenario, 4, strategy, 3)
    events = run(sections, tmp_path / "whole")["events"]
    status = run_until(sections, tmp_path / "cut", events // 3)
    while status == "interrupted":
        status = run_until(sections, tmp_path / "cut", events // 3, resume=True)
    assert_same_run(tmp_path / "whole", tmp_path / "cut")


def slow_four(**strategy: Any) -> dict[str, Any]:
    scenario = off(4, 1, groups=2, **strategy)
    scenario["population"] = {
        "devices": 4,
        "samples": {"low": 90, "high": 90},
        "speed": "30 samples/s",
    }
    return scenario | {
        "network": {"kind": "star", "device": {"down": "8 kbit/s", "up": "8 kbit/s"}}
    }


def test_time_of_the_exchange(tmp_path: Path) -> None:
    """3 models of 1 kB over 8 kbit/s are 3 s, four forward passes over 90 samples at 30
    samples/s are 4 s, 12 B up 12 ms.
    """
    run = ran(slow_four(moment=OWN), tmp_path / "run")
    (begin,) = [e["time"] for e in of_kind(run, "campaign") if e["data"]["what"] == "exchange"]
    assert begin == pytest.approx(3 + 1)
    (end,) = [e["time"] for e in of_kind(run, "clustering")]
    assert end - begin == pytest.approx(3 + 4 + 0.012)


def on_and_off(folder: Path, **limit: Any) -> dict[str, Any]:
    """Four devices, all on for 10 s and off for 10 s, in turn; the exchange begins at 4 s and
    takes them 7 s.
    """
    scenario = slow_four(moment=OWN | limit, local_epochs=1)
    (folder / "on.json").write_text(
        '{"1": {"start": 0, "end": 20, "ready": [[0, 10]], "ok": true}}'
    )
    scenario["data"] = {"root": str(folder)}
    scenario["population"] |= {"availability": {"kind": "flash", "file": "on.json"}}
    return scenario


def test_who_is_lost_in_the_exchange_is_asked_again(tmp_path: Path) -> None:
    run = ran(on_and_off(tmp_path), tmp_path / "run")
    (found,) = of_kind(run, "clustering")
    assert found["time"] == pytest.approx(20 + 7.012)
    assert found["data"]["devices"] == [0, 1, 2, 3]
    # what they had received before is lost
    assert run.summary["bytes"]["by_purpose"]["exchange"] > 4 * 3 * 1000.0


def test_without_an_exchange_the_run_ends_and_says_so(tmp_path: Path) -> None:
    run = ran(on_and_off(tmp_path, deadline="5 s"), tmp_path / "run")
    assert run.summary["stopped"] == "0 devices came back from the exchange, too few for 2 groups"
    assert run.summary["simulated_s"] == pytest.approx(9.0)
    assert not run.rounds


def test_who_is_late_in_the_exchange_is_placed_like_a_newcomer(tmp_path: Path) -> None:
    scenario = rotated_digits(24, moment=LOCAL["moment"] | {"deadline": "100 s"}) | {
        "stop": {"rounds": 12}
    }
    scenario["population"]["speed"] = {"kind": "lognormal", "median": "40 samples/s", "spread": 3.0}
    run = ran(scenario, tmp_path / "run")
    late = sorted(set(range(24)) - set(clustering_of(run)["devices"]))
    assert 0 < len(late) < 12
    assert (
        sorted(
            event["device"]
            for event in of_kind(run, "assign")
            if event["data"]["why"] == "cold-start"
        )
        == late
    )
    assert run.rounds[-1]["ari"] == 1.0


def test_newcomers_join_the_cluster_that_fits_them(tmp_path: Path) -> None:
    """One comes in the warm-up and is drawn; one when the clusters begin, all at the same model: it
    must wait for the first round before it can tell them apart. Those who come after the warm-up
    receive four models each, once.
    """
    scenario = rotated_digits(24, moment={"rounds": 3}) | {"stop": {"rounds": 12}}
    scenario["population"] |= {"speed": "100 samples/s", "arrivals": {"kind": "schedule"}}
    scenario["population"]["arrivals"] |= {
        "times": ["3 s", "36 s", "60 s", "60 s"],
        "devices": [3, 7, 8, 9],
    }
    run = ran(scenario, tmp_path / "run")
    clustered = next(event["time"] for event in of_kind(run, "clustering"))
    assert 3.0 < clustered < 36.0
    assert clustering_of(run)["devices"] == [
        device for device in range(24) if device not in (7, 8, 9)
    ]
    why = {event["device"]: event["data"]["why"] for event in of_kind(run, "assign")}
    assert [device for device in range(24) if why[device] == "cold-start"] == [7, 8, 9]
    assert [row["group"] for row in run.devices] == (np.arange(24) % 4).tolist()
    purposes = run.summary["bytes"]["by_purpose"]
    assert (purposes["cold-start"], purposes["id"]) == (3 * 4 * 650 * 4.0, 3 * 4.0)


def test_a_warm_up_that_diverges_is_named() -> None:
    scenario = rotated_digits(8, **LOCAL)
    scenario["training"] |= {"lr": 1e6, "weight_decay": 1e6}
    with pytest.raises(
        SimulationError,
        match=r"the warm-up of 8 devices gave 0 finite models, fewer than the 4 groups",
    ):
        fedsim.run(fedsim.Scenario(**scenario))


# FL+HC.

FLHC: dict[str, Any] = {"kind": "fl-hc", "groups": 2, "local_epochs": 2, "moment": {"rounds": 1}}


@pytest.mark.parametrize(
    ("measure", "expected"), [("l1", [0, 3, 2]), ("l2", [0, 5**0.5, 2]), ("cosine", [0, 1, 0])]
)
def test_distances_by_hand(measure: Any, expected: list[float]) -> None:
    assert update_distances(np.array([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]), measure)[
        0
    ] == pytest.approx(expected)


@pytest.mark.parametrize("metric", ["l1", "l2", "cosine"])
def test_devices_with_opposite_labels_are_told_apart(metric: str, tmp_path: Path) -> None:
    sections = world(opposite_groups(tmp_path, [40] * 8), 8, FLHC | {"measure": metric}, 3)
    run = ran(sections, tmp_path / metric)
    assert [row["group"] for row in run.devices] == [0, 1] * 4
    assert moved(run)["warm-up"] == 2 * 8 * (4 * 2 + 2) * 4


def test_a_threshold_leaves_as_many_clusters_as_there_are(tmp_path: Path) -> None:
    data = opposite_groups(tmp_path, [40] * 8)
    for threshold, groups in ((1e6, [0] * 8), (1e-6, list(range(8)))):
        strategy = FLHC | {"groups": 1, "clusterer": {"threshold": threshold}}
        assert (
            clustering_of(ran(world(data, 8, strategy, 2), tmp_path / str(threshold)))["groups"]
            == groups
        )


def test_what_is_compared_are_updates_of_one_model(tmp_path: Path) -> None:
    """Distances as recorded, against those of devices that train from the model after the
    warm-up.
    """
    data, full = opposite_groups(tmp_path, [40] * 4), {"training": {"batch_size": 40}}
    run = ran(world(data, 4, FLHC | {"measure": "l2"}, 2, **full), tmp_path / "run")
    (made,) = of_kind(run, "clustering")
    warm, _ = played(
        world(data, 4, {"kind": "fedavg", "clients_per_round": 4, "local_epochs": 2}, 1, **full)
    )
    model = model_of(warm)
    start = warm.learner.given(model)
    # full batches: no shuffle matters
    ends = [warm.learner.train(Training(start, 2), device, key=9) for device in range(4)]
    updates = np.array(weights(warm, ends)) - model
    expected = np.linalg.norm(updates[:, None] - updates[None, :], axis=2)
    assert np.array(made["data"]["distance"]) == pytest.approx(expected, rel=1e-3, abs=1e-4)
