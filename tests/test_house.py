"""The files of the house say the same as the code: versions, links, the glossary, and the page
of parts.
"""

import inspect
import re
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.common.registry import Registry
from fedsim.federation.codecs import CODECS
from fedsim.federation.malicious import ATTACKS
from fedsim.records import schema
from fedsim.strategies.parts.aggregation import AGGREGATIONS
from fedsim.strategies.parts.server_optimizer import OPTIMIZERS
from tests.test_examples import public_names

ROOT = Path(__file__).resolve().parents[1]
NEVER = re.compile(
    r"instrument|\bcompany\b|manieth|slips? of the pen|\bin vain\b|thrown[ "
    r"-]away|(?<!HF_HUB_)offline(?![\"-])",
    re.IGNORECASE,
)
"""Words that have another in the glossary, or that nobody needs.

W&B has a mode "offline", and folders offline-run-*.
"""


def text(name: str) -> str:
    return (ROOT / name).read_text()


def test_one_version_and_one_license() -> None:
    assert f"\nversion: {fedsim.__version__}\n" in text("CITATION.cff")
    released = re.findall(r"^## (\d+\.\d+\.\d+)", text("CHANGELOG.md"), re.MULTILINE)
    assert released[0] == fedsim.__version__
    named = tomllib.loads(text("pyproject.toml"))["project"]["license"]
    assert f"\nlicense: {named}\n" in text("CITATION.cff")
    assert named == "Apache-2.0"
    assert "Apache License" in text("LICENSE")[:200]


def test_every_column_of_every_table_has_a_line_and_no_other_has() -> None:
    told = re.findall(
        r"^\| (events|transfers|rounds|devices|availability|energy) \| (.*?) \|",
        text("docs/glossary.md"),
        re.MULTILINE,
    )
    columns = [(table, column) for table, names in told for column in re.findall(r"`(\w+)`", names)]
    tables = {
        "events": schema.EVENTS,
        "transfers": schema.TRANSFERS,
        "rounds": schema.ROUNDS,
        "devices": schema.DEVICES,
    }
    tables |= {"availability": schema.AVAILABILITY, "energy": schema.OF_METERS["energy.parquet"]}
    assert sorted(columns) == sorted(
        (table, name) for table, made in tables.items() for name in made.names
    )


def test_words_that_have_a_better_one_are_not_used() -> None:
    paths = [
        path
        for folder in ("fedsim", "analysis")
        for kind in ("*.py", "*.js")
        for path in (ROOT / folder).rglob(kind)
    ]
    assert len(paths) > 150
    for path in [*paths, ROOT / "README.md"]:
        for number, line in enumerate(path.read_text().splitlines(), 1):
            found = NEVER.search(line)
            assert not found, f"{path.relative_to(ROOT)}:{number}: {found[0] if found else ''}"


SYNONYMS = re.compile(r"\bvanish|\bdrop(s|ped|ping)? out\b", re.IGNORECASE)
"""Words for a device that disconnects, which is the glossary's word."""


def test_pages_and_the_public_face_use_the_glossary_s_words() -> None:
    pages = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "docs").rglob("*.py"), ROOT / "README.md"]
    texts = {str(page.relative_to(ROOT)): page.read_text() for page in pages}
    del texts["docs/glossary.md"]  # names them
    texts |= {name: inspect.getdoc(value) or "" for name, value in public_names()}
    found = [name for name, words in texts.items() if SYNONYMS.search(words)]
    assert [name for name in found if not name.startswith("docs/generated/")] == []


def keys(family: Registry, kind: str) -> str:
    """The keys of a kind and their defaults, as TOML says them; a key alone has none, or stands
    for nothing.
    """
    shown = []
    for name, field in family.spec(kind).model_fields.items():
        value = None if field.is_required() else field.default
        written = f'"{value}"' if isinstance(value, str) else str(value).lower()
        shown += (
            [] if name == "kind" else [f"`{name}`" if value is None else f"`{name} = {written}`"]
        )
    return ", ".join(shown)


@pytest.mark.parametrize(
    "family", [OPTIMIZERS, AGGREGATIONS, CODECS, ATTACKS], ids=lambda family: family.called
)
def test_the_page_says_what_the_models_say(family: Registry) -> None:
    section = (
        text("docs/parts.md").split(f"\n## {family.called.capitalize()}")[1].partition("\n## ")[0]
    )
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("| `")
    ]
    assert all(source for _, _, source, _ in rows)
    found = [(kind, title, said) for kind, title, _, said in rows]
    assert found == [
        (f"`{kind}`", title, keys(family, kind)) for kind, title in family.titles.items()
    ]


TEXTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md", "Dockerfile")),
    *(path for folder in ("docs", "fedsim", "analysis", "scenarios") for path in sorted((ROOT / folder).rglob("*")))
]  # fmt: skip
UNPUBLISHED = "once fedsim is published"


def installs() -> list[tuple[str, str]]:
    """Each line that tells how to install something, with its place."""
    paths = [
        path
        for path in TEXTS
        if path.suffix in (".md", ".py", ".toml", ".txt", ".html", ".js", "") and path.is_file()
    ]
    lines = [
        (f"{path.relative_to(ROOT)}:{at}", line)
        for path in paths
        for at, line in enumerate(path.read_text().splitlines(), 1)
    ]
    return [
        (place, line)
        for place, line in lines
        if re.search(r"pip3? install|install '", line) and "generated" not in place
    ]


def test_nothing_is_to_be_installed_that_is_not_there() -> None:
    """The distribution is in no public index; what is built or cloned is, and so are the
    packages that it needs.
    """
    project = tomllib.loads(text("pyproject.toml"))["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *(one for of in extras.values() for one in of)]
    found = installs()
    assert len(found) > 15
    for place, line in found:
        if "fedsim-des" in line:
            assert UNPUBLISHED in line, place
        for extra in re.findall(r"\.\[(\w+)\]|fedsim-des\[(\w+)\]", line):
            assert set(extra) & set(extras), place
        for requirement in re.findall(r"'([\w-]+>=[\d.]+)'", line):
            assert requirement in needed, place


def test_the_help_shows_each_verb_whole_in_80_columns() -> None:
    result = CliRunner().invoke(main, ["--help"], terminal_width=80)
    listed = result.output.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert len(listed) == len(main.commands)
    for line in listed:
        assert len(line) <= 80
        assert re.fullmatch(r"  [a-z]+ +[A-Z].*[^.]\.", line), line


def test_what_ci_leaves_out_is_there() -> None:
    """Each name in ``long.toml`` is that of a file, or of a class or a function of its file."""
    table = tomllib.loads((ROOT / "tests" / "long.toml").read_text())
    names = [*table["whole"], *table["sampled"]]
    missing = []
    for name in names:
        path, _, inner = name.partition("::")
        last = inner.rpartition("::")[2]
        if not re.search(rf"\b(def|class) {last}\b", (ROOT / path).read_text()):
            missing.append(name)
    assert missing == []
