"""A run of each family of strategies, in a world where much happens, goes through every verb and every picture."""

import csv
import importlib.util
import io
import json
from collections import Counter
from contextlib import suppress
from pathlib import Path

import pytest

import fedsim
from fedsim.analysis.pictures import OF_ANY, OF_ONE
from fedsim.analysis.style import NothingToDrawError
from fedsim.records.reading import RunFolder
from fedsim.testing import assert_sound
from tests.analysis.conftest import Lived
from tests.calls import done

CLUSTERINGS = ("membership", "similarity", "embedding")
HAPPENS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "cata-fed": (("cluster", "split"), ("stragglers", "clusters")),
    "cfl": (("assign", "leaving", "cluster-split", "clustering"), ("stragglers", *CLUSTERINGS, "split-tree")),
    "fedasync": ((), ()),
    "fedat": (("latency-tiers",), ()),
    "fedavg": ((), ("stragglers",)),
    "flexcfl": (("assign", "migration", "clustering", "shift-test", "server-transfer"), ("stragglers", *CLUSTERINGS)),
    "gossip": (("message",), ()),
    "hierfavg": (("edge-transfer", "edge-off", "edges-combined"), ("stragglers", "edges")),
    "ifca-mig": (("assign", "migration", "shift-test"), ("stragglers", "membership")),
    "lcfl": (("assign", "clustering", "campaign"), CLUSTERINGS),
    "local": ((), ()),
    "rfedavg": (("clustering",), ("stragglers", "similarity", "embedding")),
    "tifl": (("tiers", "tier"), ("stragglers", "clusters")),
}
"""The kinds of records that a family is for, and its pictures besides those that all have; others write no other records."""


def happened(run: RunFolder) -> Counter[str]:
    """How often each kind of record occurs, and devices that changed their group or were left without one."""
    count = Counter(event["kind"] for event in run.events)
    for event in run.events:
        if event["kind"] == "assign" and event["data"]["before"] is not None:
            count["leaving" if event["group"] is None else "migration"] += 1
    return count


@pytest.mark.parametrize("kind", HAPPENS)
def test_verbs_and_pictures_of(kind: str, lived: Lived, tmp_path: Path) -> None:
    run = lived(kind)
    count, (records, pictures) = happened(run), HAPPENS[kind]
    missing = [name for name in ("arrival", "departure", "shift", *records) if not count[name]]
    assert not missing, f"this world does not show {missing}"
    assert_sound(run.path)

    (row,) = csv.DictReader(io.StringIO(done("compare", run.path, "--csv")))
    assert (row["migrations"] != "") == (count["assign"] > 0)
    done("trace", run.path, "--out", tmp_path / "trace.json")
    entries = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert not [entry["name"] for entry in entries if "None" in entry["name"] or "nan" in entry["name"]]
    named = Counter(entry["name"].rstrip(" 0123456789") for entry in entries)
    assert named["into group"] + named["out of group"] == count["assign"]
    assert named["out of group"] == count["leaving"]
    if importlib.util.find_spec("tensorboard"):
        done("tensorboard", run.path, "--out", tmp_path / "board")

    loaded, drawn = fedsim.load_run(run.path), set()
    if kind == "gossip":  # bytes between devices count as moved
        assert loaded.figure("accuracy").axes[2].lines[0].get_xdata()[-1] > 0
    assert all(len(frame) for frame in (loaded.events, loaded.rounds, loaded.devices))
    assert loaded.transfers.empty == (kind == "local")
    for name in (*OF_ONE, *OF_ANY):
        with suppress(NothingToDrawError):
            figure = loaded.figure(name)
            drawn.add(name)
            assert any(axes.has_data() for axes in figure.axes)
            texts = [text.get_text() for axes in figure.axes for text in (axes.title, *axes.texts, *axes.get_yticklabels())]
            assert not [text for text in texts if "None" in text or "group -1" in text]
    assert drawn == {"timeline", *pictures, *(["traffic"] * (kind != "local")), "accuracy", "fairness"}
