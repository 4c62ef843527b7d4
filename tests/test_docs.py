"""Pages that are made out of the code have everything that is there; the gallery and the
notebooks run, by the public face.
"""

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from click.testing import CliRunner

import fedsim
from fedsim import plugin
from fedsim.cli import main
from fedsim.common.kind_field import specs_of
from fedsim.common.spec import Spec
from fedsim.lab.catalogue import catalogue, keys_of, specs_titled
from fedsim.lab.newcomer import write_study
from fedsim.lab.study.spec import StudySpec
from fedsim.records import schema
from fedsim.running.scenario import Scenario
from fedsim.strategies import STRATEGIES
from tests.conftest import module_at

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def made() -> ModuleType:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(DOCS)
        return module_at(DOCS / "generate.py")


@pytest.fixture(scope="module")
def pages(made: ModuleType) -> dict[str, str]:
    return dict(made._pages())


def below(spec: type[Spec], seen: set[type[Spec]]) -> Iterator[type[Spec]]:
    """A table, and all that stand in it."""
    if spec not in seen:
        seen.add(spec)
        yield spec
        for field in spec.model_fields.values():
            for inner in specs_of(field).values():
                yield from below(inner, seen)


@pytest.mark.parametrize("whole", [Scenario, StudySpec])
def test_every_key_is_told_with_its_default_and_what_is_allowed(
    whole: type[Spec], pages: dict[str, str]
) -> None:
    text = "\n".join(pages.values())
    told = 0
    for spec in below(whole, set()):
        for key in keys_of(spec):
            if key.name != "kind" and key.name in spec.takes():
                told += 1
                assert f"\n`{key.name}`\n: " in text or f"`[{key.name}]`" in text, (
                    f"{spec.__name__}.{key.name}"
                )
                if key.default and len(key.default) <= 60:
                    assert f"default `{key.default}`" in text or f"`[{key.name}]`" in text, key
    assert told > (200 if whole is Scenario else 10)


def test_a_page_has_the_keys_of_its_section_and_no_key_twice(pages: dict[str, str]) -> None:
    anchors = [
        anchor
        for text in pages.values()
        for anchor in re.findall(r"^\((key-[\w-]+)\)=$", text, re.MULTILINE)
    ]
    assert len({*anchors}) == len(anchors)
    assert (
        "(key-population-devices)=\n`devices`\n: a whole number, 1 or more"
        in pages["scenario/population"]
    )
    assert "`population.availability` = `renewal`" in pages["scenario/population"]
    assert "(key-study-seeds)=" in pages["study"]


@pytest.mark.parametrize("kind", [*STRATEGIES])
def test_a_strategy_has_its_source_and_all_of_its_keys(kind: str, pages: dict[str, str]) -> None:
    page = pages[f"strategies/{kind}"]
    for key in keys_of(STRATEGIES.spec(kind)):
        assert key.name == "kind" or (key.meaning and f"\n`{key.name}`\n: " in page), (
            f"{kind}: {key.name}"
        )
    about = page.partition("\n## Keys")[0]
    assert (
        kind == "local"
        or "Source" in about
        or "paper" in about
        or "](/generated/strategies/" in about
    )


def test_a_strategy_has_an_example_and_the_link_to_its_paper(pages: dict[str, str]) -> None:
    reasons = sys.modules["paper_links"].WITHOUT_LINK
    lacks = set()
    for kind in STRATEGIES:
        about = pages[f"strategies/{kind}"].partition("\n## Keys")[0]
        assert f'```toml\n[strategy]\nkind = "{kind}"' in about
        if "[The paper](https://" not in about and "](https://arxiv.org/abs/" not in about:
            lacks.add(kind)
    assert lacks == {*reasons}


@pytest.mark.parametrize("kind", [*STRATEGIES])
def test_symbols_of_a_strategy_are_explained_on_its_page(kind: str, pages: dict[str, str]) -> None:
    symbols = sys.modules["symbols"]
    page = pages[f"strategies/{kind}"]
    section = page.partition("\n## Symbols\n")[2].partition("\n## ")[0]
    explained = {*re.findall(r"^`(\w+)`\n: \S", section, re.MULTILINE)}
    assert explained == symbols.symbols_of(page.replace(section, ""))
    assert {*symbols.OWN.get(kind, {})} <= explained, "the page has no such symbol"
    assert {*symbols.OWN} <= {*STRATEGIES}


def test_symbols_are_found_in_formulas_and_sentences_alone(made: ModuleType) -> None:
    about = (
        "# q-X\n\nSource: A. B (2022). With `z` in 5 s w \\<- w + eta\\_g sum\\_i (tau - b).\n"
        "K-means; a client's E-step (s); $\\theta$; kappa2 = 1, I\\_k.\n\n"
    )
    keys = "\n## Keys\n\n`mu`\n: in h.\n\n  Weight rho.\n\n### `strategy.x.y`\n\n  C of it.\n"
    text = about + keys
    found = sys.modules["symbols"].symbols_of(text)
    assert found == {"w", "eta", "i", "tau", "b", "theta", "kappa2", "I", "k", "rho"}


def test_pictures_of_strategies_are_those_that_are_drawn(pages: dict[str, str]) -> None:
    pictures = sys.modules["strategy_pictures"]
    drawn = {path.stem for path in (DOCS / "pictures").glob("strategy-*.png")}
    assert drawn == {f"strategy-{kind}" for kind in pictures.TIMELINES}
    for kind in STRATEGIES:
        shown = f"](/pictures/strategy-{kind}.png)" in pages[f"strategies/{kind}"]
        assert shown == (kind in pictures.TIMELINES)


def test_kinds_verbs_columns_and_names_are_all_there(
    made: ModuleType, pages: dict[str, str]
) -> None:
    for title, entries in catalogue().items():
        for name, _ in entries:
            assert f"| `{name}` |" in pages["kinds"], title
    for title, (page, _) in sys.modules["keys"].PARTS.items():
        for kind in specs_titled(title):
            assert f"\n## `{kind}`\n" in pages[f"parts/{page}"]
    for verb in main.commands:
        assert f"## `fedsim {verb}" in pages["command"]
    for table, columns in [
        ("events", schema.EVENTS),
        ("energy", schema.OF_METERS["energy.parquet"]),
    ]:
        section = pages["tables"].split(f"## `{table}.parquet`")[1].partition("\n## ")[0]
        assert re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE) == columns.names
    for module, names in [("fedsim", fedsim.__all__), ("fedsim.plugin", plugin.__all__)]:
        assert [*re.findall(r"^## `(\w+)`$", pages[f"python/{module}"], re.MULTILINE)] == [*names]


def test_the_page_of_the_summary_has_every_entry_of_one() -> None:
    sections: dict[str, Any] = {
        "learning": "off",
        "strategy": {"clients_per_round": 2},
        "stop": {"rounds": 1},
        "costs": {},
    }
    sections |= {
        "population": {"devices": 4, "speed": "100 samples/s"},
        "energy": {"compute": "2 W", "carbon": {"intensity": "300 g/kWh"}},
    }
    summary = fedsim.run(fedsim.Scenario(**sections)).summary
    rows = [
        line for line in (DOCS / "summary.md").read_text().splitlines() if line.startswith("| `")
    ]
    told = re.findall(r"`([\w.]+)`", "\n".join(line.split("|")[1] for line in rows))
    for name, value in summary.items():
        inner = [f"{name}.{key}" for key in value] if isinstance(value, dict) else [name]
        assert {*inner} <= {*told}
    for module in ("summary", "runner"):
        source = Path(fedsim.__file__).with_name("running").joinpath(f"{module}.py").read_text()
        for name, inner in re.findall(r'summary\["(\w+)"\](?:\["(\w+)"\])? = ', source):
            assert any(entry.split(".")[0] == name for entry in told), name
            assert not inner or f"{name}.{inner}" in told


GALLERY, NOTEBOOKS = (sorted((DOCS / folder).glob("*.py")) for folder in ("gallery", "notebooks"))


@pytest.mark.parametrize("path", [*GALLERY, *NOTEBOOKS], ids=lambda path: path.stem)
def test_a_page_is_written_by_the_public_face(path: Path) -> None:
    nodes = [*ast.walk(ast.parse(path.read_text()))]
    assert not [
        node
        for node in nodes
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("fedsim")
    ]
    used = {
        node.attr
        for node in nodes
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "fedsim"
    }
    assert used
    assert used <= set(fedsim.__all__)


@pytest.mark.filterwarnings("default")
# docs/execute.py runs the study, too, which takes longer
@pytest.mark.parametrize("name", ["first_run", "own_strategy"])
def test_notebooks_run_to_their_end(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import matplotlib

    matplotlib.use("Agg")
    monkeypatch.setattr(sys, "path", list(sys.path))
    _, computing = module_at(DOCS / "execute.py").execute(
        DOCS / "notebooks" / f"{name}.py", tmp_path
    )
    assert computing < 60


GUESSED = (
    "told apart",
    "tell apart",
    "goes on with",
    "one to go on with",
    "takes the answer in brackets",
    "are alternatives",
    "shares of the runs",
    "learns in its place",
    "is one deviation",
    "figures behind a word",
    "away while they worked",
    "what a run folder claims",
    "What you would change first",
    "the same worlds, and compare",
)
"""Phrases of first texts of which newcomers had to guess the meaning."""


@pytest.mark.parametrize(
    "text", ["new --help", "study --help", "start.md", "tutorial.md", "a study"]
)
def test_first_texts_have_no_phrase_that_newcomers_have_to_guess(text: str, tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    if text.endswith(".md"):
        words = (DOCS / text).read_text(encoding="utf-8")
    elif text == "a study":
        write_study(file, "20 phones", "lte", "1 MB", 0.9, "try")
        words = file.read_text(encoding="utf-8")
        assert "until 90 % of the test samples are classified correctly" in words
    else:
        words = CliRunner().invoke(main, text.split()).output
    plain = " ".join(words.split())
    assert len(plain) > 500
    assert [phrase for phrase in GUESSED if phrase in plain] == []
