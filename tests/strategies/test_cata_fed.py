"""CATA-Fed in whole simulated runs: everything emerges from events."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.learning.data.federated import stratified_part
from fedsim.records.reading import RunFolder
from tests.strategies.runs import initial_weights, model_after, moved, of_kind, ran, trainings
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
