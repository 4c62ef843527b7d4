"""A run and a study that are watched: real processes, and a client that speaks HTTP to them."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.client import HTTPConnection, HTTPResponse
from pathlib import Path
from typing import Any

import pytest

from fedsim.analysis.report.live import read_live
from fedsim.analysis.report.progress import in_words, is_over, read_progress, section
from fedsim.analysis.serving import HOST, LivePage, server_of
from fedsim.analysis.watch import Growing
from fedsim.lab.study.folder import write_study
from fedsim.lab.study.plan import read_study
from fedsim.records.live import LIVE
from fedsim.records.reading import RunFolder
from tests.children import GENEROUS_S, popen, wait_until
from tests.lab.conftest import finish, write

# The simulation's clock stands while the strategy waits: in its second round for the file "go-on",
# and until live tables are due; in its fourth for the file "end".
PATIENT = """
import time
from pathlib import Path

import fedsim.plugin as fed


class Patient(fed.FedAvg):
    async def aggregate(self):
        await super().aggregate()
        self.aggregations = getattr(self, "aggregations", 0) + 1
        name = {2: "go-on", 4: "end"}.get(self.aggregations)
        while name and not Path(name).exists():
            time.sleep(0.02)
        if name == "go-on":
            time.sleep(2.1)
"""
SCENARIO = """
name = "watched"
learning = "off"
population = { devices = 5, speed = "20 samples/s" }
network = { kind = "star", device = { down = "2 Mbit/s", up = "1 Mbit/s" } }
strategy = { kind = "./patient.py:Patient", clients_per_round = 3 }
stop.rounds = 6
"""
COMMAND = "from fedsim.cli import main; main()"


class Watched:
    """A run that is watched, with all that it has written to stderr."""

    def __init__(self, folder: Path, words: tuple[str, ...], *, terminal: bool) -> None:
        (folder / "patient.py").write_text(PATIENT)
        (folder / "watched.toml").write_text(SCENARIO)
        self.folder = folder
        self.said = b""
        reading, writing = pty.openpty() if terminal else os.pipe()
        run = ("run", "watched.toml", "--out", "run", "--allow-code", "--watch", *words)
        self.process = popen(
            [sys.executable, "-c", COMMAND, *run],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=writing,
        )
        os.close(writing)
        threading.Thread(target=self._hear, args=(reading,), daemon=True).start()
        wait_until(self._address, self.process)

    def _hear(self, reading: int) -> None:
        with os.fdopen(reading, "rb", buffering=0) as pipe:
            try:
                while part := pipe.read(4096):
                    self.said += part
            except OSError:  # a terminal whose other side is closed
                return

    def _address(self) -> re.Match[bytes] | None:
        return re.search(rb"watch the run at http://127\.0\.0\.1:(\d+)/", self.said)

    @property
    def port(self) -> int:
        address = self._address()
        assert address
        return int(address[1])

    def touch(self, name: str) -> None:
        (self.folder / name).touch()

    def get(self, path: str) -> str:
        connection = HTTPConnection(HOST, self.port, timeout=GENEROUS_S)
        connection.request("GET", path)
        answer = connection.getresponse()
        assert answer.status == 200
        return answer.read().decode()


@contextmanager
def events_of(port: int) -> Iterator[HTTPResponse]:
    connection = HTTPConnection(HOST, port, timeout=GENEROUS_S)
    connection.request("GET", "/events")
    answer = connection.getresponse()
    assert answer.headers["Content-Type"] == "text/event-stream"
    try:
        yield answer
    finally:
        connection.close()


def next_event(stream: HTTPResponse) -> tuple[str, dict[str, Any]]:
    """The kind and the data of the next event; comments, which keep the stream alive, are skipped."""
    kind = "message"
    while True:
        line = stream.readline().decode().rstrip("\n")
        if line.startswith("event: "):
            kind = line.removeprefix("event: ")
        elif line.startswith("data: "):
            return kind, json.loads(line.removeprefix("data: "))
        else:
            assert line == "" or line.startswith(":")


def test_a_watched_run_says_what_it_waits_for_streams_and_stays_until_it_is_told(
    tmp_path: Path,
) -> None:
    watched = Watched(tmp_path, (), terminal=True)
    assert "EventSource" in watched.get("/")
    assert watched.get("/report") == ""
    with events_of(watched.port) as stream:
        _, state = next_event(stream)
        assert (state["version"], state["over"]) == (0, False)
        assert "waiting for" in state["says"]
        assert "damaged" not in state["says"]
        watched.touch("go-on")
        while not state["version"]:
            _, state = next_event(stream)
        assert state["says"].startswith("running, ")
        assert "<h1>Live: watched</h1>" in watched.get("/report")
        watched.touch("end")
        while not state["over"]:
            _, state = next_event(stream)
        assert state["says"] == "done, 6 rounds"
        wait_until(lambda: b"the page stays at " in watched.said, watched.process)
        moved = RunFolder(tmp_path / "run").summary["bytes"]["down"]
        page = watched.get("/report")
        assert "<h1>watched</h1>" in page
        assert f"{moved / 1e3:.3g} kB down" in page
        assert watched.process.poll() is None
        watched.process.send_signal(signal.SIGINT)
        assert set(iter(lambda: next_event(stream)[0], "end")) <= {"message"}
    assert watched.process.wait(GENEROUS_S) == 0
    with pytest.raises(ConnectionRefusedError):
        watched.get("/state")


@pytest.mark.parametrize(
    ("words", "terminal"),
    [((), False), pytest.param(("--json",), True, marks=pytest.mark.long)],
    ids=["no-terminal", "json"],
)
def test_the_page_ends_with_the_run_if_nobody_can_end_it(
    words: tuple[str, ...], terminal: bool, tmp_path: Path
) -> None:
    watched = Watched(tmp_path, words, terminal=terminal)
    for name in ("go-on", "end"):
        watched.touch(name)
    assert watched.process.wait(GENEROUS_S) == 0
    assert b"the page stays" not in watched.said
    assert RunFolder(tmp_path / "run").summary["status"] == "done"
    with pytest.raises(ConnectionRefusedError):
        watched.get("/state")


def test_a_stream_has_each_state_and_its_end() -> None:
    live = LivePage("nothing yet")
    with server_of(live) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        with events_of(server.server_port) as stream, events_of(server.server_port) as other:
            for each in (stream, other):
                assert next_event(each)[1]["says"] == "nothing yet"
            live.say("something")
            assert next_event(stream)[1]["says"] == "something"
            live.show("<p>", "a title", "done", over=True)
            wanted = {"version": 1, "says": "done", "over": True, "title": "a title"}
            assert next_event(stream) == ("message", wanted)
            assert live.is_followed
            live.end(GENEROUS_S)
            assert next_event(stream) == ("end", {})
            assert stream.read().strip() == b""
        server.shutdown()
    assert not live.is_followed


@pytest.fixture
def study(small: dict[str, Any], tmp_path: Path) -> Path:
    tables = {
        "name": "a study",
        "seeds": [1, 2],
        "base": small | {"stop": {"rounds": 3}, "learning": "off"},
        "variants": {"plain": {}, "longer": {"strategy": {"local_epochs": 3}}},
    }
    return write(tmp_path / "study.toml", tables)


def test_a_study_has_a_page_before_its_first_run_is_done(study: Path, tmp_path: Path) -> None:
    out = tmp_path / "st"
    out.mkdir()
    write_study(out, read_study(study))
    live = read_live([out])
    assert (live.says, live.is_over) == ("0 of 4 runs are done", False)
    assert "<h1>Live: a study</h1>" in live.page
    assert '<progress value="0" max="4"' in live.page
    growing = Growing([out])
    assert growing.look()
    assert "<h1>Live: a study</h1>" in growing.page
    assert not growing.look(at_once=True)
    finish(study, out)
    assert is_over(read_progress([out]))
    # a run under way has its tables in a folder of its own
    first = out / "runs" / "longer" / "seed-2"
    summary = json.loads((first / "summary.json").read_text())
    (first / "summary.json").unlink()
    shutil.copytree(first, first / LIVE)
    (first / LIVE / "summary.json").write_text(json.dumps(summary | {"status": "running"}))
    runs = read_progress([out])
    assert (in_words(runs), is_over(runs)) == ("3 of 4 runs are done, 1 at work", False)
    part = section(runs)
    assert part is not None
    assert "longer, seed 2" in part
    assert f'<td data-v="{summary["rounds"]}">{summary["rounds"]}</td>' in part
    assert '<progress value="3" max="4"' in part
