"""The report as a file: what it holds and leaves out, its words, hostile names in it (they do
nothing), and how it grows.
"""

import base64
import hashlib
import json
import re
import shutil
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from html.parser import HTMLParser
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report import write_report
from fedsim.analysis.report.page import CHART, SCRIPTS, default_out
from fedsim.analysis.serving import HOST, LivePage, server_of
from fedsim.analysis.watch import Growing, watch
from fedsim.common.errors import FedsimError
from fedsim.lab.trackers.trace import write_trace
from fedsim.records.folder import fingerprints
from fedsim.records.reading import RunFolder
from tests.calls import call, done
from tests.children import GENEROUS_S
from tests.lab.conftest import finish, write

HOSTILE = (
    "</script><script>alert(1)</script>\"'><img src=x onerror=alert(2)>\n\u2028\u202e--><!-- "
    "{{7*7}} " + "long " * 2000
)


class Document(HTMLParser):
    VOID = ("img", "input", "meta")

    def __init__(self, path: Path) -> None:
        super().__init__(convert_charrefs=True)
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.open: list[str] = []
        self.raw: dict[str, list[str]] = {"script": [], "style": [], "pre": []}
        self.texts: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)
        if tag in self.raw:
            self.raw[tag].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.raw:
            self.raw[self.open[-1]][-1] += data
        else:
            self.texts.append(data)

    def of(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    @property
    def text(self) -> str:
        return "".join(self.texts)


@pytest.fixture
def hostile(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run whose every text is an attack: its folder's name, its scenario's, its strategy's."""
    folder = tmp_path / "_<script>alert(1)<%2Fscript> \"'&\n\u2028$(reboot)"
    shutil.copytree(run.path, folder)
    summary = json.loads((folder / "summary.json").read_text())
    (folder / "summary.json").write_text(
        json.dumps(summary | {"name": HOSTILE, "strategy": HOSTILE, "stopped": HOSTILE})
    )
    scenario = (folder / "scenario.toml").read_text()
    scenario = scenario.replace(
        'name = "small"', f"name = {json.dumps(HOSTILE)}\nroot = '/home/me'"
    )
    scenario = scenario.replace(
        'kind = "fedavg"', f"kind = {json.dumps(HOSTILE)}\nfile = '/home/me/secret.json'"
    )
    (folder / "scenario.toml").write_text(scenario)
    return RunFolder(folder)


@pytest.fixture
def study(small: dict[str, Any], tmp_path: Path) -> Path:
    tables = {
        "name": "a study <b>of two</b>",
        "about": "It shows <i>little</i>.",
        "seeds": [1, 2],
        "baseline": "plain",
        "base": small | {"stop": {"rounds": 3}, "learning": "off"},
        "variants": {"plain": {}, "<i>longer</i>": {"strategy": {"local_epochs": 3}}},
    }
    return finish(write(tmp_path / "study.toml", tables), tmp_path / "st")


def check_frame(document: Document, timelines: int) -> None:
    """One script, one style, both as the policy has them; nothing comes from elsewhere, nothing
    runs from an attribute.
    """
    scripts = document.of("script")
    charts = len([figure for figure in document.of("figure") if figure.get("class") == "chart"])
    assert [script.get("type") for script in scripts] == ["application/json"] * (
        timelines + charts + 1
    ) + ["module"]
    assert not any("src" in script for script in scripts)
    for block in document.raw["script"][:-1]:
        json.loads(block)
    policy = next(
        meta["content"]
        for meta in document.of("meta")
        if meta.get("http-equiv") == "Content-Security-Policy"
    )
    assert policy is not None
    for kind, content in (
        ("script", document.raw["script"][-1]),
        ("style", document.raw["style"][0]),
    ):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{digest}'" in policy
    assert policy.startswith("default-src 'none'")
    for tag, attributes in document.elements:
        assert not [
            name
            for name in attributes
            if name.startswith("on") or name in ("style", "srcdoc", "action", "formaction")
        ]
        for name in ("src", "href"):
            value = attributes.get(name) or "#"
            assert value.startswith("#" if name == "href" else ("#", "data:image/png;base64,")), (
                tag,
                value[:80],
            )
    assert {tag for tag, _ in document.elements}.isdisjoint(
        {"link", "iframe", "object", "embed", "base", "b", "i"}
    )


def test_a_run_and_the_same_bytes_again(run: RunFolder, tmp_path: Path) -> None:
    before = fingerprints(run.path)
    path = tmp_path / "run.report.html"
    assert str(path) in done("report", run.path)
    assert fingerprints(run.path) == before
    assert not [name for name in tmp_path.iterdir() if name.name.endswith(".writing")]
    document = Document(path)
    check_frame(document, timelines=1)
    accuracy = run.summary["accuracy"]
    reached = f"{accuracy['final']:.4f}", f"best {accuracy['best']:.4f}"
    for said in ("population.devices: 20; ", "strategy: fedavg; ", *reached, "Table of 8 rounds"):
        assert said in document.text
    assets = {
        path.stem
        for path in (Path(fedsim.__file__).parents[1] / "analysis" / "report" / "assets").glob(
            "*.js"
        )
    }
    assert assets == {*SCRIPTS, *CHART}
    assert all(len(picture["alt"] or "") > 40 for picture in document.of("img"))
    assert len(document.of("img")) == 4  # stragglers, traffic, accuracy, fairness
    assert document.of("html")[0]["lang"] == "en"
    headings = [int(tag[1]) for tag, _ in document.elements if re.fullmatch(r"h\d", tag)]
    assert headings[0] == 1
    assert all(after <= before + 1 for before, after in pairwise(headings))
    fields = [f for f in document.of("input") if f.get("type") == "text"]
    assert [field["name"] for field in fields] == ["device", "round"]
    assert write_report([run.path], tmp_path / "again.htm").read_bytes() == path.read_bytes()


def test_a_study(study: Path) -> None:
    done("report", study)
    document = Document(study.with_name("st.report.html"))
    check_frame(document, timelines=4)
    names = "a study <b>of two</b>", "It shows <i>little</i>.", "<i>longer</i>, seed 1"
    counts = "4 runs of 2 lines: FedAvg", "4 runs can be chosen"
    for said in (*names, *counts, "The baseline is plain.", "difference to the baseline"):
        assert said in document.text


def test_hostile_names_are_only_text(hostile: RunFolder, run: RunFolder) -> None:
    path = write_report([hostile.path, run.path])
    assert path.name.endswith(".report.html")
    document = Document(path)
    check_frame(document, timelines=2)
    assert [field for field in document.of("input") if field["name"] == "together"]
    # the strategy, and its file
    assert "Keys that differ between the scenarios: 2" in document.text
    assert "final accuracy (0-1)" in document.text
    assert "</script><script>alert(1)</script>" in document.text
    whole = document.raw["pre"][0]  # the scenario as it is, with each name whole
    assert "…/secret.json" in whole
    assert "/home/me" not in document.text + whole
    assert not set(document.text + whole) & set("\u2028\u202e")
    assert len(document.of("h1")) == 1
    assert whole.count("long long") == 2000
    assert document.text.count("long long") < 500


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["RUN", "--out", "TMP/report.txt"], "allowed is a file whose name ends in .html or .htm"),
        (["RUN", "--out", "TMP/folder.html"], "is a folder; give a file"),
        (["RUN", "--out", "RUN/summary.json/report.html"], "lies in the run folder"),
        (["RUN", "--out", "TMP/a-file/report.html"], "cannot be written"),
        (["TMP"], "is not a run folder"),
    ],
)
def test_mistakes_get_one_message(
    run: RunFolder, tmp_path: Path, words: list[str], message: str
) -> None:
    (tmp_path / "folder.html").mkdir()
    (tmp_path / "a-file").write_text("")
    result = call(
        "report",
        *(word.replace("RUN", str(run.path)).replace("TMP", str(tmp_path)) for word in words),
    )
    assert result.exit_code == 2, result.output
    assert message in result.output
    assert "Traceback" not in result.output
    assert not list(tmp_path.rglob("*.report.html"))


def test_a_damaged_run_leaves_the_old_report(run: RunFolder) -> None:
    path = default_out(run.path)
    path.write_text("an older report")
    (run.path / "events.parquet").write_bytes(b"PAR1 and then nothing")
    result = call("report", run.path)
    assert result.exit_code == 2
    assert "events.parquet" in result.output
    assert path.read_text() == "an older report"


@pytest.mark.long
def test_a_large_run_makes_a_small_file(
    small: dict[str, Any], made: Callable[..., Path], tmp_path: Path
) -> None:
    small["population"] |= {
        "devices": 1000,
        "samples": {"kind": "uniform", "low": 10, "high": 300},
        "jitter": 0.3,
    }
    small["strategy"] |= {"clients_per_round": 20}
    path = write_report(
        [made(small | {"learning": "off", "stop": {"rounds": 300}}, tmp_path / "large")]
    )
    assert path.stat().st_size < 2e6  # ten are allowed


def test_default_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, kept in {"runs": "runs", "x" * 250: "x" * 100, "-rf ; <b>": "rf____b_"}.items():
        assert default_out(tmp_path / name).name == f"{kept}.report.html"
    monkeypatch.chdir(tmp_path)
    assert default_out(Path()).name == f"{tmp_path.name}.report.html"


@pytest.mark.parametrize(
    "changes",
    [
        # takes no time
        {"population": {"devices": 6}, "network": {"kind": "star"}, "strategy": {"clients_per_round": 3}},
        {"population": {"devices": 4, "availability": {"kind": "renewal", "mean_on": "1 ms", "mean_off": "99 day"}},
         # nothing ever happens
         "strategy": {"clients_per_round": 2}, "stop": {"simulated_time": "1 min"}},
        {"population": {"devices": 1, "speed": "9 samples/s"}, "strategy": {"kind": "local"}},
        {"population": {"devices": 5, "speed": "9 samples/s"}, "strategy": {"kind": "fedasync", "concurrency": 2}},
    ],
    ids=["timeless", "nothing", "one", "roundless"],
)  # fmt: skip
def test_runs_at_the_edge(changes: dict[str, Any], tmp_path: Path) -> None:
    fedsim.run(
        fedsim.Scenario(**{"learning": "off", "stop": {"rounds": 2}} | changes),
        tmp_path / "run",
        executor="inline",
    )
    check_frame(Document(write_report([tmp_path / "run"])), timelines=1)


def get(port: int, path: str, host: str | None = None) -> tuple[int, str]:
    connection = HTTPConnection(HOST, port, timeout=GENEROUS_S)
    connection.request("GET", path, headers={} if host is None else {"Host": host})
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


def test_the_report_grows_with_the_run(
    run: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "grows"
    growing = Growing([folder])
    assert not growing.look()
    assert "the folder is not there yet" in growing.state["says"]
    folder.mkdir()
    shutil.copyfile(run.path / "scenario.toml", folder / "scenario.toml")
    assert not growing.look()
    assert "has begun; waiting for its first tables" in growing.state["says"]
    shutil.copytree(run.path, folder, dirs_exist_ok=True)
    assert growing.look()
    assert not growing.look()  # nothing is new
    assert growing.state == {
        "version": 1,
        "says": f"done, {run.summary['rounds']} rounds",
        "title": "small",
        "over": True,
    }
    assert "<h1>small</h1>" in growing.page
    assert "In short" in growing.page
    (folder / "summary.json").write_text("{")
    clock = [1000.0]
    monkeypatch.setattr("fedsim.analysis.watch.time.monotonic", lambda: clock[0])
    assert not growing.look()
    assert "damaged" not in growing.state["says"]  # a run may be replacing its files
    clock[0] += 6
    assert not growing.look()
    assert "damaged" in growing.state["says"]
    assert growing.state["version"] == 1  # the last report stays


def test_only_what_there_is_for_this_machine_alone(run: RunFolder) -> None:
    growing = LivePage("nothing yet")
    growing.show("<p>the report</p>", "a run", "done")
    with server_of(growing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        port = server.server_port
        assert server.server_address[0] == "127.0.0.1"
        status, page = get(port, "/")
        assert (status, "/events" in page) == (200, True)
        assert get(port, "/report") == (200, "<p>the report</p>")
        assert json.loads(get(port, "/state", f"localhost:{port}")[1])["version"] == 1
        for path, host, expected in (
            ("/summary.json", None, 404),
            ("/../x", None, 404),
            ("/state", "evil.example", 403),
        ):
            assert get(port, path, host)[0] == expected
        with pytest.raises(FedsimError, match=f"no page can be served at 127.0.0.1:{port}"):
            server_of(growing, port)
        server.shutdown()
        thread.join()


@pytest.mark.parametrize(
    "name",
    ["left\u202etfel", "\u2066iso", "zero\u200bwide", "\x1b[2Jred", "a\x9bb", "line\u2028end"],
)
def test_no_text_of_a_file_reorders_or_hides_others(
    name: str, run: RunFolder, tmp_path: Path
) -> None:
    """Wherever it comes from: a metric, a key of the summary, a strategy, a phase, a column."""
    folder = Path(shutil.copytree(run.path, tmp_path / "hostile"))
    summary = json.loads((folder / "summary.json").read_text())
    metrics = {name: {"final": 0.5, "best": 0.7, "best_is": "most"}}
    summary |= {"metrics": metrics, "strategy": name, name: name, "stopped": name}
    (folder / "summary.json").write_text(json.dumps(summary))
    page = write_report([folder], tmp_path / "r.html").read_text()
    assert [
        character for character in page if character != "\n" and not character.isprintable()
    ] == []
    trace = tmp_path / "t.json"
    write_trace(RunFolder(folder), trace)
    assert name not in json.dumps(json.loads(trace.read_text()), ensure_ascii=False)


@contextmanager
def served(growing: LivePage) -> Iterator[int]:
    with server_of(growing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield server.server_port
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.parametrize("path", ["/", "/report", "/state", "/nothing", "/state?evil"])
def test_every_answer_says_who_may_frame_and_run_it(path: str, tmp_path: Path) -> None:
    with served(LivePage("nothing yet")) as port:
        connection = HTTPConnection(HOST, port)
        connection.request("GET", path, headers={"Host": "evil.example"} if "evil" in path else {})
        headers = connection.getresponse().headers
    assert headers["X-Frame-Options"] == "SAMEORIGIN"
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = dict(
        part.strip().split(" ", 1) for part in headers["Content-Security-Policy"].split(";")
    )
    assert (policy["default-src"], policy["frame-ancestors"], policy["base-uri"]) == (
        "'none'",
        "'self'",
        "'none'",
    )
    assert headers["Server"].strip() == "fedsim"


def test_silent_connections_do_not_keep_others_out(tmp_path: Path) -> None:
    with served(LivePage("nothing yet")) as port, ExitStack() as stack:
        silent = [stack.enter_context(socket.create_connection((HOST, port))) for _ in range(100)]
        assert get(port, "/state")[0] == 200
        assert silent[0].recv(1) == b""  # the oldest are ended
        for each in silent[-20:]:
            each.sendall(f"GET /state HTTP/1.0\r\nHost: {HOST}:{port}\r\n\r\n".encode())
            assert each.recv(15) == b"HTTP/1.0 200 OK"


def test_a_silent_connection_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.analysis.serving._SILENT_S", 0.1)
    with served(LivePage("nothing yet")) as port, socket.create_connection((HOST, port)) as silent:
        silent.sendall(b"GET /")
        assert silent.recv(1) == b""


def test_it_ends_when_it_is_told_to(tmp_path: Path) -> None:
    told: list[str] = []
    over = threading.Event()
    over.set()
    watch([tmp_path / "nothing yet"], told.append, over)
    assert told[0].startswith("http://127.0.0.1:")
