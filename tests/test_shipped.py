"""What comes with fedsim, by name; and the package itself, away from the checkout."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import fedsim
from fedsim.lab.study.plan import read_study
from fedsim.shipped import copy, shipped
from tests.calls import call

ROOT = Path(__file__).resolve().parents[1]


def test_a_name_means_the_file_that_comes_with_fedsim(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert fedsim.load("quickstart") == fedsim.load(ROOT / "scenarios/quickstart.toml")
    assert read_study("communication").spec.name == "bytes to accuracy"
    (tmp_path / "quickstart").write_text("seed = 7\n")  # what is here comes first
    assert fedsim.load("quickstart").seed == 7


@pytest.mark.parametrize("name", shipped())
def test_a_copy_needs_nothing_else(name: str, tmp_path: Path) -> None:
    paths = copy(name, tmp_path / "new")
    assert sorted(paths) == sorted(path for path in (tmp_path / "new").rglob("*") if path.is_file())
    text = paths[0].read_text()
    assert text == shipped()[name].read_text()
    read_study(paths[0], seeds=1) if "\n[variants" in text or "\nbase = " in text else fedsim.load(paths[0])


def test_init_overwrites_nothing(tmp_path: Path) -> None:
    words = ["init", "communication", str(tmp_path)]
    assert call(*words).output.count("written ") == 2
    (tmp_path / "communication.toml").unlink()
    (tmp_path / "communication_base.toml").write_text("mine")
    again = call(*words)
    assert (again.exit_code, [path.name for path in tmp_path.iterdir()]) == (2, ["communication_base.toml"])
    assert (tmp_path / "communication_base.toml").read_text() == "mine"
    assert "did you mean 'communication'" in call("init", "comunication", str(tmp_path)).output


@pytest.mark.wheel
def test_the_wheel_alone_runs_lists_and_reports(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("fedsim", "analysis", "scenarios"):
        shutil.copytree(ROOT / name, source / name, symlinks=True)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source / name)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "-q"]
    subprocess.run([*pip, "wheel", "--no-deps", "--no-build-isolation", "-w", tmp_path, source], check=True)
    wheel = next(tmp_path.glob("*.whl"))
    shutil.rmtree(source)
    subprocess.run([*pip, "install", "--no-deps", "--target", tmp_path / "site", wheel], check=True)

    def installed(*words: str) -> str:
        code = f"import fedsim.cli as cli; assert cli.__file__.startswith({str(tmp_path)!r}); cli.main()"
        place = {"cwd": tmp_path, "env": os.environ | {"PYTHONPATH": str(tmp_path / "site")}}
        done = subprocess.run([sys.executable, "-P", "-c", code, *words], capture_output=True, text=True, check=False, **place)
        assert done.returncode == 0, done.stderr
        return done.stdout

    installed("run", "quickstart", "--out", "run", "--set", "stop.rounds=2")
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["rounds"] == 2
    assert "quickstart" in installed("list", "scenarios")
    installed("init", "quickstart", "mine")
    assert (tmp_path / "mine" / "quickstart.toml").is_file()
    assert "fedavg" in installed("study", "communication", "--out", "study", "--dry-run")
    installed("report", "run")
    assert (tmp_path / "run.report.html").stat().st_size > 10_000
