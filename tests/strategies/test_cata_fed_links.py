"""CATA-Fed with slow links: eps_i out of T (Eq. 8), by hand from the paper."""

import math
from pathlib import Path
from typing import Any

import pytest

from fedsim.records.reading import RunFolder
from tests.strategies.runs import of_kind, ran, trainings


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
