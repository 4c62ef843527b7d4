"""Parts of a user's own, by import path, are as good as built-in ones."""

import json
import os
import random
import re
import subprocess
import sys
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, ClassVar

import pytest
import tomli_w
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.running.runner import make_executor
from fedsim.testing import StrategyContract, eventful_world, run
from tests import own_parts
from tests.benchmarks.kills import kill

OWN: dict[str, Any] = {
    "kind": "tests.own_parts:Proud",
    "clients_per_round": 5,
    "local_epochs": 2,
    "deadline": "30 s",
    "boldness": 0.1,
    "selection": {"kind": "tests.own_parts:Slowest", "patience": 3.0},
}
SECTIONS: dict[str, Any] = {
    "data": {"source": {"kind": "tests.own_parts:Rings", "classes": 3}, "partition": {"kind": "dirichlet", "alpha": 1.0}},
    "messages": {"up": "tests.own_parts:Half", "down": "tests.own_parts:Half"},
}
HERE = "tests.own_parts:"
EXECUTORS = [
    "threads",
    pytest.param("ray", marks=pytest.mark.skipif(find_spec("ray") is None, reason="needs Ray: pip install 'fedsim-des[ray]'")),
]


class TestOwnParts(StrategyContract):
    strategy: ClassVar[Mapping[str, Any]] = OWN
    sections: ClassVar[Mapping[str, Any]] = SECTIONS


@pytest.mark.parametrize("executor", EXECUTORS)
def test_executors_agree_and_bytes_are_the_codecs(executor: str) -> None:
    sections = eventful_world(OWN) | SECTIONS
    inline, other = run(sections), run(sections, executor=make_executor(executor, workers=2))
    for name in ("events_sha256", "models_sha256", "bytes"):
        assert inline[name] == other[name]
    assert inline["bytes"]["by_purpose"]["update"] % 1 == 0
    assert inline["bytes"]["by_purpose"]["times"] > 0


@pytest.mark.parametrize("executor", EXECUTORS)
def test_in_a_file_outside_of_any_package_killed_and_resumed_it_is_the_same_run(
    executor: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = "./mine.py:"
    (tmp_path / "mine.py").write_text(Path(own_parts.__file__).read_text().replace(HERE, there))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sections = eventful_world(OWN, rounds=40) | SECTIONS | {"checkpoint": {"time": "5 s"}}
    sections = json.loads(json.dumps(sections).replace(HERE, there))
    assert HERE not in str(sections)
    result = kill(sections, random.Random(1), tmp_path, "--executor", executor, "--workers", "2")
    assert result["same"], result
    of_one_thread = run(sections)
    summary = json.loads((tmp_path / "cut" / "summary.json").read_text())
    for name in ("events_sha256", "models_sha256"):
        assert summary[name] == of_one_thread[name]


def write(folder: Path, sections: Mapping[str, Any]) -> str:
    path = folder / "scenario.toml"
    path.write_text(tomli_w.dumps(dict(sections)))
    return str(path)


@pytest.mark.parametrize(
    ("section", "value"),
    [
        ("strategy", {"kind": "tests.own_parts:Proud"}),
        ("strategy", {"kind": "fedavg", "selection": "tests.own_parts:Slowest"}),
        ("messages", {"up": "tests.own_parts:Half"}),
        ("data", {"source": "tests.own_parts:Rings"}),
        ("population", {"availability": {"kind": "tests.own_parts:Never"}}),
    ],
)
def test_nothing_of_it_is_imported_from_a_file_without_leave(tmp_path: Path, section: str, value: Any) -> None:
    code = (
        "import sys, fedsim\n"
        f"try: fedsim.load({write(tmp_path, {section: value})!r})\n"
        "except fedsim.ScenarioError as error: print(error)\n"
        "print('tests.own_parts' in sys.modules)"
    )
    environment = {key: value for key, value in os.environ.items() if key != "FEDSIM_ALLOW_CODE"}
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment)
    told, imported = done.stdout.splitlines()
    assert imported == "False"
    assert section in told
    assert "--allow-code" in told
    assert fedsim.load(tmp_path / "scenario.toml", allow_code=True)


def test_a_file_in_the_working_directory_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "mymod_of_mine.py").write_text("from fedsim.plugin import FedAvg\n\n\nclass Mine(FedAvg):\n    pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sections = {
        "strategy": {"kind": "./mymod_of_mine.py:Mine", "clients_per_round": 2},
        "learning": "off",
        "stop": {"rounds": 1},
    }
    result = CliRunner().invoke(main, ["run", write(tmp_path, sections), "--out", "out", "--allow-code"])
    assert result.exit_code == 0, result.output
    assert json.loads(Path("out/summary.json").read_text())["strategy"] == "./mymod_of_mine.py:Mine"


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("Clumsy", r"AttributeError: 'Ref' object has no attribute 'no_such_thing', in own_parts.py, line \d+"),
        ("Mute", r"the content 'model' of a message is a dict; allowed are refs, Partial, numbers and Free"),
    ],
)
def test_a_mistake_in_it_is_named_with_its_place(tmp_path: Path, kind: str, says: str) -> None:
    sections = {"strategy": {"kind": f"tests.own_parts:{kind}"}, "stop": {"rounds": 3}}
    result = CliRunner().invoke(main, ["run", write(tmp_path, sections), "--out", str(tmp_path / "out"), "--allow-code"])
    assert result.exit_code == 1
    assert re.search(says, result.output), result.output
    assert "Traceback" not in result.output
