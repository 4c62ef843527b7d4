"""Every number that a reader sees on the page of a run, against the run folder.

Tables are compared cell by cell, and all other texts must become free of digits once the figures
that the folder gives are taken out of them.
"""

import html
import re
from html.parser import HTMLParser
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import fedsim
from fedsim.analysis.report.gather import gather
from fedsim.analysis.report.page import build
from fedsim.common.units import show_bytes, show_joules, show_seconds, show_share
from fedsim.lab.compare.critical_path import CriticalPaths
from fedsim.lab.compare.critical_words import path_table
from fedsim.records.ledger import show_peer
from fedsim.records.reading import RunFolder
from fedsim.version import __version__
from tests.analysis.test_unfinished import EVERY

COMPUTING = ("train", "evaluate", "compute")
ENDINGS = {"late": "late", "lost": "lost", "left": "left", "flat": "battery", "cut off": "stopped"}


class Reader(HTMLParser):
    """Collects the tables of a page, and all texts outside of them and of scripts."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []
        self.tables: list[list[list[str]]] = []
        self._skipped = 0
        self._in_table = False
        self._in_cell = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        if tag in ("script", "style", "pre", "title"):
            self._skipped += 1
        elif tag == "table":
            self.tables.append([])
            self._in_table = True
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")
            self._in_cell = True
        elif tag == "img":
            self.texts.append(dict(attributes)["alt"] or "")

    def handle_endtag(self, tag: str) -> None:
        if tag in ("script", "style", "pre", "title"):
            self._skipped -= 1
        elif tag == "table":
            self._in_table = False
        elif tag in ("td", "th"):
            self._in_cell = False

    def handle_data(self, data: str) -> None:
        if self._skipped:
            return
        if self._in_cell:
            self.tables[-1][-1][-1] += data
        elif data.strip():
            self.texts.append(" ".join(data.split()))


class Folder:
    """Figures of a run folder, computed from its tables alone."""

    def __init__(self, run: RunFolder) -> None:
        self.run = run
        self.events = run.table("events.parquet").to_pandas()
        self.transfers = run.table("transfers.parquet").to_pandas()
        self.devices = run.table("devices.parquet").to_pandas().set_index("device")
        self.rounds = run.rounds
        ends = self.events[self.events["kind"] == "task-end"]
        self.outcomes = dict(zip(ends["task"], ends["outcome"], strict=True))
        starts = self.events[self.events["kind"] == "step-start"]
        stops = self.events[self.events["kind"] == "step-end"]
        steps = []
        for task, rows in starts.groupby("task"):
            begun = rows[["device", "step", "time"]].to_numpy().tolist()
            over = stops[stops["task"] == task]["time"].tolist()
            for (device, step, start), end in zip(begun, over, strict=True):
                steps.append((int(device), task, step, start, end, self.outcomes[task]))
        columns = ["device", "task", "step", "start", "end", "outcome"]
        self.steps = pd.DataFrame(steps, columns=columns)
        self.steps["length"] = self.steps["end"] - self.steps["start"]

    def moved(self, direction: str) -> float:
        rows = self.transfers[self.transfers["direction"] == direction]
        return float(rows["delivered"].sum())

    def bytes_of(self, device: int) -> float:
        name = f"device {device}"
        own = self.transfers["device"] == device
        between = (self.transfers["sender"] == name) | (self.transfers["receiver"] == name)
        both = (self.transfers["sender"] == name) & (self.transfers["receiver"] == name)
        assert not both.any()
        return float(self.transfers[own | between]["delivered"].sum())

    def figures(self) -> list[str]:
        """All texts with digits that the page may have outside of tables."""
        summary = self.run.summary
        sizes = summary["bytes"]
        down, up, peer = self.moved("down"), self.moved("up"), self.moved("peer")
        moved = down + up + peer
        accuracies = [row["accuracy"] for row in self.rounds if row["accuracy"] is not None]
        word = self.run.round_word
        count = len(self.rounds)
        population = len(self.devices)
        worked = self.steps["device"].nunique()
        computing = self.steps[self.steps["step"].isin(COMPUTING)]
        computed = float(computing["length"].sum())
        end = float(self.events["time"].max())
        texts = [
            f"{accuracies[-1]:.4f}",
            f"accuracy {accuracies[-1]:.3f}",
            f"best {max(accuracies):.4f}",
            f"{show_seconds(end)} and {count} {word}s",
            f"ended by: {count} {word}s",
            f"Table of {count} {word}s",
            f"Table of {worked} devices",
            f"All {population} devices; {worked} of them worked.",
            f"computed in {show_seconds(summary['wall_s'])}",
            f"{show_bytes(down)} down, {show_bytes(up)} up",
            f"of {show_bytes(moved)} that moved was wasted",
            f"{sizes['wasted'] / moved:.1%}",
            f"{sizes['wasted'] / moved:.1%} of what moved",
            f"fedsim {__version__}",
            f"seed {summary['seed']}",
            "(0 to 1)",
            "+ - 0",  # keys of the keyboard
        ]
        texts += show_peer(sizes)
        accuracy = self.devices.get("accuracy")
        if accuracy is not None and accuracy.notna().any():
            tested = np.sort(accuracy.dropna().to_numpy())
            tenth = tested[: max(1, len(tested) // 10)]
            texts.append(f"worst tenth of devices {tenth.mean():.4f}")
        texts += self._round_sentences() + self._waste(computed) + self._energy()
        return texts

    def exact(self) -> set[str]:
        """Texts that are a figure as a whole, such as those of tiles."""
        summary = self.run.summary
        end = float(self.events["time"].max())
        moved = sum(map(self.moved, ("down", "up", "peer")))
        computing = self.steps[self.steps["step"].isin(COMPUTING)]
        texts = {
            str(len(self.rounds)),
            show_seconds(end),
            show_bytes(moved),
            show_bytes(summary["bytes"]["wasted"]),
            show_seconds(float(computing["length"].sum())),
        }
        if "energy" in summary:
            table = self.run.table("energy.parquet").to_pandas()
            phases = [f"{phase}_j" for phase in ("idle", "compute", "receive", "send", "tail")]
            texts.add(show_joules(float(table[phases].to_numpy().sum())))
        return texts

    def _round_sentences(self) -> list[str]:
        ends = [0.0, *(row["time"] for row in self.rounds)]
        lengths = [end - start for start, end in pairwise(ends)]
        longest = max(lengths)
        middle = float(np.median(lengths))
        word = self.run.round_word.capitalize()
        number = self.rounds[lengths.index(longest)]["round"]
        selected = sum(row["selected"] or 0 for row in self.rounds)
        valid = sum(row["valid"] or 0 for row in self.rounds)
        return [
            f"{word} {number} was the longest, {show_seconds(longest)}; the median is "
            f"{show_seconds(middle)}.",
            f"{selected - valid} of {selected} selected clients",
        ]

    def _waste(self, computed: float) -> list[str]:
        texts = []
        wasteful = self.steps[self.steps["outcome"] != "done"]
        cut_off = wasteful["outcome"] == "stopped"
        kinds = {"that was wasted": ~cut_off, "cut off by the end of the run": cut_off}
        for kind, is_kind in kinds.items():
            devices = wasteful[is_kind]["device"].nunique()
            if devices:
                texts.append(f"{devices} of them with a task {kind}")
        # of tasks that ended otherwise, all; a done task's training here has all its epochs
        lost = wasteful[wasteful["step"].isin(COMPUTING)]["length"].sum()
        texts.append(f"{lost / computed:.1%} wasted")
        purities = [row["purity"] for row in self.rounds if row["purity"] is not None]
        if purities:
            texts += [f"{purities[-1]:.3f}", "; 1 is perfect"]
        return texts

    def _energy(self) -> list[str]:
        if "energy" not in self.run.summary:
            return []
        table = self.run.table("energy.parquet").to_pandas()
        phases = {name: float(table[f"{name}_j"].sum()) for name in _PHASES}
        drawn = sum(phases.values())
        most = max(phases, key=phases.__getitem__)
        wasted = self.run.summary["energy"]["wasted"]
        return [
            f"Devices drew {show_joules(drawn)}, {phases[most] / drawn:.0%} of it for the phase "
            f"'{most}'",
            f"{wasted / drawn:.1%} of it wasted",
        ]

    def row_of_round(self, place: int, heads: list[str]) -> list[str]:
        row = self.rounds[place]
        start = self.rounds[place - 1]["time"] if place else 0.0
        known: dict[str, Any] = {
            self.run.round_word: str(row["round"]),
            "ended at": show_seconds(row["time"]),
            "lasted": show_seconds(max(0.0, row["time"] - start)),
            "accuracy (0-1)": ("accuracy", "{:.4f}"),
            "test loss": ("loss", "{:.4f}"),
            "training loss": ("train_loss", "{:.4f}"),
            "discrepancy": ("discrepancy", "{:.4f}"),
            "purity (0-1)": ("purity", "{:.4f}"),
            "accuracy of the mean (0-1)": ("mean_accuracy", "{:.4f}"),
            "consensus distance": ("consensus", "{:.4f}"),
            "energy (J)": ("joules", "{:.4f}"),
            "down": show_bytes(row["bytes_down"]),
            "up": show_bytes(row["bytes_up"]),
        }
        for name in ("selected", "valid", "slow", "disconnected"):
            known[name] = (name, "{:,}")
        cells = []
        for head in heads:
            value = known.get(head)
            if head == "between devices":
                value = show_bytes(row["bytes_peer"])
            assert value is not None, f"the page has a column {head!r} that this test does not know"
            if isinstance(value, tuple):
                key, form = value
                value = "\N{EN DASH}" if row[key] is None else form.format(row[key])
            cells.append(value)
        return cells

    def row_of_device(self, device: int, heads: list[str]) -> list[str]:
        facts = self.devices.loc[device]
        steps = self.steps[self.steps["device"] == device]
        tasks = steps.drop_duplicates("task")["outcome"].value_counts()
        worked = float(steps["length"].sum())
        wasted = float(steps[steps["outcome"] != "done"]["length"].sum())
        known: dict[str, str] = {
            "device": str(device),
            "speed (samples/s)": f"{facts['speed']:.3g}",
            "samples": f"{facts['samples']:,.0f}",
            "tasks": f"{tasks.sum():,.0f}",
            "worked": show_seconds(worked),
            "of it wasted": show_seconds(wasted),
            "share wasted": f"{wasted / worked:.0%}",
            "moved": show_bytes(self.bytes_of(device)),
        }
        for head, outcome in ENDINGS.items():
            known[head] = f"{tasks.get(outcome, 0):,.0f}"
        for head, key, form in (
            ("last group", "group", "{:.0f}"),
            ("accuracy (0-1)", "accuracy", "{:.4f}"),
        ):
            value = facts.get(key)
            known[head] = "\N{EN DASH}" if pd.isna(value) else form.format(value)
        if "energy" in heads:
            known["energy"] = show_joules(facts["joules"])
        return [known[head] for head in heads]


_PHASES = ("idle", "compute", "receive", "send", "tail")


def played(family: str, out: Path) -> RunFolder:
    sections: dict[str, Any] = {
        "name": "a page",
        "data": {"source": "digits"},
        "population": {
            "devices": 6,
            "speed": {"kind": "uniform", "low": "9 samples/s", "high": "30 samples/s"},
        },
        "stop": {"rounds": 4},
    }
    fedsim.run(fedsim.Scenario(**sections | EVERY[family]), out, executor="inline")
    return RunFolder(out)


@pytest.mark.parametrize("family", EVERY)
def test_every_number_of_a_page_is_that_of_the_folder(family: str, tmp_path: Path) -> None:
    run = played(family, tmp_path / "run")
    folder = Folder(run)
    page = build(gather([run.path]))
    head = page.partition('id="scenario"')[0]
    reader = Reader()
    reader.feed(head)
    paths = CriticalPaths(run)
    known = {"device": 0, run.round_word: 0, "critical": 0, "step": 0}
    for table in reader.tables:
        heads, *rows = table
        if heads[0] == "device":
            known["device"] += 1
            assert {row[0] for row in rows} == {str(one) for one in folder.steps["device"].unique()}
            for row in rows:
                assert row == folder.row_of_device(int(row[0]), heads)
        elif heads[0] == run.round_word:
            known[run.round_word] += 1
            assert rows == [folder.row_of_round(place, heads) for place in range(len(rows))]
            assert len(rows) == len(run.rounds)
        elif heads[0] == "on the critical path":
            known["critical"] += 1
            seconds = list(paths.totals.values())
            end = float(folder.events["time"].max())
            assert sum(seconds) == pytest.approx(end)
            assert [row[1:] for row in rows] == [
                [show_seconds(part), show_share(part / end, 1)] for part in seconds
            ]
        else:
            assert heads[0] == "step"
            known["step"] += 1
            tables = [path_table(path) for path in paths.rounds]
            assert [row[3] for row in rows] in [
                [str(cell) for cell in one.columns[3].cells] for one in tables
            ]
    assert known["device"] == known[run.round_word] == known["critical"] == 1
    figures = sorted(folder.figures(), key=len, reverse=True)
    unknown = []
    for text in reader.texts:
        if text in folder.exact() or is_on_critical_path(text, paths, folder):
            continue
        left = html.unescape(text)
        for figure in figures:
            left = left.replace(figure, " ")
        if re.search(r"\d", left):
            unknown.append(text)
    assert unknown == []


def is_on_critical_path(text: str, paths: CriticalPaths, folder: Folder) -> bool:
    """Whether all times, shares, devices and rounds of a sentence on waiting are the paths'."""
    if not re.search(r"\bWaited for most often|^\w+ \d+, (the longest|a usual one)|\btook ", text):
        return False
    lengths = [path.seconds for path in paths.rounds]
    numbers = {path.number for path in paths.rounds} | set(folder.devices.index)
    for number in re.findall(rf"(?:device|{paths.word}|Version|Round) (\d+)", text):
        assert int(number) in numbers
    total = re.match(
        rf"(\d+) {paths.word}s in ([^:]+): (.+) in the median(?:, (.+) the longest| and at most)",
        text,
    )
    if total:
        assert int(total[1]) == len(lengths)
        assert total[2] == show_seconds(sum(lengths))
        assert total[3] == show_seconds(float(np.median(lengths)))
        assert (total[4] or total[3]) == show_seconds(max(lengths))
    took = re.match(r"\w+ (\d+) took (.+?)[,:]", text)
    if took:
        assert took[2] == show_seconds(paths.round(int(took[1])).seconds)
    return True
