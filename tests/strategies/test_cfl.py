"""CFL against known answers: its criteria, its cuts, its tree, its bytes, and clients that are
late, absent or new.
"""

from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor

from fedsim.records.reading import RunFolder
from fedsim.toolbox.strategies.cfl_clusters import NormLimits, is_incongruent, norms_of
from tests.strategies.runs import groups_of, moves, of_kind, played, ran, told, weights
from tests.strategies.worlds import Centre, Sections, file_data, module, scheduled, world

ALWAYS = {"eps1": 1e9, "eps2": 0.0}
"""Thresholds by which every cluster is split in every round."""


class Valley(Centre):
    """r(w) = (w'x)^2 / 2, least at w = 0 whatever the sample; curved along x alone."""

    def forward(self, x: Tensor) -> Tensor:
        return (x @ self.w)[:, None]


def quadratics(
    centres: Any,
    folder: Path,
    rounds: int,
    sizes: list[int] | None = None,
    loss: type[Centre] = Centre,
    **strategy: Any,
) -> Sections:
    """Device i has ``centres[i]`` as its only sample, ``sizes[i]`` times; a local epoch is a
    gradient step of length ``lr``.
    """
    sizes = sizes or [1] * len(centres)
    shards = [
        (np.tile(np.float32(centre), (size, 1)), [0, 1][:1] * size)
        for centre, size in zip(centres, sizes, strict=True)
    ]
    shards[0][1][:] = [1] * len(shards[0][1])  # two classes, which nobody looks at
    lr = strategy.pop("lr", 0.5)
    population = strategy.pop("population", {}) | {"speed": "1 samples/s"}
    return world(
        file_data(folder, shards),
        len(centres),
        {"kind": "cfl", "local_epochs": 1} | strategy,
        rounds,
        training={"lr": lr, "batch_size": 1000},
        model=module(loss, start=[3.0, 1.0]),
        population=population,
    )


def splits(run: RunFolder) -> list[dict[str, Any]]:
    return [
        {"round": event["round"], "group": event["group"]} | event["data"]
        for event in of_kind(run, "cluster-split")
    ]


A = np.array([2.0, -1.0])


def test_both_criteria_are_as_strict_as_the_paper_writes_them() -> None:
    """Converged: less than eps1. Congruent, so not to be split: less than eps2."""
    found = norms_of(np.array([[3.0, 4.0], [-3.0, 4.0]]), [0.5, 0.5])
    assert found._asdict() == {"mean_norm": 4.0, "max_norm": 5.0}
    limits = [(4.0, 5.0), (4.000001, 5.0), (4.000001, 5.000001)]
    assert [is_incongruent(found, NormLimits(*pair)) for pair in limits] == [
        False,
        True,
        False,
    ]


def test_four_quadratics_are_split_once_and_end_at_their_own_minima(tmp_path: Path) -> None:
    run = ran(
        quadratics([A, A, -A, -A], tmp_path / "data", 30, eps1=0.01, eps2=0.5), tmp_path / "run"
    )
    (split,) = splits(run)
    assert (split["group"], split["children"], split["members"]) == (0, [1, 2], [[0, 1], [2, 3]])
    assert split["mean_norm"] < 0.01
    # a step is lr times the gradient
    assert split["max_norm"] == pytest.approx(0.5 * np.linalg.norm(A), abs=0.01)
    assert split["similarity"] == pytest.approx(-1, abs=1e-3)
    assert groups_of(run) == [1, 1, 2, 2]
    found = run.models()["group"]
    assert [found["1/w"], found["2/w"]] == [pytest.approx(A, abs=1e-5), pytest.approx(-A, abs=1e-5)]
    assert found["0/w"] == pytest.approx(0, abs=0.03)  # the parent's model at the split is kept
    (cut,) = of_kind(run, "clustering")
    assert (cut["data"]["devices"], cut["data"]["groups"]) == ([0, 1, 2, 3], [1, 1, 2, 2])
    similarity = np.array(cut["data"]["similarity"])
    assert similarity == pytest.approx(np.kron([[1, -1], [-1, 1]], np.ones((2, 2))), abs=1e-3)
    assert max(len(repr(entry)) for entry in similarity.ravel().tolist()) <= len("-0.123456")


@pytest.mark.parametrize(
    ("split", "members", "gap"),
    [("single", [[0, 1, 2, 3], [4]], 26), ("complete", [[0, 1], [2, 3, 4]], 22)],
)
def test_single_linkage_cuts_the_widest_gap(
    split: str, members: list[list[int]], gap: float, tmp_path: Path
) -> None:
    centres = [
        (3.0 + np.cos(angle), 1.0 + np.sin(angle)) for angle in np.radians([0, 20, 42, 66, 92])
    ]
    (found,) = splits(
        ran(quadratics(centres, tmp_path / "data", 1, split=split, **ALWAYS), tmp_path / "run")
    )
    assert (found["members"], found["similarity"]) == (
        members,
        pytest.approx(np.cos(np.radians(gap)), abs=1e-5),
    )


def test_one_cluster_after_the_other_is_trained_to_its_end(tmp_path: Path) -> None:
    """Algorithm 2: as many rounds as there are clusters' turns, each cluster without a gap, and
    none when all are done.
    """
    sections = quadratics(
        [A, A, -A, -A], tmp_path / "data", 200, eps1=0.01, eps2=0.5, order="recursive"
    )
    run = ran(sections, tmp_path / "run")
    assert run.summary["stopped"] == "every cluster has converged"
    asked: dict[int, set[int]] = {}
    for event in of_kind(run, "task-start"):
        asked.setdefault(event["round"], set()).add(event["device"])
    turns = [sorted(asked[number]) for number in sorted(asked)]
    assert [turn for at, turn in enumerate(turns) if not at or turns[at - 1] != turn] == [
        [0, 1, 2, 3],
        [0, 1],
        [2, 3],
    ]
    found = run.models()["group"]
    assert [found["1/w"], found["2/w"]] == [pytest.approx(A, abs=0.03), pytest.approx(-A, abs=0.03)]
    assert len(turns) < 40


def test_the_federated_xor_of_the_papers_first_figure(tmp_path: Path) -> None:
    """Four points, two a client, which a line parts for each client, but none for both: three of
    four are right at most.
    """
    above, below = ([[-1, 1], [1, 1]], [0, 1]), ([[-1, -1], [1, -1]], [1, 0])
    shards = [(np.array(x, dtype=np.float32), y) for x, y in (above, above, below, below)]
    data = file_data(tmp_path / "data", shards, tests=shards)
    strategy = {"kind": "cfl", "local_epochs": 1, "eps1": 0.01, "eps2": 0.1}
    sections = world(data, 4, strategy, 60, training={"lr": 0.5, "batch_size": 2})
    run = ran(sections, tmp_path / "run")
    (split,) = splits(run)
    assert split["members"] == [[0, 1], [2, 3]]
    assert split["similarity"] == pytest.approx(-1, abs=0.02)  # Eq. 4
    assert run.rounds[-1]["accuracy"] == 1.0
    fedavg = ran(
        sections | {"strategy": {"kind": "fedavg", "clients_per_round": 4}}, tmp_path / "fedavg"
    )
    assert max(row["accuracy"] for row in fedavg.rounds) <= 0.75


def test_clients_that_curve_in_different_directions_with_one_minimum_are_left_together(
    tmp_path: Path,
) -> None:
    valleys = [(1.0, 0.0), (0.0, 1.0), (0.6, 0.8), (1.2, 0.3)]
    sets = {"given": {"eps1": 0.002, "eps2": 0.01}, "by default": {}}
    for name, thresholds in sets.items():
        run = ran(
            quadratics(valleys, tmp_path / name, 60, loss=Valley, **thresholds),
            tmp_path / f"{name}-run",
        )
        criteria = [event["data"] for event in of_kind(run, "cluster-criteria")]
        assert criteria[-1]["mean_norm"] < criteria[-1]["eps1"]  # it has converged
        assert not splits(run)
        apart = quadratics([*CORNERS[:2]] * 2, tmp_path / f"{name}-apart", 60, **thresholds)
        assert len(splits(ran(apart, tmp_path / f"{name}-apart-run"))) == 1, (
            "thresholds that can split"
        )


def test_the_scale_is_that_of_the_first_updates(tmp_path: Path) -> None:
    sections = quadratics([A, A, -A, -A], tmp_path / "data", 8, lr=1.0)
    start = np.array([3.0, 1.0])
    scale = np.mean([np.linalg.norm(centre - start) for centre in (A, A, -A, -A)])
    for options, eps1, eps2 in (
        ({}, 0.2 * scale, 0.5 * scale),
        ({"eps1": 0.5}, 0.5, 1.25),
        ({"eps2": 7.0}, 0.2 * scale, 7.0),
    ):
        sections["strategy"] = {"kind": "cfl", "local_epochs": 1} | options
        _, records = played(sections)
        assert told(records, "cluster-criteria")
        for fields in told(records, "cluster-criteria"):
            assert (fields["eps1"], fields["eps2"]) == (pytest.approx(eps1), pytest.approx(eps2))


def test_in_the_round_of_a_split_the_children_move_as_one_or_apart(tmp_path: Path) -> None:
    """Gradient steps of full length: apart, each is at its minimum at once; as one, they wait at
    the mean for a round.
    """
    for source, after in (("published-code", [A, -A]), ("paper", [A * 0, A * 0])):
        sections = quadratics(
            [A, A, -A, -A], tmp_path / source, 1, lr=1.0, follows=source, **ALWAYS
        )
        run, _ = played(sections)
        parent, *children = weights(run)
        assert np.array(children) == pytest.approx(np.array(after), abs=1e-6)
        assert parent == pytest.approx(
            np.array([3.0, 1.0] if source == "published-code" else [0.0, 0.0]), abs=1e-6
        )


CORNERS = [(4.0, 4.0), (-4.0, 3.0), (-3.0, -4.0), (5.0, -4.0)]


def corners(folder: Path, devices: int, rounds: int, **options: Any) -> Sections:
    """Device d has corner d mod 4 as its minimum."""
    return quadratics([CORNERS[device % 4] for device in range(devices)], folder, rounds, **options)


def test_a_schedule_splits_one_cluster_a_time_and_that_which_pulls_hardest(tmp_path: Path) -> None:
    sections = corners(tmp_path / "data", 12, 12, split_rounds=[5, 7, 9])
    run = ran(sections, tmp_path / "run")
    found = splits(run)
    assert [split["round"] for split in found] == [5, 7, 9]
    criteria = {
        (event["round"], event["group"]): event["data"]
        for event in of_kind(run, "cluster-criteria")
    }
    # nothing is looked at in other rounds
    assert sorted({number for number, _ in criteria}) == [5, 7, 9]
    for split in found:
        longest = max(
            data["max_norm"] for (number, _), data in criteria.items() if number == split["round"]
        )
        assert split["max_norm"] == longest
    groups = groups_of(run)
    assert [groups[device] == groups[device % 4] for device in range(12)] == [True] * 12
    assert len(set(groups)) == 4


def permuted(strategy: Sections) -> Sections:
    """Digits, 20 clients, four permutations that agree pairwise on at most two of ten labels."""
    data = {"source": "digits", "partition": {"kind": "permutations", "groups": 4, "agree": 2}}
    training = {"lr": 0.3, "batch_size": 10}
    return world(data, 20, {"local_epochs": 3} | strategy, 20, training=training, seed=1)


def test_four_permutations_are_told_apart_by_three_splits_and_the_models_are_twice_as_good(
    tmp_path: Path,
) -> None:
    run = ran(permuted({"kind": "cfl"}) | {"evaluation": {"cosines": True}}, tmp_path / "cfl")
    assert len(splits(run)) == 3
    assert run.rounds[-1]["purity"] == run.rounds[-1]["ari"] == 1.0
    fedavg = ran(permuted({"kind": "fedavg", "clients_per_round": 20}), tmp_path / "fedavg")
    assert run.rounds[-1]["accuracy"] > 0.9
    assert run.rounds[-1]["accuracy"] >= 2 * fedavg.rounds[-1]["accuracy"]
    before = splits(run)[0]["round"] - 1
    assert run.rounds[before]["accuracy"] > 0.8 * fedavg.rounds[-1]["accuracy"], (
        "a split only near a stationary point"
    )
    for split, event in zip(splits(run), of_kind(run, "clustering"), strict=True):
        assert set(event["data"]["devices"]) == set(chain(*split["members"]))
        cosines, own = np.array(event["data"]["similarity"]), np.array(event["data"]["groups"])
        assert cosines[own[:, None] != own[None]].max() == pytest.approx(
            split["similarity"], abs=1e-6
        )
    rounds = [event["data"] for event in of_kind(run, "cosines")]
    mean = {
        kind: [data[kind][1] if kind in data else None for data in rounds]
        for kind in ("alike", "unlike", "settled")
    }
    assert mean["alike"][before] > mean["unlike"][before] + 0.1, (
        "the gap by which they are told apart (Fig. 3, 1)"
    )
    assert mean["alike"][-1] is mean["unlike"][-1] is None
    assert mean["settled"][-1] < mean["alike"][before] / 2, (
        "what is left when all are told apart points nowhere (Fig. 3, 3)"
    )


def test_an_absent_client_is_on_the_side_of_the_last_update_that_it_sent_to_the_cluster(
    tmp_path: Path,
) -> None:
    """Devices 5 and 6 leave before the first split: it puts them with their like.

    The next splits know nothing of them.
    """
    population = {"departures": scheduled(d5="5500 ms", d6="6500 ms")}
    run = ran(
        corners(tmp_path / "data", 12, 14, split_rounds=[8, 9, 10], population=population),
        tmp_path / "run",
    )
    first, *others = splits(run)
    for clients in first["members"]:
        assert {
            device for device in range(12) if device % 4 in {client % 4 for client in clients}
        } == set(clients)
    cut = of_kind(run, "clustering")[0]["data"]
    assert cut["devices"] == [0, 1, 2, 3, 4, 7, 8, 9, 10, 11]  # it is about those that were there
    for split in others:
        assert not {5, 6} & set(chain(*split["members"]))
    groups = groups_of(run)
    assert [
        groups[device] == groups[device % 4] for device in range(12) if device not in (5, 6)
    ] == [True] * 10


def test_who_has_never_sent_anything_is_on_no_side(tmp_path: Path) -> None:
    """Device 3 has so much data that it is always late: it counts with its cluster until that is
    split.
    """
    sections = quadratics(
        [A, -A, A, -A], tmp_path / "data", 8, sizes=[1, 1, 1, 50], deadline="10 s", split_rounds=[2]
    )
    run = ran(sections, tmp_path / "run")
    (split,) = splits(run)
    assert split["members"] == [[0, 2], [1]]
    assert groups_of(run) == [1, 2, 1, None]
    (left,) = [event for event in moves(run, "split") if event["device"] == 3]
    assert (left["group"], left["data"]["before"]) == (None, 0)
    assert {row["slow"] for row in run.rounds} == {1}
    downs = [row for row in run.transfers if row["device"] == 3 and row["round"] > 2]
    assert {row["purpose"] for row in downs} == {"cold-start"}


def test_an_update_that_is_not_finite_is_left_out_of_the_cut(tmp_path: Path) -> None:
    centres = [A, -A, A, -A, (3e38, -3e38)]
    run = ran(quadratics(centres, tmp_path / "data", 6, lr=1.9, split_rounds=[2]), tmp_path / "run")
    (split,) = splits(run)
    assert split["members"] == [[0, 2, 4], [1, 3]]
    (cut,) = of_kind(run, "clustering")
    assert cut["data"]["devices"] == [0, 1, 2, 3]
    assert {event["device"] for event in of_kind(run, "non-finite")} == {4}
    models = run.models()["group"]
    assert all(np.isfinite(values).all() for values in models.values())


def test_newcomers_go_down_the_tree_to_their_like(tmp_path: Path) -> None:
    """Four arrive after the splits; each makes as many models' journeys as its leaf is deep,
    then trains in rounds.
    """
    population = {"arrivals": scheduled(d8="20 s", d9="21 s", d10="23 s", d11="25 s")}
    run = ran(
        corners(tmp_path / "data", 12, 40, split_rounds=[6, 7, 8], population=population),
        tmp_path / "run",
    )
    groups = groups_of(run)
    assert [groups[device] for device in range(8, 12)] == groups[:4]
    parent = {child: split["group"] for split in splits(run) for child in split["children"]}
    joined = {event["device"]: event["group"] for event in moves(run, "cold-start")}
    assert sorted(joined) == [8, 9, 10, 11]
    for device, leaf in joined.items():
        depth, node = 0, leaf
        while node:
            depth, node = depth + 1, parent[node]
        walked = [
            row
            for row in run.transfers
            if row["device"] == device and row["purpose"] == "cold-start"
        ]
        assert [row["direction"] for row in walked] == ["down", "up"] * depth
        assert {row["bytes"] for row in walked} == {8.0}
        assert any(row["device"] == device and row["purpose"] == "update" for row in run.transfers)


def test_with_some_clients_a_round_the_others_find_their_place_when_they_are_selected(
    tmp_path: Path,
) -> None:
    sections = corners(tmp_path / "data", 16, 40, split_rounds=[4, 7, 10], clients_per_round=8)
    run = ran(sections, tmp_path / "run")
    assert {row["selected"] for row in run.rounds} == {8}
    assert any("continues" in event["data"] for event in of_kind(run, "task-start"))
    groups = groups_of(run)
    assert [groups[device] == groups[device % 4] for device in range(16)] == [True] * 16
    assert len(splits(run)) == 3
