"""The examples of README and docs: a page is a story, and each of its blocks runs in turn, in an
empty folder, or says why not.

A comment above a fenced block, ``<!-- not run: WHY -->``, is the one way to have it left out; the
files and the parts of studies that it names must be there nevertheless. A block that begins with
the name of a file, as in ``# mine.py``, is it. Other TOML is what a scenario may say, and is run as
a change of the quickstart. What ships with fedsim is run with two rounds, studies of it with one
strategy and one seed, and one picture is drawn.
"""

import pkgutil
import re
import shlex
import shutil
import sys
import tomllib
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest
import tomli_w
from click.testing import CliRunner

import fedsim
from fedsim.analysis.__main__ import main as draw
from fedsim.cli import main
from fedsim.cli.studying import study_command
from fedsim.lab.study.plan import read_study
from fedsim.running import shipped
from fedsim.running.overrides import read_toml

ROOT = Path(__file__).resolve().parents[1]
GENERATED = ROOT / "docs" / "generated"
DOCS = [path for path in sorted((ROOT / "docs").rglob("*.md")) if GENERATED not in path.parents]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *DOCS]
HOUSE = [
    ROOT / name for name in ("CONTRIBUTING.md", "CHANGELOG.md", ".github/PULL_REQUEST_TEMPLATE.md")
]

SET_UP = (
    ["python3", "-m", "venv"],
    [".venv/bin/python", "-m", "pip"],
    [".venv/bin/python", "-m", "pytest"],
)
"""How commands begin that CI itself calls before the tests, or to run them."""


class Block(NamedTuple):
    page: Path
    line: int
    comment: str
    language: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page.name}:{self.line}"

    @property
    def runs(self) -> bool:
        return not self.comment.startswith("not run: ")

    @property
    def file(self) -> str | None:
        named = re.match(r"# ([\w-]+\.\w+)\n", self.text)
        return named and named[1]


def blocks(page: Path) -> list[Block]:
    text = page.read_text()
    found = re.finditer(r"^(?:<!-- (.*) -->\n)?```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE)
    read = [
        Block(page, text.count("\n", 0, one.start(3)), one[1] or "", one[2], one[3])
        for one in found
    ]
    assert len(re.findall(r"^\s*(?:```|~~~)", text, re.MULTILINE)) == 2 * len(read), (
        f"{page.name}: a block is not read"
    )
    return [block for block in read if not block.language.startswith("{")]


BLOCKS = {page: blocks(page) for page in PAGES}


def commands(block: Block) -> Iterator[list[str]]:
    for line in block.text.splitlines():
        for part in line.split("&&"):
            if words := shlex.split(part, comments=True):
                yield words


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ships with fedsim, small."""
    folder = tmp_path_factory.mktemp("clone") / "scenarios"
    for path in sorted((ROOT / "scenarios").rglob("*.toml")):
        copy = folder / path.relative_to(ROOT / "scenarios")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(tomli_w.dumps(small(read_toml(path, "scenario"))))
    shutil.copytree(ROOT / "scenarios" / "validation" / "logs", folder / "validation" / "logs")
    return folder


@pytest.fixture
def place(clone: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working directory; what ships is small there, by path as in a clone and by name."""
    folder = shutil.copytree(clone, tmp_path / "clone" / "scenarios")
    monkeypatch.setattr(shipped, "_FOLDER", folder)
    shipped.shipped.cache_clear()
    work = tmp_path / "work"
    work.mkdir()
    (work / "scenarios").symlink_to(folder)
    monkeypatch.chdir(work)
    search_path = [*sys.path]
    yield work
    shipped.shipped.cache_clear()
    sys.path[:] = search_path


def small(tables: dict[str, Any]) -> dict[str, Any]:
    if "fedavg" in tables.get("variants", {}):
        return tables | {
            "variants": {"fedavg": tables["variants"]["fedavg"]},
            "seeds": [1],
            "references": [],
        }
    if "rounds" in tables.get("stop", {}):
        tables["stop"] |= {"rounds": 2}
    return tables


DONE: dict[tuple[str, ...], Path] = {}
"""Studies and reports whose command several pages have, with the same files: each is made once, and
where a study lies. The key is the command, and the texts of the files that it names.
"""
FEW = ("--workers", "1", "--seeds", "1")  # for every study


def carry_out(words: list[str], place: str) -> None:
    if words[:3] in SET_UP:
        return
    if (
        words[0] in ("python", ".venv/bin/python")
        and words[1] == "-m"
        and words[2].endswith("analysis")
    ):
        result = CliRunner().invoke(draw, [*words[3:], "--only", "accuracy"])
        assert result.exit_code == 0, f"{place}: {words}: {result.output}"
        return
    assert words[0] in ("fedsim", ".venv/bin/fedsim"), f"{place}: what is {words}?"
    words, may_fail, output = _redirected(words)
    said = (*words[1:],)
    out = Path(said[said.index("--out") + 1]) if "--out" in said else Path()
    made = (*said, *_texts_of(said))
    if made in DONE:
        if said[0] == "study":
            shutil.copytree(DONE[made], out)
        return
    result = CliRunner().invoke(main, [*said, *FEW] if said[0] == "study" else said)
    assert result.exit_code == 0 or may_fail, f"{place}: {words}: {result.output}"
    if output is not None:
        output.write_text(result.stdout)
    if said[0] in ("study", "report") and "--dry-run" not in said:
        DONE[made] = out.absolute()


def _texts_of(words: Sequence[str]) -> list[str]:
    """Texts of the page's own files that a command names, and of those that these files name."""
    files = [path for path in sorted(Path().glob("*.toml")) if path.name in words]
    texts = [path.read_text() for path in files]
    bases = [path for path in sorted(Path().glob("*.toml")) if path.name in "".join(texts)]
    return [*texts, *(path.read_text() for path in bases)]


def _redirected(words: list[str]) -> tuple[list[str], bool, Path | None]:
    """A command without its ``|| true`` and ``> FILE``, whether it may fail, and the file."""
    may_fail = words[-2:] == ["||", "true"]
    if may_fail:
        words = words[:-2]
    if ">" not in words:
        return words, may_fail, None
    at = words.index(">")
    return words[:at], may_fail, Path(words[at + 1])


def run_as_change(block: Block) -> None:
    said = tomllib.loads(block.text)
    devices = range(fedsim.Scenario(**said).population.devices)
    tables = {  # those of the user's own that the blocks name
        "devices.csv": [
            "speed,zone,rtt",
            *(f"{100 + device},Europe/Berlin,20" for device in devices),
        ],
        "on.csv": ["device,start,end", *(f"{device},0 s,1 week" for device in devices)],
        "grid.csv": ["intensity", *(["300 g/kWh"] * 24)],
        "server.csv": ["time,rate", "0,1", "60,0.5", "120,1"],
        "ping.csv": ["time,latency", "0,20", "60,50", "120,20"],
        "loss.csv": ["time,loss", "0,0", "60,1", "120,0"],
    }
    for name, lines in tables.items():
        Path(name).write_text("\n".join(lines))
    assert (
        fedsim.run(fedsim.Scenario(**read_toml("scenarios/quickstart.toml", "") | said)).summary[
            "status"
        ]
        == "done"
    )


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_is_a_story(
    page: Path,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    request: pytest.FixtureRequest,
) -> None:
    if any('"traces/' in block.text for block in BLOCKS[page] if block.runs):
        monkeypatch.setenv("FEDSIM_DATA", str(request.getfixturevalue("data_folder")))
    monkeypatch.syspath_prepend(Path.cwd())  # where the page's script lies, which Python searches
    files = [block for block in BLOCKS[page] if block.file]
    for block in files:
        assert block.file
        Path(block.file).write_text(block.text)
    said: dict[str, Any] = {"__name__": "__main__"}
    for block in BLOCKS[page]:
        if not block.runs or block in files:
            continue
        if block.language == "sh":
            for words in commands(block):
                carry_out(words, block.place)
        elif block.language == "python":
            capsys.readouterr()
            exec(compile(block.text, block.place, "exec"), said)
            assert "print" not in block.text or re.search(r"\d", capsys.readouterr().out), (
                block.place
            )
        elif block.language == "toml":
            run_as_change(block)


def test_few_blocks_are_left_out() -> None:
    known = [block for page in PAGES for block in BLOCKS[page]]
    assert {block.language for block in known} <= {"sh", "python", "toml", "text"}
    assert sum(not block.runs for block in known) <= 12


@pytest.mark.parametrize(
    "block",
    [b for p in PAGES for b in BLOCKS[p] if not b.runs and b.language == "sh"],
    ids=lambda block: block.place,
)
def test_what_is_not_run_names_what_there_is(block: Block) -> None:
    for words in commands(block):
        for word in words:
            assert not word.startswith("scenarios/") or (ROOT / word).is_file(), (
                f"{block.place}: {word}"
            )
        if "study" in words and "merge" not in words:
            told = study_command.make_context("study", words[words.index("study") + 1 :]).params
            assert read_study(told["words"][0], seeds=told["seeds"]).only(told["only"])


@pytest.mark.parametrize("page", [*PAGES, *HOUSE], ids=lambda page: page.name)
def test_files_verbs_and_names_that_it_names_are_there(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(
        r"`((?:scenarios|fedsim|tests|analysis|docs)/[\w/.]+\.(?:py|toml|md))`", text
    ):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests\.[\w.]+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for name in re.findall(r"`(fedsim\.[\w.]+)", text):
        assert pkgutil.resolve_name(name), name
    for verb in re.findall(r"`fedsim ([a-z]+)", text):
        assert verb in main.commands, verb
    for link in re.findall(r"\]\(((?!http|#)[^)#\s]+)", text):
        there = (
            ROOT / "docs" / link[1:]
            if link.startswith("/")
            else (ROOT if page in HOUSE else page.parent) / link
        )
        assert there.exists() or GENERATED in there.parents, f"{page.name}: {link}"


def verbs(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for name, verb in group.commands.items():
        if isinstance(verb, click.Group):
            yield from verbs(verb, (*path, name))
        else:
            yield (*path, name)


VERBS = [*verbs(main)]
PARSED_ONLY = {"bench", "calibrate", "mlflow", "rehearse", "tensorboard", "wandb"}
"""Verbs whose example needs a file of the user's, a package that is not installed, or minutes."""


def verb_at(path: tuple[str, ...]) -> click.Command:
    verb: click.Command = main
    for name in path:
        assert isinstance(verb, click.Group)
        verb = verb.commands[name]
    return verb


def example_of(path: tuple[str, ...]) -> list[str]:
    label, _, command = (verb_at(path).epilog or "").partition(": ")
    words = shlex.split(command)
    assert (label, *words[: len(path) + 1]) == ("Example", "fedsim", *path)
    return words[len(path) + 1 :]


@pytest.mark.parametrize("path", VERBS, ids=" ".join)
def test_help_has_an_example_that_parses_and_a_sentence_for_each_option(
    path: tuple[str, ...],
) -> None:
    verb = verb_at(path)
    words = example_of(path)
    if ">" in words:
        words = words[: words.index(">")]
    verb.make_context(" ".join(path), words)
    for option in verb.params:
        if isinstance(option, click.Option) and option.name != "help":
            text = option.help or ""
            assert re.match(r"[A-Z].*[.)]$", text, re.DOTALL), f"{option.name}: {text}"
            assert not re.match(r"(Of|That|With|Without) ", text), f"{option.name}: {text}"


def test_examples_of_help_run_one_after_another(place: Path) -> None:
    for words in (["run", "quickstart", "--out", "runs/second"], ["init", "quickstart", "."]):
        carry_out(["fedsim", *words], "help")
    first = [("run",), ("new",), ("study",)]
    for path in [*first, *(path for path in VERBS if path not in first)]:
        if path[0] not in PARSED_ONLY:
            carry_out(["fedsim", *path, *example_of(path)], f"help of {' '.join(path)}")
    assert (place / "runs" / "first.report.html").is_file()
    assert (place / "runs" / "first-figures" / "straggling.pdf").is_file()
    assert (place / "scenario.json").is_file()
    assert (place / "mine" / "quickstart.toml").is_file()
