"""The examples of README and docs: each runs, or says beside it why it cannot.

A comment above a fenced block, ``<!-- not run: WHY -->``, is the one way to have it left out; the files and the parts of
studies that it names must be there nevertheless. A Python block that begins with the name of a file is that file. Scenarios
are run with two rounds, studies with one strategy, and one picture is drawn.
"""

import pkgutil
import re
import shlex
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import tomli_w
from click.testing import CliRunner

import fedsim
from fedsim.analysis.__main__ import main as draw
from fedsim.cli import main, study_command
from fedsim.study.plan import read_study
from fedsim.tables import read_toml

ROOT = Path(__file__).resolve().parents[1]
PAGES = [ROOT / "README.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = PAGES[0].read_text()

SET_UP = (["python3", "-m", "venv"], [".venv/bin/python", "-m", "pip"], [".venv/bin/python", "-m", "pytest"])
"""How commands begin that CI itself calls before the tests, or to run them."""


class Block(NamedTuple):
    """A fenced block: where it stands, the comment above it, its language, and what it says."""

    place: str
    comment: str
    language: str
    text: str

    @property
    def runs(self) -> bool:
        return not self.comment.startswith("not run: ")


def blocks() -> Iterator[Block]:
    for page in PAGES:
        text = page.read_text()
        for found in re.finditer(r"^(?:<!-- (.*) -->\n)?```(.*)\n((?:.*\n)*?)```$", text, re.MULTILINE):
            line = text.count("\n", 0, found.start(3))
            yield Block(f"{page.name}:{line}", found[1] or "", found[2], found[3])


BLOCKS = list(blocks())


def of(*languages: str, runs: bool = True) -> Any:
    """The blocks in one of these languages, as the parameter ``block``."""
    chosen = [block for block in BLOCKS if block.language in languages and block.runs is runs]
    return pytest.mark.parametrize("block", chosen, ids=[block.place for block in chosen])


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, as words."""
    for line in block.text.splitlines():
        for part in line.split("&&"):
            if words := shlex.split(part, comments=True):
                yield words


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory: small copies of the scenarios, none of whose runs takes a second."""
    for path in [*(ROOT / "scenarios").glob("*.toml"), *(ROOT / "scenarios").glob("*/communication*.toml")]:
        tables = read_toml(path, "scenario")
        if "variants" in tables:
            tables |= {"variants": {"fedavg": tables["variants"]["fedavg"]}, "seeds": [1], "references": []}
        elif "rounds" in tables["stop"]:
            tables["stop"] |= {"rounds": 2}
        copy = tmp_path / path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(tomli_w.dumps(tables))
    shutil.copytree(ROOT / "scenarios" / "validation" / "logs", tmp_path / "scenarios" / "validation" / "logs")
    for block in BLOCKS:
        if named := re.match(r"# (\w+\.py)\n", block.text):
            (tmp_path / named[1]).write_text(block.text)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_no_block_is_left_out() -> None:
    fences = sum(len(re.findall(r"^\s*(?:```|~~~)", page.read_text(), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(BLOCKS)
    assert {block.language for block in BLOCKS} <= {"sh", "python", "toml"}
    assert sum(not block.runs for block in BLOCKS) <= 6


def test_commands_run_one_after_another(place: Path) -> None:
    for block in BLOCKS:
        if block.language != "sh" or not block.runs:
            continue
        for words in commands(block):
            if words[:3] in SET_UP:
                continue
            if words[:3] == [".venv/bin/python", "-m", "analysis"]:
                result = CliRunner().invoke(draw, [*words[3:], "--only", "accuracy"])
            else:
                assert words[0] == ".venv/bin/fedsim", f"{block.place}: what is {words}?"
                result = CliRunner().invoke(main, words[1:])
            assert result.exit_code == 0, f"{block.place}: {words}: {result.output}"


@of("sh", runs=False)
def test_what_is_not_run_names_what_there_is(block: Block) -> None:
    for words in commands(block):
        for word in words:
            assert not word.startswith("scenarios/") or (ROOT / word).is_file(), f"{block.place}: {word}"
        if "study" in words:
            told = study_command.make_context("study", words[words.index("study") + 1 :]).params
            assert read_study(told["study"], seeds=told["seeds"]).only(told["only"])


@of("python")
def test_python_runs(block: Block, place: Path, capsys: pytest.CaptureFixture[str]) -> None:
    exec(compile(block.text, block.place, "exec"), {"__name__": "__main__"})
    if "print" in block.text:
        assert re.search(r"\d\.\d", capsys.readouterr().out)


@of("toml")
def test_tables_run(block: Block, place: Path) -> None:
    devices = range(fedsim.Scenario(**tomllib.loads(block.text)).population.devices)
    tables = {  # those of the user's own that the blocks name
        "devices.csv": ["speed,zone,rtt", *(f"{100 + device},Europe/Berlin,20" for device in devices)],
        "on.csv": ["device,start,end", *(f"{device},0 s,1 week" for device in devices)],
        "grid.csv": ["intensity", *(["300 g/kWh"] * 24)],
    }
    for name, lines in tables.items():
        (place / name).write_text("\n".join(lines))
    scenario = tomllib.loads((place / "scenarios/quickstart.toml").read_text()) | tomllib.loads(block.text)
    assert fedsim.run(fedsim.Scenario(**scenario)).summary["status"] == "done"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_files_verbs_and_names_that_it_names_are_there(page: Path) -> None:
    text = page.read_text()
    for path in re.findall(r"`((?:scenarios|fedsim|tests|analysis)/[\w/.]+\.(?:py|toml))`", text):
        assert (ROOT / path).exists(), path
    for module in re.findall(r"python -m (tests\.benchmarks\.\w+)", text):
        assert (ROOT / f"{module.replace('.', '/')}.py").exists(), module
    for name in re.findall(r"`(fedsim\.[\w.]+)", text):
        assert pkgutil.resolve_name(name), name
    for verb in re.findall(r"`fedsim ([a-z]+)", text):
        assert verb in main.commands, verb
