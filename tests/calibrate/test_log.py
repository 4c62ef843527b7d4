"""Logs as they are met: what is read, and what is refused, with one message each."""

import math
from collections import Counter
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedsim.calibrate.fitting import fit
from fedsim.calibrate.log import LogDefaults, read_log, spans, took
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
        assert log.tasks.number.tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2]
        np.testing.assert_allclose(log.rounds.start, [0, 100, 200])
        np.testing.assert_allclose(log.rounds.end, [11.25, 111.25, 211.25])
        first = log.tasks[log.tasks.client == 1]
        np.testing.assert_allclose(took(first.down), SIZE / DEVICES[1][1])
        np.testing.assert_allclose(took(first.train), 5.0)
        assert log.at_once == 3


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
        np.testing.assert_allclose(spans(log.tasks)[1].max(), 211.25)


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
    assert len(log.tasks.number) == sum(count for count in often.values() if count > 1)  # who was asked once is left out, too
    assert set(log.tasks.number.tolist()) <= set(range(9))


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
    assert tasks.number.tolist() == [0, 1]
    assert tasks.down.amount.tolist() == [12, 4]
    assert (tasks.down.end.tolist(), tasks.up.start.tolist()) == ([3, 8], [5, 11])


def test_logs_of_nvflares_clients(tmp_path: Path) -> None:
    """Two sites and three rounds: 2 s down, 10 s of training, 4 s up; both ways in which NVFlare has written sizes."""
    for site in (1, 2):
        lines = []
        for number in range(3):
            got, sent = 30 * number + 2, 30 * number + 16
            old = f"Received from demo server  (4000 Bytes). getTask: train time: {2.0} seconds"
            new = "Received from demo server. getTask: train size: 3.9KB (4000 Bytes) time: 2.000000 seconds"
            lines += [f"2024-03-01 10:{got // 60:02}:{got % 60:02},500 - Communicator - INFO - {old if number else new}"]
            lines += ["2024-03-01 10:00:05,000 - ClientRunner - INFO - [identity=site-1]: invoking task executor"]
            said = "(4000 Bytes). time: 4.0 seconds"
            lines += [
                f"2024-03-01 10:{sent // 60:02}:{sent % 60:02},500 - Communicator - INFO -  SubmitUpdate size: 3.9KB {said}"
            ]
        (tmp_path / f"site-{site}").mkdir()
        (tmp_path / f"site-{site}" / "log.txt").write_text("\n".join(lines))
    log = read_log(tmp_path, LogDefaults(samples=100))
    assert log.clients == ("site-1", "site-2")
    assert len(log.tasks.number) == 6
    for steps, seconds in ((log.tasks.down, 2.0), (log.tasks.train, 10.0), (log.tasks.up, 4.0)):
        assert took(steps) == pytest.approx([seconds] * 6)
    with pytest.raises(DataError, match="logs no samples"):
        read_log(tmp_path, LogDefaults())
    (tmp_path / "server.log").write_text(
        "INFO :      [ROUND 1]\nINFO :      aggregate_fit: received 2 results and 0 failures\n"
    )
    with pytest.raises(DataError, match="what Flower's server says"):
        read_log(tmp_path / "server.log", LogDefaults())


def appfl(folder: Path, asynchronous: bool) -> None:
    """The logs of a server and two clients, four rounds of two epochs: 1 s or 2 s down, 4 s or 6 s an epoch, 3 s up."""

    def line(second: float, who: str, text: str, look: str = "appfl: \x1b[1m[") -> str:
        return f"{look}2025-01-19 04:{int(second) // 60:02}:{second % 60:06.3f} {who}]: {text}".replace(".", ",", 1)

    titles = " ".join(f"{name:>10}" for name in ("Round", "Epoch", "Pre Val?", "Time", "Train Loss", "Val Loss"))
    server, ends = ["Starting the server"], {"Client1": [0.0], "Client2": [0.0]}
    logs = {name: [line(0, name, "Logging to x.txt"), line(0, name, titles)] for name in ends}
    for number in range(4):
        for place, (name, at) in enumerate(ends.items(), 1):
            got = (at[-1] if asynchronous else max(end[number] for end in ends.values())) + place
            logs[name].append(line(got, name, f"{number:>10} {0:>10} {'Y':>10} {'':>10} {'':>10} 0.5"))
            for epoch in (1, 2):
                took = 2 + 2 * place
                row = f"{number:>10} {epoch:>10} {'N':>10} {took:10.4f} 0.1 0.5"
                logs[name].append(line(got + epoch * took, name, row, "["))
            at.append(got + 2 * took + 3)
            server.append(line(at[-1], "INFO server", f"Received UpdateGlobalModel request from client {name}"))
    for name, lines in {**logs, "Server": server}.items():
        (folder / f"result_{name}_2025.txt").write_text("\n".join(lines))


@pytest.mark.parametrize("asynchronous", [False, True])
def test_logs_of_appfl(asynchronous: bool, tmp_path: Path) -> None:
    appfl(tmp_path, asynchronous)
    log = read_log(tmp_path, LogDefaults(bytes=8e6, samples=100))
    assert log.clients == ("Client1", "Client2")
    assert log.synchronous != asynchronous
    assert sorted(log.tasks.number) == [1, 1, 2, 2, 3, 3]
    assert set(log.tasks.epochs) == {2}
    for steps, seconds in ((log.tasks.down, (1, 2)), (log.tasks.train, (8, 12)), (log.tasks.up, (3, 3))):
        assert took(steps) == pytest.approx(np.array(seconds)[log.tasks.client])
    fitted = fit(log.tasks, 2).world
    assert fitted.down == pytest.approx([8e6, 4e6])
    assert set(fitted.server.values()) == {math.inf}
    with pytest.raises(DataError, match=r"logs no bytes; .* --bytes"):
        read_log(tmp_path, LogDefaults(samples=100))
    server = tmp_path / "result_Server_2025.txt"
    server.write_text(server.read_text().replace("client Client2", "client 12e7104d"))
    with pytest.raises(DataError, match=r"updates of 'Client1, 12e7104d'.* trainings of 'Client1, Client2'.*client_id"):
        read_log(tmp_path, LogDefaults(bytes=8e6, samples=100))
