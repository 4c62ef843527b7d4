"""Two hundred ways in which a stranger's file could run code without permission: none does, and the same ways work with it."""

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
from fedsim.errors import FedsimError
from fedsim.executors.processes import WorkerProcesses
from fedsim.language import imports
from fedsim.language.imports import from_file
from fedsim.language.registry import Registry, specs_of
from fedsim.language.spec import Spec
from fedsim.scenario import Scenario
from tests.calls import call

Sections = dict[str, Any]

_TRUSTED = "trusted"
_MARKS = "from pathlib import Path\nwith Path({mark!r}).open('a') as file:\n    file.write(__name__ + '\\n')\n"
_FILES = ["theirs.py", "sub/__init__.py", "sub/theirs.py", "fedsim.py", "fedsim.x.py", "trusted.py", "trusted.evil.py"]
_FILES += ["away/trusted.py", "space/evil.py", "flwr.py"]
SPELLINGS: dict[str, list[str]] = {  # and what is executed where it is allowed: nothing of what is no import path
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


def _places(spec: type[Spec], at: tuple[Any, ...] = (), seen: tuple[type[Spec], ...] = ()) -> Iterator[tuple[Any, ...]]:
    for key, field in spec.model_fields.items() if spec not in seen else ():
        if any(note.base for note in _notes(field.annotation, field.metadata)):
            yield (*at, (key, "parts" if str(field.annotation).startswith("list") else "part"))
        for kind, inner in specs_of(field).items():
            yield from _places(inner, (*at, (key, kind)), (*seen, spec))


def _notes(annotation: Any, notes: Any) -> Iterator[Any]:
    yield from (note for note in notes if isinstance(note, Registry))
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
    """A file that is there once anything in the working directory was executed; Python searches that directory first."""
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
    imports._places.of.clear()
    invalidate_caches()  # of the folders that Python has listed
    mark.unlink(missing_ok=True)


def write(name: str, tables: Mapping[str, Any]) -> str:
    Path(name).write_text(tomli_w.dumps(tables))
    return name


def by_load(said: Sections) -> str:
    with pytest.raises(FedsimError) as refused:
        fedsim.load(write("s.toml", said))
    return str(refused.value)


def by_study(said: Sections) -> str:
    with pytest.raises(FedsimError) as refused:
        fedsim.run_study({"base": {"stop": {"rounds": 1}}, "variants": {"a": said}}, "out")
    return str(refused.value)


def by_load_run(said: Sections) -> str:
    write("run/scenario.toml", said)
    with pytest.raises(FedsimError) as refused:
        fedsim.load_run("run").scenario  # noqa: B018
    return str(refused.value)


def by_verb(*words: str) -> Any:
    def way(said: Sections) -> str:
        write("s.toml", said)
        write("study.toml", {"base": "s.toml", "variants": {"a": {}}})
        result = call(*words)
        assert result.exit_code == 2, result.output
        return result.output

    return way


VERBS = {
    "load": by_load,
    "run_study": by_study,
    "load_run": by_load_run,
    "check": by_verb("check", "s.toml", "--no-trial"),
    "run": by_verb("run", "s.toml", "--out", "out"),
    "study": by_verb("study", "study.toml", "--dry-run", "--out", "out"),
}


@pytest.mark.parametrize("verb", VERBS)
def test_without_permission_nothing_is_executed(
    small: Sections, made: Callable[[Sections, Path], Path], mark: Path, verb: str
) -> None:
    made(small | {"learning": "off", "stop": {"rounds": 1}}, Path("run"))
    tried, before = ways(Path.cwd()), [*sys.path]
    assert len(tried) >= 200
    for place, path in tried if verb == "load" else tried[:: len(VERBS)]:  # all of them; by the other verbs every sixth
        message = VERBS[verb](sections(place, path))
        assert not mark.exists(), f"{verb}: {place} = {path} has executed {mark.read_text()}"
        assert "--allow-code" in message or "allowed is an import path" in message, (place, path, message)
    assert sys.path == before


@pytest.mark.parametrize("spelling", [*SPELLINGS])
def test_with_permission_the_same_ways_lead_to_it(mark: Path, monkeypatch: pytest.MonkeyPatch, spelling: str) -> None:
    monkeypatch.setattr(sys, "path", sys.path[1:])  # as for the command line, which finds what lies here all the same
    before = [*sys.path]
    for place in places() if spelling == "./theirs.py:Mine" else ("strategy", "messages.up"):
        forget(mark)
        with from_file(True), suppress(FedsimError):  # there is no Mine in it
            read = Scenario(**sections(place, spelling.format(here=Path.cwd())))
            read.model.parameters((64,), 10)  # a factory is imported when it is needed
        executed = mark.read_text().split() if mark.exists() else []
        assert executed == (SPELLINGS[spelling] if place != "strategy.app" else []), place
    forget(mark)
    assert sys.path == before


def test_a_search_cannot_smuggle_code_in(mark: Path) -> None:
    search = {"trials": 2, "metric": "simulated-time", "batch": 2, "space": {"strategy.selection": ["random", "theirs:Mine"]}}
    study = {"base": {"learning": "off", "stop": {"rounds": 1}}, "variants": {"a": {}}, "search": search}
    result = call("study", write("study.toml", study), "--out", "out")
    assert (result.exit_code, mark.exists()) == (2, False), result.output


def test_a_worker_knows_what_was_allowed_here_and_what_lies_beside_it(mark: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", sys.path[1:])
    Path("mine.py").write_text("import helper\n\n\nclass Mine:\n    there = helper.sign\n")
    Path("helper.py").write_text("def sign(x):\n    return __name__, -x\n")
    sign = imports.named("./mine.py:Mine", "strategy.kind").there
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
        "from fedsim.learning.solvers.dense_loops import descend; print(hasattr(descend, 'py_func'))"
    )
    done = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True, check=False, env=environment)
    assert done.stdout == "['']\nTrue\n", done.stderr
