"""Parts of CATA-Fed against known answers: clusters, groups, splits, fairness."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.running.assembly import Run
from fedsim.toolbox.strategies.cata_fed import (
    at_random,
    cluster_numbers,
    cut_groups,
    fairest_group,
    in_turn,
    moderate_range,
)
from tests.strategies.runs import played

Ints = NDArray[np.int64]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def members(*sizes: int) -> Ints:
    """Cluster numbers of clients in clusters of the given sizes."""
    return np.repeat(np.arange(len(sizes)), sizes)


def jain(times: Ints) -> float:
    return float(times.sum() ** 2 / (len(times) * (times**2).sum()))


def test_clusters_by_hand() -> None:
    outlier, equal = np.array([*range(100, 1001, 100), 5000]), np.array([7] * 5 + [900])
    assert (moderate_range(outlier), moderate_range(equal)) == ((100, 1000), (7, 7))
    assert cluster_numbers(outlier, 3, (100, 1000)).tolist() == [0] * 3 + [1] * 3 + [2] * 5
    assert cluster_numbers(equal, 4, (7, 7)).tolist() == [3] * 6, (
        "equal sizes are one cluster, the last"
    )
    borders = cluster_numbers(np.arange(7, 56), 49, (7, 56)).tolist()
    assert borders == list(range(49)), (
        "they belong to the upper cluster, even where theta is no binary fraction"
    )


@given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 9))
def test_larger_data_are_never_in_a_lower_cluster(sizes: list[int], clusters: int) -> None:
    ordered = np.sort(np.array(sizes))
    low, high = moderate_range(ordered)
    assert ordered[0] <= low <= high <= ordered[-1]
    numbers = cluster_numbers(ordered, clusters, (low, high))
    assert (np.diff(numbers) >= 0).all()
    assert 0 <= numbers.min() <= numbers.max() < clusters


def test_the_worked_example_of_groups() -> None:
    """Section 4.3: 40 clients in clusters of 16, 16 and 8; K = 4 gives 4 + 4 + 2 groups."""
    cluster = members(16, 16, 8)
    blocks = cut_groups(cluster, 4, rng())
    assert [len(block) for block in blocks] == [4, 4, 2]
    assert sorted(np.concatenate([block.ravel() for block in blocks])) == list(range(40))
    assert all(len(set(cluster[group])) == 1 for block in blocks for group in block)
    waiting = np.full(40, 4)
    waiting[blocks[1][2]] = [6, 5, 4, 6]  # 21; all others sum to 16
    assert fairest_group(blocks, waiting, rng()).tolist() == blocks[1][2].tolist()


def test_who_is_in_no_group_and_ties() -> None:
    blocks = cut_groups(members(11, 3, 0, 4), 4, rng())
    assert [block.shape for block in blocks] == [(2, 4), (1, 3), (1, 4)], (
        "who is left over sits out"
    )
    assert sorted(blocks[1][0]) == [11, 12, 13], "a small cluster is one group"
    cluster, there = members(8, 8), set(range(16)) - {0, 3, 9}
    cluster[[0, 3, 9]] = -1
    assert sorted(
        np.concatenate([block.ravel() for block in cut_groups(cluster, 1, rng())])
    ) == sorted(there)
    assert set(at_random(cluster, 16, rng())) == there
    nobody = np.full(5, -1)
    assert len(fairest_group(cut_groups(nobody, 2, rng()), np.zeros(5, dtype=np.int64), rng())) == 0
    assert len(in_turn(nobody, 3, 2, 0, rng())) == len(at_random(nobody, 2, rng())) == 0
    cluster = members(5, 0, 5)
    turns = [set(cluster[in_turn(cluster, 3, 2, number, rng(number))]) for number in range(6)]
    assert turns == [{0}, {2}, {2}, {0}, {2}, {2}], "round robin skips empty clusters"
    blocks, generator = [np.arange(8).reshape(2, 4), np.arange(8, 16).reshape(2, 4)], rng()
    picks = [
        int(fairest_group(blocks, np.zeros(16, dtype=np.int64), generator)[0]) // 4
        for _ in range(4000)
    ]
    assert np.bincount(picks) == pytest.approx([1000] * 4, abs=110)  # 4 sd


def connected(**strategy: Any) -> Run:
    """A run after its first round: 1,000 devices, all connected."""
    population = {"devices": 1000, "samples": {"low": 100, "high": 3000}, "speed": "100 samples/s"}
    how = {"kind": "cata-fed", "clients_per_round": 40} | strategy
    return played(
        {
            "seed": 2,
            "learning": "off",
            "population": population,
            "strategy": how,
            "stop": {"rounds": 1},
        }
    )[0]


def test_waits_are_conserved_and_a_selected_client_starts_again_at_none() -> None:
    state = (run := connected()).strategy.state
    for number in range(1, 60):
        state["round"] = number
        before = number - np.array(state["zeroed"])
        chosen = run.strategy.select()  # type: ignore[attr-defined]
        after = number + 1 - np.array(state["zeroed"])
        others = np.setdiff1d(np.arange(1000), chosen)
        assert len(chosen) == 40
        assert (after[chosen] == 0).all()
        assert after.sum() == (before[others] + 1).sum()
        assert len(set(np.array(state["cluster"])[chosen])) == 1


@pytest.mark.parametrize(
    ("selection", "expected"),
    [("proportional-fair", 0.986), ("random", 0.977), ("round-robin", 0.977)],
)
def test_jain_of_the_strategy_itself(selection: str, expected: float) -> None:
    run = connected(clusters=1, selection=selection)
    times = np.zeros(1000, dtype=np.int64)
    for number in range(1000):
        run.strategy.state["round"] = number + 1
        times[run.strategy.select()] += 1  # type: ignore[attr-defined]
    assert jain(times) == pytest.approx(expected, abs=0.003)


def test_a_cluster_is_selected_in_proportion_to_its_size() -> None:
    cluster, generator = members(2094, 954, 459, 493), rng(3)
    waiting, picks = np.zeros(len(cluster), dtype=np.int64), []
    for _ in range(1000):
        chosen = fairest_group(cut_groups(cluster, 40, generator), waiting, generator)
        picks.append(cluster[chosen[0]])
        waiting += 1
        waiting[chosen] = 0
    assert np.bincount(picks) == pytest.approx([524, 238, 115, 123], abs=8)
