"""Files of phones as FedScale and FLASH publish them: read, and never run."""

import json
import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from fedsim.common.errors import DataError
from fedsim.toolbox.worlds.availability import read_flash
from fedsim.toolbox.worlds.capacities import read_capacities
from fedsim.toolbox.worlds.published import read_plain_pickle

CLIENTS = {
    number: {"computation": 40.0 + number, "communication": 1000.0 * number}
    for number in range(1, 6)
}
BEHAVES = {
    7: {
        "duration": 30,
        "inactive": [20, 50],
        "finish_time": 100,
        "active": [10, 30],
        "model": "SM-G960",
    },
    9: {"duration": 0, "inactive": [], "finish_time": 100, "active": [], "model": "ONEPLUS"},
}
LOG = "\n".join(
    [
        "2020-02-03 01:00:00\tscreen_off",
        "2020-02-03 01:00:10\tscreen_lock",
        "2020-02-03 01:00:20\tWIFI",
        "2020-02-03 01:01:00\tbattery_charged_on",
        "2020-02-03 01:01:10\t87.0%",
        "2020-02-03 01:05:00\tscreen_unlock",
        "2020-02-03 01:06:00\tscreen_lock",
        "2020-02-03 01:08:00\t4G",
        "2020-02-03 01:10:00\tscreen_on",
        "",
    ]
)


def dumped(folder: Path, content: Any, protocol: int = 4) -> Path:
    path = folder / "trace"
    path.write_bytes(pickle.dumps(content, protocol))
    return path


def written(folder: Path, content: Any) -> Path:
    path = folder / "phones.json"
    path.write_text(json.dumps(content))
    return path


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_capacities_of_fedscale(tmp_path: Path, protocol: int) -> None:
    found = read_capacities(dumped(tmp_path, CLIENTS, protocol))
    assert found.tolist() == [
        [40.0 + number, 1000.0 * number, 1000.0 * number] for number in CLIENTS
    ]


@pytest.mark.parametrize("protocol", [2, 3, 4, 5])
def test_behaviour_of_fedscale(tmp_path: Path, protocol: int) -> None:
    assert read_flash(dumped(tmp_path, BEHAVES, protocol)) == [
        (0.0, (100.0, [10.0, 20.0, 30.0, 50.0]))
    ]


def test_logs_and_timers_of_flash(tmp_path: Path) -> None:
    """Ready while locked, charging and on Wi-Fi; times keep their time of day."""
    logs = {
        "a": {"guid": "a", "model": "m", "messages": LOG},
        "b": {"guid": "b", "model": "m", "messages": "no date"},
    }
    ((start, (period, changes)),) = read_flash(written(tmp_path, logs))
    assert start % 86_400 == 3600.0
    assert (period, changes) == (600.0, [60.0, 300.0, 360.0, 480.0])
    timers = {
        "a": {
            "isSuccess": True,
            "trace_start": start,
            "trace_end": start + 600,
            "ready_time": [[start + 60, start + 300]],
        },
        "b": {"isSuccess": False, "trace_start": None, "trace_end": None, "ready_time": []},
    }
    assert read_flash(written(tmp_path, timers)) == [(start, (600.0, [60.0, 300.0]))]


class Harm:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.path),)


def test_no_pickle_runs_code(tmp_path: Path) -> None:
    made = tmp_path / "made"
    harmful = [
        {"a": Harm(made)},
        {Harm(made): 1},
        Harm(made),
        {"a": {"computation": Harm(made), "communication": 1.0}},
    ]
    others = [
        {"a": np.float64(1.0)},
        {"a": np.arange(3)},
        {"a": {1, 2}},
        {"a": bytearray(3)},
        {"a": Path("b")},
        {"a": len},
    ]
    for content in (*harmful, *others):
        for protocol in range(2, 6):
            with pytest.raises(
                ValueError, match="it holds more than dicts, lists, texts and plain numbers"
            ):
                read_plain_pickle(dumped(tmp_path, content, protocol))
    assert not made.exists()


def test_damaged_pickles(tmp_path: Path) -> None:
    whole = pickle.dumps(CLIENTS, 4)
    cut = [whole[:length] for length in range(1, len(whole), 7)]
    odd = [
        b"\x80\x04r\xff\xff\xff\xff.",
        b"\x80\x04\x95" + b"\xff" * 7 + b"\x7f.",
        b"\x80\x04X\xff\xff\xff\xffa.",
        b"\x80\x04h\x05.",
    ]
    path = tmp_path / "trace"
    for content in (*cut, *odd):
        path.write_bytes(content)
        with pytest.raises(DataError, match="cannot be read as FedScale's pickle"):
            read_capacities(path)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ({}, "no table of capacities"),
        ([1], "no table of capacities"),
        ({1: {"computation": 1.0}}, "each has computation and communication, and nothing else"),
        ({1: {"computation": 1.0, "communication": 1.0, "memory": 3}}, "and nothing else"),
        ({1: {"computation": 0.0, "communication": 1.0}}, "1e-06 or more"),
        ({1: {"computation": "fast", "communication": 1.0}}, "must be a number"),
        ({1: {"computation": float("nan"), "communication": 1.0}}, "entry 0 is nan"),
    ],
)
def test_other_capacities(tmp_path: Path, content: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_capacities(dumped(tmp_path, content))
    assert message in str(caught.value)


OURS = {"a": {"start": 0, "end": 100, "ready": [[10, 20]], "ok": True}}
TIMERS = {"a": {"isSuccess": True, "trace_start": 0, "trace_end": 100, "ready_time": [[10, 20]]}}


@pytest.mark.parametrize(
    ("phones", "message"),
    [
        (
            {"a": OURS["a"] | {"state": "on"}},
            "phone 'a' has 'state', which nothing uses; fedsim's have start, end, ready, ok",
        ),
        ({"a": OURS["a"] | {"raedy": []}}, "(did you mean 'ready'?)"),
        (
            {"a": TIMERS["a"] | {"battery": 3}},
            "has 'battery', which nothing uses; FLASH's timers have",
        ),
        (
            {"a": {"messages": LOG, "trace": []}},
            "has 'trace', which nothing uses; FLASH's logs have messages",
        ),
        ({"a": {"trace": []}}, "no table of traces by phone: the first has 'trace'"),
        ({"a": {"messages": "2020-02-03 01:00:00\tflying"}}, "unknown state 'flying'"),
        ({"a": {"messages": 3}}, "'messages' is 3, no text"),
        (OURS | {"b": {"start": 0}}, "phone 'b' has no 'end'"),
        (OURS | {"b": 3}, "phone 'b' is 3, no object"),
        ({"a": OURS["a"] | {"ok": False}}, "holds no trace that can be used"),
        ({"a": OURS["a"] | {"ready": [[10, 20], [15, 30]]}}, "out of order"),
        ({"a": BEHAVES[7] | {"inactive": [20]}}, "are not lists of the same length"),
        ({"a": BEHAVES[7] | {"active": [30, 10]}}, "out of order"),
        ([OURS], "no table of traces by phone"),
    ],
)
def test_other_phones(tmp_path: Path, phones: Any, message: str) -> None:
    with pytest.raises(DataError) as caught:
        read_flash(written(tmp_path, phones))
    assert message in str(caught.value)


def test_a_phone_that_is_there_twice(tmp_path: Path) -> None:
    path = written(tmp_path, OURS)
    path.write_text(path.read_text()[:-1] + ', "a": ' + json.dumps(OURS["a"]) + "}")
    with pytest.raises(DataError, match="has the key 'a' twice"):
        read_flash(path)
