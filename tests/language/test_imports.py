"""Code named by its import path: nothing that a file names is imported unless its user has allowed it."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import tomli_w
from click.testing import CliRunner

import fedsim
from fedsim.cli import main
from fedsim.language.imports import find
from fedsim.plugin import Strategy

Sections = dict[str, Any]

_MODULE = """
from pathlib import Path

from torch import nn

from fedsim.strategies.fedavg import FedAvg

Path({marker!r}).touch()


class Mine(FedAvg):
    "FedAvg by another name."


def net() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))
"""
_OWN: dict[str, Sections] = {
    "strategy.kind is 'theirs:Mine'": {"strategy": {"kind": "theirs:Mine", "clients_per_round": 2}},
    "model.factory is 'theirs:net'": {"model": {"kind": "module", "factory": "theirs:net"}},
}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module ``theirs`` has been imported; it can be imported from where the test runs."""
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "theirs.py").write_text(_MODULE.format(marker=str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    _forget(tmp_path / "imported")
    return tmp_path / "imported"


def _forget(marker: Path) -> None:
    sys.modules.pop("theirs", None)
    marker.unlink(missing_ok=True)


def call(*words: str) -> tuple[int, str]:
    result = CliRunner().invoke(main, words)
    return result.exit_code, result.output


def write(name: str, tables: Sections) -> str:
    Path(name).write_text(tomli_w.dumps(tables))
    return name


def test_a_run_folder_grants_nothing(small: Sections, marker: Path) -> None:
    small |= _OWN["strategy.kind is 'theirs:Mine'"] | {"learning": "off", "stop": {"rounds": 1}}
    fedsim.run(fedsim.Scenario(**small), "run", executor="inline")  # who writes it into a program has chosen it
    assert marker.exists()
    _forget(marker)
    Path("run/summary.json").write_text(Path("run/summary.json").read_text().replace('"done"', '"interrupted"'))

    status, output = call("run", "run/scenario.toml", "--out", "run", "--resume")
    assert (status, "--allow-code" in output) == (2, True)
    for words in (("audit",), ("compare",), ("trace",), ("report", "--out", "report.html")):
        assert call(words[0], "run", *words[1:])[0] in (0, 1), words
    run = fedsim.load_run("run")
    assert len(run.rounds) == 1
    assert run.sections["strategy"]["kind"] == "theirs:Mine"
    with pytest.raises(fedsim.RunFolderError, match=r"'theirs:\w+'.*allow_code=True.*\.sections"):
        run.scenario  # noqa: B018
    assert not marker.exists()
    assert fedsim.load_run("run", allow_code=True).scenario.strategy.kind == "theirs:Mine"
    assert marker.exists()


def configure(content: str = 'allow_code = ["theirs"]') -> None:
    Path("config/fedsim").mkdir(parents=True)
    Path("config/fedsim/config.toml").write_text(content)


@pytest.mark.parametrize("way", ["--allow-code", "FEDSIM_ALLOW_CODE", "config.toml"])
def test_a_user_allows_it(small: Sections, marker: Path, monkeypatch: pytest.MonkeyPatch, way: str) -> None:
    small |= _OWN["strategy.kind is 'theirs:Mine'"] | _OWN["model.factory is 'theirs:net'"]
    words = ["check", write("scenario.toml", small), "--no-trial"]
    status, output = call(*words)
    assert (status, marker.exists(), way in output) == (2, False, True)
    if way == "config.toml":
        configure()
    elif way == "FEDSIM_ALLOW_CODE":
        monkeypatch.setenv(way, "others, theirs")
    status, output = call(*words, *([way] if way == "--allow-code" else []))
    assert (status, marker.exists()) == (0, True), output


@pytest.mark.parametrize("content", ["allow_code = ", 'allow_code = "theirs"', "allow_code = [3]"])
def test_a_configuration_that_cannot_be_read_is_named(small: Sections, marker: Path, content: str) -> None:
    configure(content)
    status, output = call("check", write("scenario.toml", small | _OWN["strategy.kind is 'theirs:Mine'"]), "--no-trial")
    assert (status, "config/fedsim/config.toml" in output, marker.exists()) == (2, True, False)


def test_a_configuration_beside_a_scenario_is_nobodys(small: Sections, marker: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    configure()
    monkeypatch.setenv("XDG_CONFIG_HOME", "config")
    monkeypatch.setenv("HOME", str(marker.parent / "home"))
    scenario = write("scenario.toml", small | _OWN["strategy.kind is 'theirs:Mine'"])
    assert (call("check", scenario, "--no-trial")[0], marker.exists()) == (2, False)


@pytest.mark.parametrize("path", ["os:system", "subprocess:Popen", "subprocess:run", "fedsim.cli:say", "torch:load"])
def test_what_is_no_module_is_never_called(small: Sections, marker: Path, path: str) -> None:
    arguments = {"command": f"touch {marker}"} if path == "os:system" else {"args": ["touch", str(marker)]}
    small["model"] = {"kind": "module", "factory": path, "args": arguments}
    status, output = call("check", write("scenario.toml", small), "--no-trial", "--allow-code")
    assert (status, "torch.nn.Module" in output, marker.exists()) == (2, True, False), output


@pytest.mark.parametrize(
    ("path", "says"),
    [
        ("theirs", "package.module:Name"),
        (":Mine", "package.module:Name"),
        (".theirs:Mine", "package.module:Name"),
        ("the\x00irs:Mine", "package.module:Name"),
        ("./nowhere/theirs.py:Mine", "there is no file 'nowhere/theirs.py'"),
        ("theirs:Min", "did you mean 'Mine'"),
        ("nowhere:Mine", "cannot be imported: No module named 'nowhere'"),
        ("theirs:net", "which is a function; it must be a subclass of fedsim.plugin.Strategy"),
        ("broken:Mine", "cannot be imported: SystemExit: 3"),
    ],
)
def test_what_cannot_be_found(marker: Path, path: str, says: str) -> None:
    Path("code/broken.py").write_text("raise SystemExit(3)")
    with pytest.raises(fedsim.ScenarioError, match=says) as refusal:
        find(path, "strategy.kind", Strategy, "fedsim.plugin.Strategy")
    assert repr(path) in str(refusal.value)


def test_leave_reaches_the_workers_of_a_study_and_the_working_directory(small: Sections, marker: Path) -> None:
    small |= _OWN["strategy.kind is 'theirs:Mine'"] | {"learning": "off", "stop": {"rounds": 1}}
    write("study.toml", {"base": small, "variants": {"a": {}}})
    command = [sys.executable, "-P", "-c", "from fedsim.cli import main; main()"]  # -P: no working directory, as in the script
    words = ["study", "../study.toml", "--out", "../out", "--workers", "1", "--allow-code"]
    environment = {key: value for key, value in os.environ.items() if key != "FEDSIM_ALLOW_CODE"}
    for name in ("tomllib", "json", "numpy", "asyncio", "fedsim", "multiprocessing", "sitecustomize"):
        Path("code", f"{name}.py").write_text("raise SystemExit('what lies here stands in for nothing that is installed')")
    done = subprocess.run([*command, *words], cwd="code", capture_output=True, text=True, check=False, env=environment)
    assert (done.returncode, marker.exists()) == (0, True), done.stderr
    assert fedsim.load_study("out").run("a").summary["strategy"] == "theirs:Mine"


def test_an_installed_package_registers_a_kind_and_what_lies_in_the_working_directory_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = "from fedsim.plugin import Codec\n\n\nclass Halves(Codec):\n    'Half of the numbers.'\n    kind: str = 'halves'\n"
    for place in ("installed", "here"):
        (tmp_path / place / "halves-1.dist-info").mkdir(parents=True)
        (tmp_path / place / "halves-1.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: halves\nVersion: 1\n")
        points = f"[fedsim.codec]\n{place} = {place}_codec:Halves\n"
        (tmp_path / place / "halves-1.dist-info" / "entry_points.txt").write_text(points)
        (tmp_path / place / f"{place}_codec.py").write_text(source)
    code = (
        "import sys; sys.path[:0] = ['', '../installed']; sys.path[1] = __import__('os').path.abspath(sys.path[1])\n"
        "import fedsim; from fedsim.lab.catalogue import about, catalogue\n"
        "from fedsim.language.imports import from_file\n"
        "print(*(name for name, _ in catalogue()['codecs'])); print(about('installed')[0])\n"
        "with from_file(False): print(fedsim.Scenario(messages={'up': 'installed'}).messages.up.kind)\n"
        "print([name for name in sys.modules if name == 'here_codec'])"
    )
    monkeypatch.chdir(tmp_path / "here")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    names, said, kind, imported = done.stdout.splitlines() or [done.stderr] * 4
    assert ("installed" in names.split(), "here" in names.split()) == (True, False), names
    assert (said, kind, imported) == ("installed, one of the codecs: Half of the numbers.", "installed", "[]")
