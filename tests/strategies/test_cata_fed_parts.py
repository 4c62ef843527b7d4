"""CATA-Fed's parts one by one against known answers: clusters, groups, fairness, splits."""

import asyncio
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

import fedsim
from fedsim.running.assembly import Run
from fedsim.simulation import Simulation
from fedsim.toolbox.strategies.cata_fed import (
    at_random,
    cluster_numbers,
    cut_groups,
    fairest_group,
    in_turn,
    moderate_range,
    most_splits,
)

Ints = NDArray[np.int64]


def rng(seed: int = 1) -> np.random.Generator:
    return np.random.default_rng(seed)


def members(*sizes: int) -> Ints:
    """Cluster numbers of clients in clusters of the given sizes."""
    return np.repeat(np.arange(len(sizes)), sizes)


def jain(times: Ints) -> float:
    return float(times.sum() ** 2 / (len(times) * (times**2).sum()))


class TestClusters:
    def test_the_example_with_an_outlier(self) -> None:
        sizes = np.array([*range(100, 1001, 100), 5000])
        assert moderate_range(sizes) == (100, 1000)
        assert cluster_numbers(sizes, 3, (100, 1000)).tolist() == [0] * 3 + [1] * 3 + [2] * 5

    def test_equal_sizes_are_one_cluster_the_last(self) -> None:
        sizes = np.array([7] * 5 + [900])
        assert moderate_range(sizes) == (7, 7)
        assert cluster_numbers(sizes, 4, (7, 7)).tolist() == [3] * 6

    def test_borders_belong_to_the_upper_cluster_even_where_theta_is_no_binary_fraction(self) -> None:
        low, high, clusters = 7, 56, 49
        assert cluster_numbers(np.arange(low, high), clusters, (low, high)).tolist() == list(range(49))

    @given(st.lists(st.integers(1, 5000), min_size=1, max_size=60), st.integers(1, 9))
    def test_larger_data_are_never_in_a_lower_cluster(self, sizes: list[int], clusters: int) -> None:
        ordered = np.sort(np.array(sizes))
        low, high = moderate_range(ordered)
        assert ordered[0] <= low <= high <= ordered[-1]
        numbers = cluster_numbers(ordered, clusters, (low, high))
        assert (np.diff(numbers) >= 0).all()
        assert 0 <= numbers.min() <= numbers.max() < clusters


class TestGroups:
    def test_the_worked_example(self) -> None:
        """Section 4.3: 40 clients in clusters of 16, 16 and 8; K = 4 gives 4 + 4 + 2 groups."""
        cluster = members(16, 16, 8)
        blocks = cut_groups(cluster, 4, rng())
        assert [len(block) for block in blocks] == [4, 4, 2]
        grouped = np.concatenate([block.ravel() for block in blocks])
        assert sorted(grouped) == list(range(40))
        assert all(len(set(cluster[group])) == 1 for block in blocks for group in block)
        waiting = np.full(40, 4)
        waiting[blocks[1][2]] = [6, 5, 4, 6]  # 21; all others sum to 16
        assert fairest_group(blocks, waiting, rng()).tolist() == blocks[1][2].tolist()

    def test_who_is_left_over_sits_out_and_a_small_cluster_is_one_group(self) -> None:
        blocks = cut_groups(members(11, 3, 0, 4), 4, rng())
        assert [block.shape for block in blocks] == [(2, 4), (1, 3), (1, 4)]
        assert sorted(blocks[1][0]) == [11, 12, 13]

    def test_nobody_connected_nobody_chosen(self) -> None:
        nobody = np.full(5, -1)
        assert len(fairest_group(cut_groups(nobody, 2, rng()), np.zeros(5, dtype=np.int64), rng())) == 0
        assert len(in_turn(nobody, 3, 2, 0, rng())) == len(at_random(nobody, 2, rng())) == 0

    def test_round_robin_takes_clusters_in_turn_and_skips_empty_ones(self) -> None:
        cluster = members(5, 0, 5)
        turns = [set(cluster[in_turn(cluster, 3, 2, number, rng(number))]) for number in range(6)]
        assert turns == [{0}, {2}, {2}, {0}, {2}, {2}]


class TestSplits:
    @pytest.mark.parametrize(
        ("samples", "beta"), [(1000, 3), (99, 0), (100, 0), (199, 0), (200, 1), (399, 1), (799, 2), (800, 3), (3000, 4)]
    )
    def test_how_often_data_may_be_halved(self, samples: int, beta: int) -> None:
        assert most_splits(samples, 100) == beta


def connected(**strategy: Any) -> Run:
    """A run after its first round: 1,000 devices, all connected."""
    simulation = Simulation(
        fedsim.Scenario(
            seed=2,
            learning="off",
            population={"devices": 1000, "samples": {"low": 100, "high": 3000}, "speed": "100 samples/s"},
            strategy={"kind": "cata-fed", "clients_per_round": 40} | strategy,
            stop={"rounds": 1},
        )
    )
    asyncio.run(simulation.run())
    run: Run = simulation.installed
    return run


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
    [("proportional-fair", pytest.approx(0.986, abs=0.003)), ("random", pytest.approx(0.977, abs=0.003))],
)
def test_jain_of_the_strategy_itself(selection: str, expected: Any) -> None:
    run = connected(clusters=1, selection=selection)
    times = np.zeros(1000, dtype=np.int64)
    for number in range(1000):
        run.strategy.state["round"] = number + 1
        times[run.strategy.select()] += 1  # type: ignore[attr-defined]
    assert jain(times) == expected


class TestFairness:
    """Simulated selections, no world."""

    def fair(self, cluster: Ints, size: int, rounds: int) -> tuple[Ints, Ints]:
        """(times selected of each client, of each cluster) by proportional fairness."""
        waiting, times, picks = np.zeros(len(cluster), dtype=np.int64), np.zeros(len(cluster), dtype=np.int64), []
        generator = rng(3)
        for _ in range(rounds):
            chosen = fairest_group(cut_groups(cluster, size, generator), waiting, generator)
            times[chosen] += 1
            picks.append(cluster[chosen[0]])
            waiting += 1
            waiting[chosen] = 0
        return times, np.bincount(picks, minlength=int(cluster.max()) + 1)

    def test_a_cluster_is_selected_in_proportion_to_its_size(self) -> None:
        _, picks = self.fair(members(2094, 954, 459, 493), 40, 1000)
        assert picks == pytest.approx([524, 238, 115, 123], abs=8)

    def test_jain_of_round_robin_follows_its_closed_form(self) -> None:
        """P^2 / (n sum of 1/|X_m|), without the noise of sampling within clusters: so each client's expected selections."""
        cluster, generator = members(500, 250, 150, 100), rng()
        times = np.zeros(1000, dtype=np.int64)
        for number in range(8000):
            times[in_turn(cluster, 4, 40, number, generator)] += 1
        expected = 16 / (1000 * (1 / 500 + 1 / 250 + 1 / 150 + 1 / 100))
        assert jain(times) == pytest.approx(expected, abs=0.01)
