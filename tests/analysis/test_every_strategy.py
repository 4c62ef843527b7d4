"""Every registered strategy's run, in a world where much happens, goes through every verb and every picture."""

import csv
import importlib.util
import io
import json
from collections import Counter
from itertools import chain
from pathlib import Path

import pytest
from click.testing import CliRunner
from matplotlib.figure import Figure

import fedsim
from fedsim.analysis import style
from fedsim.analysis.__main__ import KINDS
from fedsim.analysis.pictures import OF_ONE
from fedsim.analysis.report.gather import MOST_DRAWN
from fedsim.cli import main
from fedsim.records.reading import RunFolder
from fedsim.strategies import STRATEGIES as REGISTERED
from fedsim.testing import assert_sound
from tests.analysis.conftest import Lived
from tests.analysis.test_report import Document

_ELSEWHERE = ("flower", "diloco", "local-sgd")  # tests/flower, and all-reduces, for which nobody comes or goes
STRATEGIES = [kind for kind in REGISTERED if kind not in _ELSEWHERE]
MOVES = ("assign", "migration")
HAPPENS: dict[str, tuple[str, ...]] = {
    "cata-fed": ("cluster", "split"),
    "cfl": ("assign", "leaving", "cluster-split", "clustering"),
    **dict.fromkeys(("d-psgd", "epidemic", "gossip"), ("message",)),
    **dict.fromkeys(("fesem", "fesem-mig", "fpfc", "hypcluster", "ifca"), MOVES),
    **dict.fromkeys(("fl-hc", "lcfl"), ("assign", "clustering", "campaign")),
    "fedat": ("latency-tiers",),
    "fedgroup": ("assign", "clustering"),
    "flexcfl": (*MOVES, "clustering", "shift-test", "server-transfer"),
    "hierfavg": ("edge-transfer", "edge-off", "edges-combined"),
    "ifca-mig": (*MOVES, "shift-test"),
    "rfedavg": ("clustering",),
    "tifl": ("tiers", "tier"),
}
"""What a strategy is for, as kinds of records; nothing but rounds for those that are not here."""

CLUSTERINGS = ("membership", "similarity", "embedding")
OF_ROUNDS = (
    "ditto",
    "fedavg",
    "fedbn",
    "feddr",
    "feddyn",
    "fednova",
    "fedper",
    "fedprox",
    "fedrep",
    "heterofl",
    "hetlora",
    "moon",
    "pfedme",
    "scaffold",
)
DRAWN: dict[str, tuple[str, ...]] = {
    **dict.fromkeys(OF_ROUNDS, ("stragglers",)),
    **dict.fromkeys(("cata-fed", "tifl"), ("stragglers", "clusters")),
    **dict.fromkeys(("fesem", "fesem-mig", "fpfc", "hypcluster", "ifca", "ifca-mig"), ("stragglers", "membership")),
    **dict.fromkeys(("fedgroup", "flexcfl"), ("stragglers", *CLUSTERINGS)),
    **dict.fromkeys(("fl-hc", "lcfl"), CLUSTERINGS),
    "cfl": ("stragglers", *CLUSTERINGS, "split-tree"),
    "hierfavg": ("stragglers", "edges"),
    "rfedavg": ("stragglers", "similarity", "embedding"),
}
"""The pictures of each strategy's run besides those that all have; none for those that are not here."""


def happened(run: RunFolder) -> Counter[str]:
    """How often each kind of record occurs, and devices that changed their group or were left without one."""
    count = Counter(event["kind"] for event in run.events)
    for event in run.events:
        if event["kind"] == "assign" and event["data"]["before"] is not None:
            count["leaving" if event["group"] is None else "migration"] += 1
    return count


@pytest.mark.parametrize("kind", STRATEGIES)
def test_verbs_and_pictures_of(kind: str, lived: Lived, tmp_path: Path) -> None:
    run = lived(kind)
    count = happened(run)
    missing = [name for name in ("arrival", "departure", "shift", *HAPPENS.get(kind, ())) if not count[name]]
    assert not missing, f"this world does not show {missing}"
    assert_sound(run.path)

    (row,) = csv.DictReader(io.StringIO(call("compare", run.path, "--csv")))
    assert (row["migrations"] != "") == (count["assign"] > 0)
    call("trace", run.path, "--out", tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert not [entry["name"] for entry in entries if "None" in entry["name"] or "nan" in entry["name"]]
    named = Counter(entry["name"].rstrip(" 0123456789") for entry in entries)
    assert named["into group"] + named["out of group"] == count["assign"]
    assert named["out of group"] == count["leaving"]
    if importlib.util.find_spec("tensorboard"):
        call("tensorboard", run.path, "--out", tmp_path / "board")

    loaded = fedsim.load_run(run.path)
    assert all(len(frame) for frame in (loaded.events, loaded.rounds, loaded.devices))
    assert loaded.transfers.empty == (kind == "local")
    assert shows_something(loaded.figure("timeline"))  # in a report that is no picture, but to be zoomed into


def call(*words: str | Path) -> str:
    result = CliRunner().invoke(main, [str(word) for word in words], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.output


def shows_something(figure: Figure) -> bool:
    return any(axes.has_data() for axes in figure.axes)


@pytest.mark.parametrize(
    "first",
    [pytest.param(first, marks=[pytest.mark.long] if first != 6 else []) for first in range(0, len(STRATEGIES), MOST_DRAWN)],
)
def test_reports_of(first: int, lived: Lived, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As many runs at a time as a report draws by themselves: all their pictures are drawn as they are seen."""
    kinds = STRATEGIES[first : first + MOST_DRAWN]
    runs = [lived(kind) for kind in kinds]
    figures: list[Figure] = []
    with monkeypatch.context() as watched:
        watched.setattr(style, "pixels", lambda figure, dpi, draw=style.pixels: figures.append(figure) or draw(figure, dpi))
        call("report", *(run.path for run in runs), "--out", tmp_path / "report.html")
    assert all(map(shows_something, figures))
    page = Document(tmp_path / "report.html")
    titles = Counter(str(attrs["alt"]).partition(".")[0] for tag, attrs in page.elements if tag == "img")
    own = [kind.title for name, kind in OF_ONE.items() if name != "timeline"]
    expected = Counter(chain.from_iterable((*DRAWN.get(kind, ()), *(["traffic"] * (kind != "local"))) for kind in kinds))
    assert [titles[title] for title in own] == [expected[name] for name in KINDS[1 : 1 + len(own)]]
    assert titles.total() == len(figures)
    assert len(titles) > len(set(own) & set(titles)) + (2 if len(runs) > 1 else 1)
    assert not [text for text in page.texts if "None" in text or "group -1" in text]
