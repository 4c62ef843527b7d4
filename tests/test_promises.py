"""What pages of the docs promise, beside the commands that ``test_readme.py`` runs: the files that
are said to be written, the parts that a report is said to have, and the keys, messages and columns
that the tables of strategies name.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import fedsim
from fedsim.cli import main
from fedsim.common.kind_field import specs_of
from fedsim.strategies import STRATEGIES
from tests.calls import call, done

DOCS = Path(__file__).resolve().parents[1] / "docs"
SMALL: dict[str, Any] = {
    "population": {"devices": 12, "speed": "60 samples/s"},
    "model": {"kind": "mlp", "hidden": [8]},
    "training": {"lr": 0.2},
    "stop": {"rounds": 3},
}


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def says(page: str, sentence: str) -> bool:
    return sentence in " ".join(text_of(page).split())


def quoted(text: str) -> list[str]:
    """Words in code, as `word`."""
    return re.findall(r"`([\w-]+)`", text)


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder of a study of two strategies with two seeds, of which one has rounds."""
    folder = tmp_path_factory.mktemp("study") / "paper"
    fedavg = {"kind": "fedavg", "clients_per_round": 4, "deadline": "3 s"}
    variants = {
        "fedavg": {"strategy": fedavg},
        "fedprox": {"strategy": fedavg | {"kind": "fedprox", "mu": 0.1}},
    }
    tables = {"base": SMALL, "variants": variants, "seeds": [1, 2], "target": 0.2}
    fedsim.run_study(tables, folder, workers=1)
    return folder


def test_figures_lie_where_the_page_says_in_the_width_of_a_column(study: Path) -> None:
    page = text_of("figures.md")
    assert says("figures.md", "The files lie in `runs/paper-figures`")
    told = call("figures", study, "--width", "3.5in", "--format", "pdf,svg")
    assert told.exit_code == 0
    folder = study.with_name("paper-figures")
    for name in ("straggling", "waiting", "rounds-fedavg", "communication"):
        assert f"--figure {name.removesuffix('-fedavg')}" in page
        for end in ("pdf", "svg", "csv"):
            assert (folder / f"{name}.{end}").is_file()
        pdf = (folder / f"{name}.pdf").read_bytes()
        box = re.search(rb"/MediaBox \[ ?0 0 ([\d.]+)", pdf)
        assert box
        assert float(box[1]) == pytest.approx(252.0)
        assert b"/Type3" not in pdf
    left_out = "A figure that does not apply is left out, and the reason goes to stderr"
    assert says("figures.md", left_out)
    assert not (folder / "migration.pdf").exists()
    assert "migration" in told.stderr


@pytest.fixture(scope="module")
def folds(study: Path) -> str:
    done("report", study)
    return study.with_name("paper.report.html").read_text(encoding="utf-8")


def test_a_report_has_the_folds_of_the_page_and_loads_nothing(folds: str) -> None:
    rows = re.findall(r"^\| ([A-Z][^|]*?) \| ", text_of("report.md"), re.MULTILINE)
    assert len(rows) == 7
    for fold in rows:
        assert fold in folds, fold
    assert not re.search(r"""<(script|link|img)[^>]*(src|href)=["']?https?:""", folds)


class Row(NamedTuple):
    """A row of a table of strategies with messages and keys of its own."""

    kind: str
    messages: str
    keys: str


def rows_with_keys() -> Iterator[Row]:
    pattern = r"^\| `([\w-]+)` \|[^|]*\|[^|]*\|([^|]*)\|([^|]*)\|$"
    for kind, messages, keys in re.findall(pattern, text_of("strategies.md"), re.MULTILINE):
        if kind in STRATEGIES:
            yield Row(kind, messages, keys)


ROWS = [*rows_with_keys()]


def names_in(kind: str) -> set[str]:
    """Keys of a strategy, those of its tables included, and the values that they allow."""
    spec = STRATEGIES.spec(kind)
    names = set(spec.model_fields) | {"as"}
    for name, field in spec.model_fields.items():
        names |= set(re.findall(r"[\w-]+", str(field.annotation)))
        names |= set(re.findall(r"[\w-]+", str(field.default)))
        for title, inner in specs_of(spec.model_fields[name]).items():
            names |= {title, *inner.model_fields}
    return names


def verbs_with_json(group: click.Group, path: str = "") -> Iterator[str]:
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from verbs_with_json(verb, f"{name} ")
        elif any(option.name == "json" for option in verb.params):
            yield path + name


def test_the_page_on_programs_names_each_verb_that_prints_json() -> None:
    sentence = text_of("howto/programs.md").partition("need no parsing of text. ")[2]
    named = re.findall(r"`([a-z ]+)`", sentence.partition("take two options")[0])
    assert {*named} - {"study merge"} == {*verbs_with_json(main)}


def test_the_readme_names_each_strategy() -> None:
    readme = " ".join((DOCS.parent / "README.md").read_text(encoding="utf-8").lower().split())
    for kind, about in STRATEGIES.titles.items():
        title = about.partition(": ")[0].removesuffix(" with migration").lower()
        assert title in readme, kind


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.kind)
def test_own_keys_of_a_strategy_are_keys(row: Row) -> None:
    assert len(ROWS) > 25
    assert not set(quoted(row.keys)) - names_in(row.kind) - {*STRATEGIES}


OPTIONS: dict[str, dict[str, Any]] = {
    "fedat": {"tiers": 2, "clients_per_round": 2},
    "hierfavg": {"kappa2": 2, "clients_per_round": 6},
    "pacfl": {"groups": 2, "clients_per_round": 6},
    "hypcluster": {"groups": 2, "clients_per_round": 6},
    "fl-hc": {"groups": 2, "moment": {"rounds": 1}},
    "d-psgd": {"topology": "ring"},
    "gossip": {"topology": "ring"},
    "diloco": {"local_steps": 4},
    "local-sgd": {"local_steps": 4},
}
RAN = [row for row in ROWS if row.kind not in ("heterofl", "hetlora", "flora", "fedbn")]
"""Strategies that need no model or kinds of devices of their own."""


@pytest.mark.parametrize("row", RAN, ids=lambda row: row.kind)
def test_messages_that_a_table_names_are_sent(row: Row, tmp_path: Path) -> None:
    scenario = SMALL | {"strategy": {"kind": row.kind, **OPTIONS.get(row.kind, {})}}
    if row.kind == "hierfavg":
        scenario["network"] = {"kind": "tree", "cells": 4, "edge": {"latency": "10 ms"}}
    run = fedsim.run(fedsim.Scenario(**scenario), tmp_path / "run")
    sent = {part[0] for parts in run.transfers["payloads"] for part in parts}
    assert set(quoted(row.messages)) - {"declined", "fragments"} <= sent
    if row.kind == "d-psgd":
        assert run.rounds[["mean_accuracy", "consensus", "bytes_peer"]].notna().all(axis=None)
    if row.kind == "hierfavg":
        assert {"server", "edge 3"} <= {*run.transfers["sender"], *run.transfers["receiver"]}
