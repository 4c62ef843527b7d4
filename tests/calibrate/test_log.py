"""Logs as they are met: what is read, and what is refused, with one message each."""

from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsim.calibrate.log import LogDefaults, read_log
from fedsim.errors import DataError
from fedsim.records.reading import RunFolder
from fedsim.testing import quiet_world, run
from tests.calibrate.logs import DEVICES, HEAD, SIZE, rounds, task, written

GOOD = rounds(3)


def test_tasks_and_rounds_are_found_whatever_the_order_of_rows(tmp_path: Path) -> None:
    lines = GOOD.splitlines(keepends=True)
    for number, order in enumerate((lines, lines[::-1], lines[1::2] + lines[::2])):
        log = read_log(written(tmp_path / f"{number}.csv", "".join(order)), LogDefaults())
        assert log.clients == ("phone 0", "phone 1", "phone 2")
        assert log.synchronous
        assert log.tasks.round.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        np.testing.assert_allclose(log.rounds.start, [0, 100, 200])
        np.testing.assert_allclose(log.rounds.end, [11.25, 111.25, 211.25])
        first = log.tasks.at(log.tasks.client == 1)
        np.testing.assert_allclose(first.down.took, SIZE / DEVICES[1][1])
        np.testing.assert_allclose(first.train.took, 5.0)
        assert log.cohort == 3


def test_parquet_dates_and_servers_rows(tmp_path: Path) -> None:
    path = written(
        tmp_path / "a.csv",
        GOOD + "server,0,round,1000,1012,,\nserver,1,round,1100,1111.5,,\nserver,0,aggregate,1012,1012.5,,\n",
    )
    table = pd.read_csv(path)
    for name in ("start", "end"):
        table[name] = pd.to_datetime(table[name], unit="s", utc=True)
    table.to_parquet(tmp_path / "a.parquet")
    table.assign(start=table["start"].astype(str), end=table["end"].astype(str)).to_csv(tmp_path / "dates.csv", index=False)
    for name in ("a.csv", "a.parquet", "dates.csv"):
        log = read_log(tmp_path / name, LogDefaults())
        np.testing.assert_allclose(log.rounds.end - log.rounds.start, [12, 11.5])
        np.testing.assert_allclose(log.aggregate_s, [0.5])
        np.testing.assert_allclose(log.tasks.end.max(), 211.25)


def test_what_is_the_same_in_all_rows_can_be_said_beside_the_log(tmp_path: Path) -> None:
    lines = [line.split(",")[:5] for line in GOOD.splitlines()]
    path = written(
        tmp_path / "a.csv", "".join(f"{','.join(line)},7\n" for line in lines), "client,round,what,start,end,retrans"
    )
    log = read_log(path, LogDefaults(bytes=5e5, samples=40, epochs=2))
    assert set(log.tasks.up.amount) == {5e5}
    assert set(log.tasks.train.amount) == {40}
    assert set(log.tasks.epochs) == {2}
    assert log.notes == ("columns that are not used: retrans",)


def test_versions_that_overlap_are_of_an_asynchronous_server(tmp_path: Path) -> None:
    text = "".join(task(str(one), number, 10.0 * one + 30.0 * number, DEVICES[2]) for number in range(5) for one in range(2))
    assert read_log(written(tmp_path / "a.csv", text), LogDefaults()).synchronous
    text = "".join(task(str(one), number, 10.0 * one + 12.0 * number, DEVICES[2]) for number in range(5) for one in range(2))
    assert not read_log(written(tmp_path / "b.csv", text), LogDefaults()).synchronous


def test_what_a_run_asks_before_its_rounds_is_left_out(tmp_path: Path) -> None:
    """TiFL's profiling is of no round."""
    tifl = {"kind": "tifl", "clients_per_round": 8, "tiers": 3}
    run(quiet_world(tifl, rounds=9) | {"learning": "off"}, tmp_path / "run")
    asked = [(event["device"], event["round"]) for event in RunFolder(tmp_path / "run").events if event["kind"] == "task-start"]
    often = Counter(device for device, number in asked if number is not None)
    assert len(asked) > often.total()
    log = read_log(tmp_path / "run", LogDefaults(lenient=True))
    assert len(log.tasks.round) == sum(count for count in often.values() if count > 1)  # who was asked once is left out, too
    assert set(log.tasks.round.tolist()) <= set(range(9))


WRONG = {
    "no file": (None, "there is no log"),
    "a column is missing": ((HEAD.replace("round", "rond"), GOOD), "no column 'round'; it has .* (did you mean 'rond'"),
    "an unknown column is nearly a known one": ((HEAD.replace("bytes", "byte"), GOOD), "unknown column 'byte'.* (did"),
    "bytes are not said": ((HEAD.replace("bytes", "retrans"), GOOD), "no column 'bytes'; add one, or say with --bytes"),
    "samples are not said": ((HEAD.replace("samples", "retrans"), GOOD), "no column 'samples'; add one, or say with --samples"),
    "no rows": ((HEAD, ""), "has no rows"),
    "a hole": ((HEAD, GOOD.replace(",1100.0,", ",,", 1)), "row 10 .*: start is empty"),
    "a hole in the sizes": ((HEAD, GOOD.replace("1e+06", "", 1)), "row 1 .*: bytes is empty"),
    "no client": ((HEAD, "," + GOOD.split(",", 1)[1]), "row 1 .*: client is empty"),
    "ends before it starts": ((HEAD, GOOD.replace("1000.0,1001.0", "1001.0,1000.0")), "row 1 .*: it ends 1 s before it starts"),
    "no such step": ((HEAD, GOOD.replace("train", "trian", 1)), "row 2 .*: what is 'trian'; .* (did you mean 'train'"),
    "no number": ((HEAD, GOOD.replace("1000.0", "soon", 1)), "row 1 .*: start is 'soon', which cannot be read"),
    "no whole round": ((HEAD, GOOD.replace(",1,down", ",1.5,down", 1)), "round is 1.5; allowed are whole numbers"),
    "nothing was sent": ((HEAD, GOOD.replace("1e+06", "0", 1)), "row 1 .*: bytes is 0; allowed is more than 0"),
    "milliseconds": ((HEAD, GOOD.replace("1000.0", "1000000000000", 1)), "row 1 .*: start is 1e\\+12; allowed are seconds"),
    "a client appears once": ((HEAD, GOOD + task("tablet", 1, 1100.0, DEVICES[0])), "client 'tablet' appears once, in round 1"),
    "a step is missing": ((HEAD, "".join(GOOD.splitlines(True)[:1] + GOOD.splitlines(True)[2:])), "'up' .* without 'train'"),
    "two things at once": ((HEAD, GOOD + task("phone 0", 0, 1000.5, DEVICES[0])), "client 'phone 0' does two things at once"),
    "rounds run back": ((HEAD, GOOD + task("phone 0", 0, 1500.0, DEVICES[0])), "rounds are to grow with time"),
    "nothing but transfers": ((HEAD, "".join(line for line in GOOD.splitlines(True) if "train" not in line)), "no training"),
    "no table": ((HEAD, "1,2\n1,2,3,4,5,6,7,8,9\n"), "cannot be read"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_wrong_logs(case: str, tmp_path: Path) -> None:
    content, message = WRONG[case]
    path = tmp_path / "log.csv"
    if content is not None:
        written(path, content[1], content[0])
    with pytest.raises(DataError, match=message.replace("(did", r"\(did")) as caught:
        read_log(path, LogDefaults())
    assert str(path) in str(caught.value)
    assert caught.value.exit_status == 2


@pytest.mark.parametrize(
    "case", ["a hole", "ends before it starts", "a client appears once", "a step is missing", "two things at once"]
)
def test_what_cannot_be_used_is_left_out_if_that_is_asked(case: str, tmp_path: Path) -> None:
    content = WRONG[case][0]
    assert content is not None
    log = read_log(written(tmp_path / "log.csv", content[1]), LogDefaults(lenient=True))
    assert any(note.startswith("left out") for note in log.notes)
    assert log.clients == ("phone 0", "phone 1", "phone 2")
    assert 7 <= len(log.tasks.client) <= 9


def test_several_transfers_of_a_client_at_once_are_read(tmp_path: Path) -> None:
    """A download in two pieces at once, and an upload that goes on while the next round's download does."""
    first = "a,0,down,0,2,5,\na,0,down,1,3,7,\na,0,train,3,5,,10\na,0,up,5,9,4,\n"
    text = first + "a,1,down,6,8,4,\na,1,train,9,11,,10\na,1,up,11,12,4,\n"
    tasks = read_log(written(tmp_path / "log.csv", text), LogDefaults()).tasks
    assert tasks.round.tolist() == [0, 1]
    assert tasks.down.amount.tolist() == [12, 4]
    assert (tasks.down.end.tolist(), tasks.up.start.tolist()) == ([3, 8], [5, 11])
