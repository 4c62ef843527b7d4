"""Two hundred ways in which a stranger's file could run code without permission: none does, and
the same ways work with it.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import cache
from importlib import invalidate_caches
from pathlib import Path
from typing import Any, get_args

import pytest
import tomli_w

import fedsim
from fedsim.clock.executors import WorkerProcesses
from fedsim.common import imports
from fedsim.common.errors import FedsimError
from fedsim.common.imports import code_from_file, import_class
from fedsim.common.kind_field import KindField, specs_of
from fedsim.common.spec import Spec
from fedsim.plugin import Strategy
from fedsim.running.scenario import Scenario
from tests.calls import call

Sections = dict[str, Any]

_TRUSTED = "trusted"
_MARKS = (
    "from pathlib import Path\nwith Path({mark!r}).open('a') as file:\n    file.write(__name__ + "
    "'\\n')\n"
)
_FILES = [
    "theirs.py",
    "sub/__init__.py",
    "sub/theirs.py",
    "fedsim.py",
    "fedsim.x.py",
    "trusted.py",
    "trusted.evil.py",
]
_FILES += ["away/trusted.py", "space/evil.py", "flwr.py"]
# and what is executed where it is allowed: nothing of what is no import path
SPELLINGS: dict[str, list[str]] = {
    "theirs:Mine": ["theirs"],
    "./theirs.py:Mine": ["fedsim_file_theirs"],
    "theirs.py:Mine": ["fedsim_file_theirs"],
    "sub/../theirs.py:Mine": ["fedsim_file_theirs"],
    "sub/theirs.py:Mine": ["fedsim_file_theirs"],
    "sub.theirs:Mine": ["sub", "sub.theirs"],
    "{here}/theirs.py:Mine": ["fedsim_file_theirs"],
    "./fedsim.py:Mine": ["fedsim_file_fedsim"],
    "./fedsim.x.py:Mine": [],
    "fedsim.x.py:Mine": [],
    "trusted:Mine": ["trusted"],
    "./trusted.py:Mine": ["fedsim_file_trusted"],
    "trusted.evil.py:Mine": [],
    "away/trusted.py:Mine": ["fedsim_file_trusted"],
    "space.evil:Mine": ["space.evil"],
    "fedsim.flower.server_side:Mine": [],  # a flwr.py is not taken for Flower
}


@cache
def places() -> dict[str, tuple[Any, ...]]:
    """Every key of a scenario that takes an import path, and the kinds of the tables around it."""
    found = {".".join(key for key, _ in place): place for place in reversed([*_places(Scenario)])}
    return found | {
        "model.factory": (("model", "module"), ("factory", "path")),
        "strategy.app": (("strategy", "flower"), ("app", "path")),
    }


def _places(
    spec: type[Spec], at: tuple[Any, ...] = (), seen: tuple[type[Spec], ...] = ()
) -> Iterator[tuple[Any, ...]]:
    for key, field in spec.model_fields.items() if spec not in seen else ():
        if any(note.registry.base for note in _notes(field.annotation, field.metadata)):
            yield (*at, (key, "parts" if str(field.annotation).startswith("list") else "part"))
        for kind, inner in specs_of(field).items():
            yield from _places(inner, (*at, (key, kind)), (*seen, spec))


def _notes(annotation: Any, notes: Any) -> Iterator[Any]:
    yield from (note for note in notes if isinstance(note, KindField))
    for part in get_args(annotation):
        yield from _notes(part, getattr(part, "__metadata__", ()))


def sections(place: str, path: str) -> Sections:
    """A scenario with a path at a place."""
    *tables, (key, how) = places()[place]
    value: Any = {key: {"kind": path} if how == "part" else [path] if how == "parts" else path}
    for table, kind in reversed(tables):
        value = {table: value | ({"kind": kind} if kind else {})}
    return dict(value)


def ways(here: Path) -> list[tuple[str, str]]:
    """Each place with each spelling."""
    return [(place, spelling.format(here=here)) for spelling in SPELLINGS for place in places()]


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once anything in the working directory was executed; Python searches
    that directory first.
    """
    here, mark = tmp_path / "here", tmp_path / "mark"
    for name in _FILES:
        (here / name).parent.mkdir(parents=True, exist_ok=True)
        (here / name).write_text(_MARKS.format(mark=str(mark)))
    monkeypatch.chdir(here)
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    monkeypatch.setenv("FEDSIM_ALLOW_CODE", f"{_TRUSTED},space")
    return mark


def forget(mark: Path) -> None:
    names = {Path(name).parts[0].partition(".")[0] for name in _FILES} - {"fedsim"}
    for name in [*sys.modules]:
        if name.partition(".")[0] in names or name.startswith(("fedsim_file_", "fedsim.flower")):
            del sys.modules[name]
    imports._finder.locations.clear()
    invalidate_caches()  # of the folders that Python has listed
    mark.unlink(missing_ok=True)


def write(name: str, tables: Mapping[str, Any]) -> str:
    Path(name).write_text(tomli_w.dumps(tables))
    return name


VERBS: dict[str, Any] = {
    "load": lambda said: fedsim.load("s.toml"),
    "run_study": lambda said: fedsim.run_study(
        {"base": {"stop": {"rounds": 1}}, "variants": {"a": said}}, "out"
    ),
    "load_run": lambda said: fedsim.load_run("run").scenario,
    "check": ("check", "s.toml", "--no-trial"),
    "run": ("run", "s.toml", "--out", "out"),
    "study": ("study", "study.toml", "--dry-run", "--out", "out"),
}


def refusal(verb: str, said: Sections) -> str:
    for name in ("s.toml", "run/scenario.toml"):
        write(name, said)
    write("study.toml", {"base": "s.toml", "variants": {"a": {}}})
    if isinstance(VERBS[verb], tuple):
        result = call(*VERBS[verb])
        assert result.exit_code == 2, result.output
        return result.output
    with pytest.raises(FedsimError) as refused:
        VERBS[verb](said)
    return str(refused.value)


@pytest.mark.parametrize("verb", VERBS)
def test_without_permission_nothing_is_executed(
    small: Sections, made: Callable[[Sections, Path], Path], mark: Path, verb: str
) -> None:
    made(small | {"learning": "off", "stop": {"rounds": 1}}, Path("run"))
    tried, before = ways(Path.cwd()), [*sys.path]
    assert len(tried) >= 200
    # all of them; by the other verbs every sixth
    for place, path in tried if verb == "load" else tried[:: len(VERBS)]:
        message = refusal(verb, sections(place, path))
        assert not mark.exists(), f"{verb}: {place} = {path} has executed {mark.read_text()}"
        assert "--allow-code" in message or "allowed is an import path" in message, (
            place,
            path,
            message,
        )
    assert sys.path == before


@pytest.mark.parametrize("spelling", [*SPELLINGS])
def test_with_permission_the_same_ways_lead_to_it(
    mark: Path, monkeypatch: pytest.MonkeyPatch, spelling: str
) -> None:
    # as for the command line, which finds what lies here all the same
    monkeypatch.setattr(sys, "path", sys.path[1:])
    before = [*sys.path]
    for place in places() if spelling == "./theirs.py:Mine" else ("strategy", "messages.up"):
        forget(mark)
        with code_from_file(True), suppress(FedsimError):  # there is no Mine in it
            read = Scenario(**sections(place, spelling.format(here=Path.cwd())))
            read.model.parameters((64,), 10)  # a factory is imported when it is needed
        executed = mark.read_text().split() if mark.exists() else []
        assert executed == (SPELLINGS[spelling] if place != "strategy.app" else []), place
    forget(mark)
    assert sys.path == before


def test_a_search_cannot_smuggle_code_in(mark: Path) -> None:
    search = {
        "trials": 2,
        "metric": "simulated-time",
        "batch": 2,
        "space": {"strategy.selection": ["random", "theirs:Mine"]},
    }
    study = {
        "base": {"learning": "off", "stop": {"rounds": 1}},
        "variants": {"a": {}},
        "search": search,
    }
    result = call("study", write("study.toml", study), "--out", "out")
    assert (result.exit_code, mark.exists()) == (2, False), result.output


def test_a_worker_knows_what_was_allowed_here_and_what_lies_beside_it(
    mark: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "path", sys.path[1:])
    Path("mine.py").write_text("import helper\n\n\nclass Mine:\n    there = helper.sign\n")
    Path("helper.py").write_text("def sign(x):\n    return __name__, -x\n")
    sign = imports.import_object("./mine.py:Mine", "strategy.kind").there
    processes = WorkerProcesses(1)
    try:
        assert processes.submit(sign, 2).result() == ("helper", -2)
    finally:
        processes.close()
    assert not mark.exists()
    with pytest.raises(ModuleNotFoundError):  # what is beside it is there for it alone
        __import__("away")


@pytest.mark.usefixtures("mark")
def test_numba_compiles_and_takes_no_settings_from_the_working_directory() -> None:
    Path(".numba_config.yaml").write_text('{"cache_dir": "caches"}')
    Path("yaml.py").write_text("from json import load as safe_load\n")  # what numba needs of it
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1"}
    code = (
        "import sys; sys.path.insert(0, ''); import yaml; del sys.path[0]\n"
        "import fedsim.learning.solvers.compiled as compiled; print([compiled._config.CACHE_DIR])\n"
        "from fedsim.learning.solvers.dense_loops import descend; print(hasattr(descend, "
        "'py_func'))"
    )
    done = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=environment,
    )
    assert done.stdout == "['']\nTrue\n", done.stderr


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
_STRATEGY: Sections = {"strategy": {"kind": "theirs:Mine", "clients_per_round": 2}}
_MODEL: Sections = {"model": {"kind": "module", "factory": "theirs:net"}}


@pytest.fixture
def marker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that is there once the module ``theirs`` has been imported; it can be imported from
    where the test runs.
    """
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "theirs.py").write_text(_MODULE.format(marker=str(tmp_path / "imported")))
    monkeypatch.syspath_prepend(tmp_path / "code")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    sys.modules.pop("theirs", None)
    return tmp_path / "imported"


def called(*words: str) -> tuple[int, str]:
    result = call(*words)
    return result.exit_code, result.output


def test_a_run_folder_grants_nothing(small: Sections, marker: Path) -> None:
    small |= _STRATEGY | {"learning": "off", "stop": {"rounds": 1}}
    # who writes it into a program has chosen it
    fedsim.run(fedsim.Scenario(**small), "run", executor="inline")
    marker.unlink()
    sys.modules.pop("theirs", None)
    Path("run/summary.json").write_text(
        Path("run/summary.json").read_text().replace('"done"', '"interrupted"')
    )

    status, output = called("run", "run/scenario.toml", "--out", "run", "--resume")
    assert (status, "--allow-code" in output) == (2, True)
    for words in (("audit",), ("compare",), ("trace",), ("report", "--out", "report.html")):
        assert called(words[0], "run", *words[1:])[0] in (0, 1), words
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
def test_a_user_allows_it(
    small: Sections, marker: Path, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    small |= _STRATEGY | _MODEL
    words = ["check", write("scenario.toml", small), "--no-trial"]
    status, output = called(*words)
    assert (status, marker.exists(), way in output) == (2, False, True)
    if way == "config.toml":
        configure()
    elif way == "FEDSIM_ALLOW_CODE":
        monkeypatch.setenv(way, "others, theirs")
    status, output = called(*words, *([way] if way == "--allow-code" else []))
    assert (status, marker.exists()) == (0, True), output


@pytest.mark.parametrize(
    "content", ["allow_code = ", 'allow_code = "theirs"', "allow_code = [3]", None]
)
def test_a_configuration_that_cannot_be_read_is_named_and_one_beside_a_scenario_is_nobodys(
    small: Sections, marker: Path, content: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    if content is None:
        configure()
        monkeypatch.setenv("XDG_CONFIG_HOME", "config")
        monkeypatch.setenv("HOME", str(marker.parent / "home"))
    else:
        configure(content)
    status, output = called("check", write("scenario.toml", small | _STRATEGY), "--no-trial")
    assert (status, "/fedsim/config.toml" in output, marker.exists()) == (2, True, False)


@pytest.mark.parametrize(
    "path", ["os:system", "subprocess:Popen", "subprocess:run", "fedsim.cli:say", "torch:load"]
)
def test_what_is_no_module_is_never_called(small: Sections, marker: Path, path: str) -> None:
    arguments = (
        {"command": f"touch {marker}"} if path == "os:system" else {"args": ["touch", str(marker)]}
    )
    small["model"] = {"kind": "module", "factory": path, "args": arguments}
    status, output = called("check", write("scenario.toml", small), "--no-trial", "--allow-code")
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
        import_class(path, "strategy.kind", Strategy, "fedsim.plugin.Strategy")
    assert repr(path) in str(refusal.value)


def test_leave_reaches_the_workers_of_a_study_and_the_working_directory(
    small: Sections, marker: Path
) -> None:
    small |= _STRATEGY | {"learning": "off", "stop": {"rounds": 1}}
    write("study.toml", {"base": small, "variants": {"a": {}}})
    # -P: no working directory, as in the script
    command = [sys.executable, "-P", "-c", "from fedsim.cli import main; main()"]
    words = ["study", "../study.toml", "--out", "../out", "--workers", "1", "--allow-code"]
    environment = {key: value for key, value in os.environ.items() if key != "FEDSIM_ALLOW_CODE"}
    for name in (
        "tomllib",
        "json",
        "numpy",
        "asyncio",
        "fedsim",
        "multiprocessing",
        "sitecustomize",
    ):
        Path("code", f"{name}.py").write_text(
            "raise SystemExit('what lies here stands in for nothing that is installed')"
        )
    done = subprocess.run(
        [*command, *words], cwd="code", capture_output=True, text=True, check=False, env=environment
    )
    assert (done.returncode, marker.exists()) == (0, True), done.stderr
    assert fedsim.load_study("out").run("a").summary["strategy"] == "theirs:Mine"


def test_an_installed_package_registers_a_kind_and_what_lies_in_the_working_directory_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = (
        "from fedsim.plugin import Codec\n\n\nclass Halves(Codec):\n    'Half of the numbers.'\n   "
        " kind: str = 'halves'\n"
    )
    for place in ("installed", "here"):
        (tmp_path / place / "halves-1.dist-info").mkdir(parents=True)
        (tmp_path / place / "halves-1.dist-info" / "METADATA").write_text(
            "Metadata-Version: 2.1\nName: halves\nVersion: 1\n"
        )
        points = f"[fedsim.codec]\n{place} = {place}_codec:Halves\n"
        (tmp_path / place / "halves-1.dist-info" / "entry_points.txt").write_text(points)
        (tmp_path / place / f"{place}_codec.py").write_text(source)
    code = (
        "import sys; sys.path[:0] = ['', '../installed']; sys.path[1] = "
        "__import__('os').path.abspath(sys.path[1])\n"
        "import fedsim; from fedsim.lab.catalogue import about, catalogue\n"
        "from fedsim.common.imports import code_from_file\n"
        "print(*(name for name, _ in catalogue()['codecs'])); print(about('installed')[0])\n"
        "with code_from_file(False): print(fedsim.Scenario(messages={'up': "
        "'installed'}).messages.up.kind)\n"
        "print([name for name in sys.modules if name == 'here_codec'])"
    )
    monkeypatch.chdir(tmp_path / "here")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    names, said, kind, imported = done.stdout.splitlines() or [done.stderr] * 4
    assert ("installed" in names.split(), "here" in names.split()) == (True, False), names
    assert (said, kind, imported) == (
        "installed, one of the codecs: Half of the numbers.",
        "installed",
        "[]",
    )
