"""CATA-Fed's connections: who vanishes is removed, may come back as a new client, and leaves sound books in any phase."""

from pathlib import Path
from typing import Any

import pytest

from fedsim.records.reading import RunFolder
from tests.strategies.clustered import of_kind, ran


@pytest.fixture
def shaky(small: dict[str, Any]) -> dict[str, Any]:
    """Devices that vanish often, and rounds of CATA-Fed."""
    small["population"]["availability"] = {"kind": "renewal", "mean_on": "80 s", "mean_off": "30 s"}
    small["strategy"] = {"kind": "cata-fed", "clients_per_round": 4, "deadline": "12 s", "clusters": 2}
    small["learning"] = "off"
    return small | {"stop": {"rounds": 60}}


def lost_and_next(run: RunFolder) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
    """For each lost task the next task of the same device."""
    pairs = []
    for at, event in enumerate(run.events):
        if event["kind"] == "task-end" and event["outcome"] == "lost":
            later = (next_ for next_ in run.events[at:] if next_["kind"] == "task-start" and next_["device"] == event["device"])
            pairs.append((event, next(later, None)))
    return pairs


def test_a_disconnected_client_is_removed_for_good(shaky: dict[str, Any], tmp_path: Path) -> None:
    run = ran(shaky, tmp_path / "run")
    assert run.summary["stopped"] == "no client is connected any more"
    pairs = lost_and_next(run)
    assert len(pairs) == 20
    assert all(following is None for _, following in pairs)


def test_a_client_that_rejoins_is_a_new_one(shaky: dict[str, Any], tmp_path: Path) -> None:
    shaky["strategy"] |= {"rejoin": True, "rejoin_delay": "25 s", "smallest_part": 5, "deadline": "2 s"}
    run = ran(shaky, tmp_path / "run")
    assert run.summary["rounds"] == 60
    returned = [(lost, following) for lost, following in lost_and_next(run) if following is not None]
    assert len(returned) > 10
    for lost, following in returned:
        assert following["round"] is None  # a size report comes first
        assert following["time"] >= lost["time"] + 25.0
    again = {event["device"] for event in of_kind(run, "split")} & {following["device"] for _, following in returned}
    assert again
    unsplit: set[int] = set()  # who has reported and not been split since
    for event in run.events:
        if event["kind"] == "task-start" and event["round"] is None:
            unsplit.add(event["device"])
        elif event["kind"] == "split":
            unsplit.discard(event["device"])
        elif event["kind"] == "step-end" and event["step"] == "train":
            assert ("part" not in event["data"]) == (event["device"] in unsplit)


def test_clusters_hold_who_is_connected(shaky: dict[str, Any], tmp_path: Path) -> None:
    shaky["strategy"] |= {"rejoin": True}
    run = ran(shaky, tmp_path / "run")
    connected: set[int] = set()
    reporting: set[int] = set()
    for event in run.events:
        if event["kind"] == "task-start" and event["round"] is None:
            reporting.add(event["task"])
        elif event["kind"] == "task-end" and event["outcome"] == "done" and event["task"] in reporting:
            connected.add(event["device"])
        elif event["kind"] == "task-end" and event["outcome"] == "lost":
            connected.discard(event["device"])
        elif event["kind"] == "cluster":
            assert sum(event["data"]["members"]) == len(connected)
