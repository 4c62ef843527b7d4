"""CATA-Fed in whole simulated runs: everything emerges from events."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from fedsim.learning.data.federated import stratified_part
from fedsim.records.reading import RunFolder
from fedsim.running.assembly import Run
from fedsim.toolbox.strategies.cata_fed import (
    at_random,
    cluster_numbers,
    cut_groups,
    fairest_group,
    in_turn,
    moderate_range,
)
from tests.strategies.runs import (
    initial_weights,
    model_after,
    moved,
    of_kind,
    played,
    ran,
    trainings,
)
from tests.strategies.worlds import full_batches, write_data


def run_of(
    folder: Path, sizes: list[int], rounds: int = 1, speed: str = "1 samples/s", **strategy: Any
) -> RunFolder:
    """A run without network time, one cluster of all devices unless told otherwise: device d
    needs sizes[d] s an epoch.
    """
    usual = {"kind": "cata-fed", "clusters": 1}
    scenario = full_batches(
        write_data(folder, sizes), len(sizes), rounds, usual | strategy, lr=0.01
    )
    scenario["population"]["speed"] = speed
    return ran(scenario, folder / "run")


def epochs(run: RunFolder) -> dict[int, int]:
    return {event["device"]: event["data"]["epochs"] for event in trainings(run)}


@pytest.mark.parametrize(
    ("T", "expected"), [(1.0, [2, 5, 77]), (0.5, [1, 2, 38]), (0.2, [0, 1, 15])]
)
def test_as_many_epochs_as_fit(tmp_path: Path, T: float, expected: list[int]) -> None:
    """Equal speeds, mean size 1,550: floor(7750 T / |D|) epochs."""
    run = run_of(tmp_path, [3000, 1550, 100], deadline={"kind": "relative", "times": T})
    assert epochs(run) == dict(enumerate(expected))


def test_with_changing_speed_the_mean_of_its_own_epochs_decides(
    small: dict[str, Any], tmp_path: Path
) -> None:
    small["population"] |= {
        "jitter": 0.6,
        "slow_phases": {"factor": 0.2, "mean_normal": "20 s", "mean_slow": "5 s"},
    }
    small["population"] |= {"availability": {"kind": "always"}}
    small["strategy"] = {
        "kind": "cata-fed",
        "clients_per_round": 6,
        "deadline": "15 s",
        "mitigation": False,
    }
    small["strategy"] |= {"upload_time": "ignored"}
    run = ran(small | {"stop": {"rounds": 20}}, tmp_path / "run")
    budget = 15.0
    starts = {
        event["task"]: event["time"]
        for event in of_kind(run, "step-start")
        if event["step"] == "train"
    }
    stopped_in_time = 0
    for event in trainings(run):
        start, ends, count = (
            starts[event["task"]],
            event["data"]["epoch_ends"],
            event["data"]["epochs"],
        )
        assert len(ends) == count
        assert event["time"] <= start + budget
        for finished, end in enumerate(ends[:-1], start=1):
            assert (end - start) / finished <= start + budget - end  # it went on
        if count and event["time"] < start + budget:
            assert event["time"] == ends[-1]
            assert (ends[-1] - start) / count > start + budget - ends[-1]  # it stopped
            stopped_in_time += 1
    assert stopped_in_time > 20
    watched = [event for event in trainings(run) if event["time"] == starts[event["task"]] + budget]
    # the watchdog came in a later epoch, and finished ones are kept
    assert any(event["data"]["epochs"] for event in watched)
    assert any(not event["data"]["epochs"] for event in watched)


def test_without_adaptive_updates_all_of_the_fixed_epochs_or_nothing(tmp_path: Path) -> None:
    run = run_of(tmp_path, [3000, 1550, 100], adaptive=False)
    assert epochs(run) == {0: 0, 1: 5, 2: 5}
    assert (run.rounds[0]["valid"], run.rounds[0]["slow"]) == (2, 1)
    assert [event["device"] for event in of_kind(run, "split")] == [0]


@pytest.mark.parametrize(("size_reports", "reported"), [("largest", 2), ("all", 2 + 4)])
def test_a_straggler_halves_its_data_and_trains_on_part_after_part(
    tmp_path: Path, size_reports: str, reported: int
) -> None:
    """It is split twice, and so reports a size or those of all parts, after the two sizes of
    connecting.
    """
    run = run_of(tmp_path, [1000, 100], rounds=8, deadline="300 s", size_reports=size_reports)
    parts = [event["data"].get("part") for event in trainings(run) if event["device"] == 0]
    assert parts == [None, [1, 2, 500], *([number, 4, 250] for number in (4, 1, 2, 3, 4, 1))]
    assert [(row["valid"], row["slow"]) for row in run.rounds] == [(1, 1)] * 2 + [(2, 0)] * 6
    assert [(event["round"], event["data"]["sizes"]) for event in of_kind(run, "split")] == [
        (0, [500] * 2),
        (1, [250] * 4),
    ]
    assert [event["data"]["weights"] for event in of_kind(run, "aggregate")] == [[1.0]] * 2 + [
        [250 / 350, 100 / 350]
    ] * 6
    assert moved(run)["size-report"] == 4 * (2 + reported)


def test_data_are_not_split_beyond_the_smallest_part(tmp_path: Path) -> None:
    run = run_of(tmp_path, [1000, 100], rounds=6, deadline="110 s")
    assert [event["data"]["sizes"][0] for event in of_kind(run, "split")] == [500, 250, 125]
    assert [row["slow"] for row in run.rounds] == [1] * 6


def test_finished_epochs_are_lost_with_one_that_is_cut_where_the_pseudocode_is_read_by_the_letter(
    tmp_path: Path,
) -> None:
    kept, lost = {}, {}
    for name, found in (("kept", kept), ("lost", lost)):
        strategy = {
            "kind": "cata-fed",
            "clusters": 1,
            "deadline": "50 s",
            "smallest_part": 10,
            "cut_epoch": name,
        }
        scenario = full_batches(write_data(tmp_path, [20] * 40), 40, 1, strategy, lr=0.01)
        scenario["population"] |= {"speed": "1 samples/s", "jitter": 0.6}
        run = ran(scenario, tmp_path / name)
        for event in trainings(run):
            found[event["device"]] = (
                event["data"]["epochs"],
                len(event["data"]["epoch_ends"]),
                event["time"],
            )
        assert run.rounds[0]["slow"] == sum(epochs == 0 for epochs, _, _ in found.values())
    cut = {
        device
        for device, (epochs, _, end) in kept.items()
        if epochs and end == max(end for _, _, end in kept.values())
    }
    assert 3 < len(cut) < 37
    assert {device for device in kept if kept[device] != lost[device]} == cut
    assert all(lost[device][0] == 0 for device in cut)


def test_clusters_are_made_anew_from_the_next_round_on_when_a_size_changed(tmp_path: Path) -> None:
    sizes = [100, 200, 300, 400, 500, 600, 700, 2000]
    run = run_of(tmp_path, sizes, rounds=30, deadline="1200 s", clusters=2, clients_per_round=4)
    splits, clusters = of_kind(run, "split"), of_kind(run, "cluster")
    assert [event["device"] for event in splits] == [7]
    assert [event["round"] for event in clusters] == [0, splits[0]["round"] + 1]
    assert clusters[0]["data"] == {"bounds": [100, 700], "members": [3, 5]}
    assert clusters[1]["data"] == {"bounds": [100, 1000], "members": [5, 3]}
    groups = {
        event["task"]: event["group"] for event in of_kind(run, "task-start") if event["round"] == 0
    }
    assert len(set(groups.values())) == 1


def test_a_part_is_trained_as_if_it_were_all_the_data(tmp_path: Path) -> None:
    """Round 0 splits 400 samples, round 1 trains an epoch on part 1: FedAvg's round on a device
    that holds only that part.
    """
    split = full_batches(
        write_data(tmp_path, [400]), 1, 2, {"kind": "cata-fed", "clusters": 1, "deadline": "250 s"}
    )
    split["population"]["speed"] = "1 samples/s"
    part = stratified_part(np.load(tmp_path / "data.npz")["y_train"], 1, 1)
    (tmp_path / "who.json").write_text(json.dumps({"0": {"train": list(range(400)), "test": [0]}}))
    after_split = model_after(split)
    (tmp_path / "who.json").write_text(json.dumps({"0": {"train": part.tolist(), "test": [0]}}))
    alone = model_after(full_batches(split["data"], 1, 1, {"kind": "fedavg"}))
    assert after_split == pytest.approx(alone, abs=1e-6)
    assert np.abs(after_split - initial_weights(split)).max() > 1e-3


@pytest.mark.parametrize(("option", "per_straggler"), [("model", 4 * 21 + 4), ("flag", 4)])
def test_what_moves(tmp_path: Path, option: str, per_straggler: int) -> None:
    """d = 6 x 3 + 3 = 21 parameters; two valid clients and a straggler that may not split, for
    two rounds.
    """
    run = run_of(tmp_path, [100, 100, 199], rounds=2, deadline="150 s", straggler_upload=option)
    found = run.summary["bytes"]
    assert found["down"] == 2 * 3 * (4 * 21 + 4)
    assert found["up"] == 3 * 4 + 2 * (2 * (4 * 21 + 4) + per_straggler)
    assert found["paper"] == 2 * (3 + 2 + (option == "model")) * 4 * 21
    assert found["by_purpose"]["control"] == 2 * 2 * 3 * 4
    # all that passed between the straggler and the server
    assert found["wasted"] == 2 * (4 * 21 + 4 + per_straggler)


@pytest.mark.parametrize(
    ("T", "slow", "fires_above"), [(0.4, False, math.inf), (0.5, True, 1.25), (1.0, True, math.inf)]
)
def test_whom_a_deadline_makes_a_straggler(
    T: float, slow: bool, fires_above: float, tmp_path: Path
) -> None:
    """Section 7.6: at equal speed nobody for T >= 3000/7750; at half speed and T = .5 those
    above 1.25 times the mean size.
    """
    population = {"devices": 400, "samples": {"low": 100, "high": 3000}, "speed": "100 samples/s"}
    population |= {"stragglers": {"share": 1.0}} if slow else {}
    strategy = {
        "kind": "cata-fed",
        "clients_per_round": 400,
        "clusters": 1,
        "deadline": {"kind": "relative", "times": T},
    }
    scenario = {
        "seed": 4,
        "learning": "off",
        "population": population,
        "strategy": strategy,
        "stop": {"rounds": 1},
    }
    run = ran(scenario, tmp_path / "run")
    samples = {row["device"]: row["samples"] for row in run.devices}
    mean = np.mean(list(samples.values()))
    stragglers = {event["device"] for event in of_kind(run, "split")}
    assert stragglers == {device for device, size in samples.items() if size > fires_above * mean}
    assert bool(stragglers) == (fires_above < math.inf)


@pytest.fixture
def shaky(small: dict[str, Any]) -> dict[str, Any]:
    """Devices that vanish often, and rounds of CATA-Fed."""
    small["population"]["availability"] = {"kind": "renewal", "mean_on": "80 s", "mean_off": "30 s"}
    small["strategy"] = {
        "kind": "cata-fed",
        "clients_per_round": 4,
        "deadline": "12 s",
        "clusters": 2,
    }
    small["learning"] = "off"
    return small | {"stop": {"rounds": 60}}


def lost_and_next(run: RunFolder) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """For each lost task the next task of the same device."""
    pairs = []
    for at, event in enumerate(run.events):
        if event["kind"] == "task-end" and event["outcome"] == "lost":
            later = (
                next_
                for next_ in run.events[at:]
                if next_["kind"] == "task-start" and next_["device"] == event["device"]
            )
            pairs.append((event, next(later, None)))
    return pairs


def test_a_disconnected_client_is_removed_for_good(shaky: dict[str, Any], tmp_path: Path) -> None:
    run = ran(shaky, tmp_path / "run")
    assert run.summary["stopped"] == "no client is connected any more"
    assert [following for _, following in lost_and_next(run)] == [None] * 20


def test_a_client_that_rejoins_is_a_new_one(shaky: dict[str, Any], tmp_path: Path) -> None:
    shaky["strategy"] |= {"rejoin": True, "smallest_part": 5, "deadline": "2 s"}
    run = ran(shaky, tmp_path / "run")
    assert run.summary["rounds"] == 60
    returned = [
        (lost, following) for lost, following in lost_and_next(run) if following is not None
    ]
    assert len(returned) > 10
    for lost, following in returned:
        assert following["round"] is None  # a size report comes first
        assert following["time"] >= lost["time"] + 60.0
    assert {event["device"] for event in of_kind(run, "split")} & {
        following["device"] for _, following in returned
    }
    connected: set[int] = set()
    unsplit: set[int] = set()  # who has reported and not been split since
    for event in run.events:
        if event["kind"] == "task-end" and event["outcome"] == "done" and event["round"] is None:
            connected.add(event["device"])
        elif event["kind"] == "task-end" and event["outcome"] == "lost":
            connected.discard(event["device"])
        elif event["kind"] == "cluster":
            assert sum(event["data"]["members"]) == len(connected)
        elif event["kind"] == "task-start" and event["round"] is None:
            unsplit.add(event["device"])
        elif event["kind"] == "split":
            unsplit.discard(event["device"])
        elif event["kind"] == "step-end" and event["step"] == "train":
            assert ("part" not in event["data"]) == (event["device"] in unsplit)


# Its parts one by one against known answers: clusters, groups, splits, fairness.

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


# The link: eps_i out of T (Eq. 8), by hand from the paper.


def linked(
    folder: Path,
    rates: list[str],
    rounds: int = 1,
    network: dict[str, Any] | None = None,
    **others: Any,
) -> RunFolder:
    """A run of equal devices, 10 s an epoch of 360 samples, whose uplinks have these rates; T =
    45 s unless told otherwise.
    """
    star = {
        "kind": "star",
        "device": {"down": "1 Mbit/s", "up": {"kind": "list", "values": rates}},
    } | (network or {})
    scenario = {
        "seed": 1,
        "learning": "off",
        "model": {"kind": "size", "bytes": "2600 B"},
        "population": {
            "devices": len(rates),
            "samples": {"low": 360, "high": 360},
            "speed": "36 samples/s",
        },
        "network": star,
        "strategy": {
            "kind": "cata-fed",
            "clients_per_round": len(rates),
            "clusters": 1,
            "deadline": "45 s",
        },
        "stop": {"rounds": rounds},
    }
    strategy = scenario["strategy"] | others.pop("strategy", {})
    return ran(scenario | {"strategy": strategy} | others, folder / "run")


SLOWER = ["10 kbit/s", "10 kbit/s", "1 kbit/s", "100 bit/s"]


def epochs_by_round(run: RunFolder) -> list[list[int]]:
    """Epochs by round and device."""
    rounds: list[dict[int, int]] = [{} for _ in run.rounds]
    for event in trainings(run):
        rounds[event["round"]][event["device"]] = event["data"]["epochs"]
    return [[found[device] for device in sorted(found)] for found in rounds]


def test_a_slow_uplink_makes_a_straggler(tmp_path: Path) -> None:
    """2,604 B take 2.08, 2.08, 20.8 and 208 s: floor((45 - eps) / 10) is 4, 4 and 2, and the
    last cannot even begin.
    """
    run = linked(tmp_path, SLOWER, rounds=2)
    assert epochs_by_round(run) == [[4, 4, 2, 0]] * 2, (
        "what the links promise, and what was then measured"
    )
    assert [(row["valid"], row["slow"], row["disconnected"]) for row in run.rounds] == [
        (3, 1, 0)
    ] * 2
    assert [(event["device"], event["data"]["sizes"]) for event in of_kind(run, "split")] == [
        (3, [180, 180])
    ]
    starts = {
        event["task"]: event["time"]
        for event in of_kind(run, "step-start")
        if event["step"] == "train"
    }
    stopped = [
        event["time"] - starts[event["task"]] for event in trainings(run) if event["device"] == 3
    ]
    assert stopped == [0.0, 0.0], "no time is left to train"


def test_with_eps_of_0_links_make_nobody_late(tmp_path: Path) -> None:
    run = linked(tmp_path, SLOWER, strategy={"upload_time": "ignored"})
    assert epochs_by_round(run) == [[4] * 4]
    assert (run.rounds[0]["valid"], run.rounds[0]["slow"]) == (4, 0)
    assert run.rounds[0]["time"] == pytest.approx(
        2600 / 125_000 + 4 / 125_000 + 4 / 12.5 + 40 + 2604 / 12.5
    )


def test_a_straggler_by_its_link_need_not_send_its_model(tmp_path: Path) -> None:
    """Its unchanged model alone outlasts T; flag and size report are 8 B."""
    literal = linked(tmp_path / "model", SLOWER).rounds[0]["time"]
    flag = linked(tmp_path / "flag", SLOWER, strategy={"straggler_upload": "flag"}).rounds[0][
        "time"
    ]
    assert literal > 2600 / 12.5
    assert flag < 45 + 1


@pytest.mark.parametrize(("deadline", "expected"), [("45 s", 4), ("44.999 s", 3)])
def test_an_epoch_that_just_fits_before_the_upload_counts(
    deadline: str, expected: int, tmp_path: Path
) -> None:
    """The update and its flag are 1,000 B, 5 s at 200 B/s."""
    model = {"kind": "size", "bytes": "996 B"}
    run = linked(tmp_path, ["1600 bit/s"] * 2, 2, model=model, strategy={"deadline": deadline})
    assert epochs_by_round(run) == [[expected] * 2] * 2


def shared(folder: Path, rate: str, **strategy: Any) -> list[list[int]]:
    """Two devices with fast links of their own behind a slow one of the server's."""
    return epochs_by_round(
        linked(folder, ["10 Mbit/s"] * 2, 3, {"server": {"up": rate}}, strategy=strategy)
    )


def test_what_an_upload_took_is_what_the_next_one_is_expected_to_take(tmp_path: Path) -> None:
    """Two uploads of 2,604 B side by side over 434 B/s take 12 s, of which their own links know
    nothing.
    """
    assert shared(tmp_path, "3472 bit/s") == [[4, 4], [3, 3], [3, 3]]


def test_a_straggler_does_not_stay_one_for_a_single_bad_upload(tmp_path: Path) -> None:
    """Over 100 B/s they take 52 s, longer than T; on halves of their data an epoch takes 5 s.

    Who has sent no other model to measure trusts its own link again.
    """
    assert shared(tmp_path / "flag", "800 bit/s", straggler_upload="flag") == [
        [4, 4],
        [0, 0],
        [8, 8],
    ]
    assert shared(tmp_path / "model", "800 bit/s") == [[4, 4], [0, 0], [0, 0]]


CODECS: list[dict[str, Any]] = [{}, {"up": "int8"}, {"up": {"kind": "top-k", "share": 0.1}}]


@pytest.mark.parametrize("messages", CODECS, ids=["plain", "quantised", "sparse"])
def test_in_any_world_the_epochs_are_those_of_equation_8(
    messages: dict[str, Any], tmp_path: Path
) -> None:
    """100 devices of unequal speeds, data, rates and latencies, three rounds: 300 cases a world,
    by each one's own upload.
    """
    deadline = 30.0
    rate = {"kind": "lognormal", "median": "2 kbit/s", "spread": 4.0}
    delay = {"kind": "uniform", "low": "10 ms", "high": "2 s"}
    scenario = {
        "seed": 3,
        "learning": "off",
        "model": {"kind": "size", "bytes": "2600 B"},
        "population": {"devices": 100, "samples": {"low": 100, "high": 900}},
        "network": {"kind": "star", "device": {"down": "1 Mbit/s", "up": rate, "latency": delay}},
        "messages": messages,
        "strategy": {
            "kind": "cata-fed",
            "clients_per_round": 100,
            "clusters": 1,
            "deadline": f"{deadline} s",
        },
        "stop": {"rounds": 3},
    }
    scenario["population"]["speed"] = {"kind": "lognormal", "median": "50 samples/s", "spread": 2.0}
    run = ran(scenario, tmp_path / "run")
    devices = {row["device"]: row for row in run.devices}
    begun = {(event["task"], event["step"]): event["time"] for event in of_kind(run, "step-start")}
    uploads = {
        event["task"]: event for event in of_kind(run, "step-end") if event["step"] == "upload"
    }
    sizes = [event["data"]["bytes"] for event in uploads.values() if event["round"] is not None]
    trained = trainings(run)
    assert len(trained) == 300
    for event in trained:
        device = devices[event["device"]]
        samples = event["data"]["part"][2] if "part" in event["data"] else device["samples"]
        # its last one may have had a size report, too
        messages_bytes = (min(sizes), min(sizes) + 4)
        left = [deadline - device["latency"] - size / device["link_up"] for size in messages_bytes]
        assert event["data"]["epochs"] in {
            max(0, math.floor(seconds * device["speed"] / samples)) for seconds in left
        }
        if event["data"]["epochs"]:
            took = uploads[event["task"]]["time"] - begun[event["task"], "train"]
            assert took <= deadline + 1e-6, "the update is there by T after the download"
    counts = [event["data"]["epochs"] for event in trained]
    assert 0 < counts.count(0) < 300
    assert of_kind(run, "split")
