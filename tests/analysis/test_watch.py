"""The growing report, over real HTTP on the loopback address."""

import json
import shutil
import threading
from http.client import HTTPConnection
from pathlib import Path

import pytest

from fedsim.analysis.watch import HOST, Growing, server_of, watch
from fedsim.errors import FedsimError
from fedsim.records.reading import RunFolder


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=30)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_report_grows_with_the_run(run: RunFolder, tmp_path: Path) -> None:
    folder = tmp_path / "grows"
    growing = Growing([folder])
    assert not growing.look()
    shutil.copytree(run.path, folder)
    assert growing.look()
    assert not growing.look()  # nothing is new
    assert growing.state == {"version": 1, "says": f"done, {run.summary['rounds']} rounds", "title": "Live: small"}
    assert "<h1>Live: small</h1>" in growing.page
    assert "In short" in growing.page
    (folder / "summary.json").write_text("{")
    assert not growing.look()
    assert "damaged" in growing.state["says"]
    assert growing.state["version"] == 1  # the last report stays


def test_only_what_there_is_for_this_machine_alone(run: RunFolder) -> None:
    growing = Growing([run.path])
    growing.page = "<p>the report</p>"
    with server_of(growing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        status, page = get(port, "/")
        assert (status, "/state" in page) == (200, True)
        assert get(port, "/report") == (200, "<p>the report</p>")
        assert json.loads(get(port, "/state", f"localhost:{port}")[1])["version"] == 0
        for path, host, expected in (("/summary.json", None, 404), ("/../x", None, 404), ("/state", "evil.example", 403)):
            assert get(port, path, host)[0] == expected
        with pytest.raises(FedsimError, match=f"no page can be served at 127.0.0.1:{port}"):
            server_of(growing, port)
        server.shutdown()
        thread.join()


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    told: list[str] = []
    over = threading.Event()
    over.set()
    watch([tmp_path / "nothing yet"], told.append, over)
    assert told[0].startswith("http://127.0.0.1:")
