"""The public face: what it names, what it costs to import, and which way the arrows run."""

import ast
import subprocess
import sys
import tomllib
from functools import cache
from pathlib import Path

import networkx
import pytest

import fedsim
import fedsim.plugin
from tests.test_source import tree_of

PACKAGE = Path(fedsim.__file__).parent
HEAVY = {"torch", "numba", "sklearn", "pandas", "matplotlib", "ray"}


def test_the_face_holds_nothing_that_it_does_not_export() -> None:
    code = "import fedsim.plugin; print(*(name for name in dir(fedsim.plugin) if not name.startswith('_')))"
    assert sorted(python(code).split()) == sorted(fedsim.plugin.__all__)
    assert {name for names in fedsim._HOMES.values() for name in names} == set(fedsim.__all__)
    for face in (fedsim, fedsim.plugin):
        assert [name for name in face.__all__ if not getattr(face, name).__doc__] == []


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_the_package_is_the_command_line_and_importing_it_costs_little() -> None:
    done = subprocess.run([sys.executable, "-m", "fedsim", "--version"], capture_output=True, text=True, check=True)
    assert done.stdout == f"fedsim, version {fedsim.__version__}\n"
    count = python("import sys; before = len(sys.modules); import fedsim; print(len(sys.modules) - before)")
    assert int(count) < 300  # torch alone is a thousand


@pytest.mark.parametrize(
    ("do", "heavy"),
    [
        ("fedsim.Scenario()", HEAVY),
        ("fedsim.run(fedsim.load('quickstart', ['learning=off', 'stop.rounds=2']), 'run')", HEAVY | {"scipy", "networkx"}),
    ],
)
def test_what_is_not_needed_is_not_loaded(do: str, heavy: set[str], tmp_path: Path) -> None:
    modules = python(f"import os, sys; os.chdir({str(tmp_path)!r}); import fedsim; {do}; print(*sys.modules)")
    assert not heavy & set(modules.split())


def modules() -> dict[str, Path]:
    paths = {*PACKAGE.rglob("*.py"), *(PACKAGE / "analysis").rglob("*.py")}  # a link, which Python before 3.13 does not follow
    named = {".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts): path for path in paths}
    return {name.removesuffix(".__init__"): path for name, path in named.items()}


MODULES = modules()


@cache
def needs(module: str, types: bool = False) -> set[str]:
    """The modules of the package that one imports: in functions too, and the ``_HOMES`` of names that it hands on.

    What is imported for type checking alone is left out, unless ``types``.
    """
    found = set()
    tree = tree_of(MODULES[module].resolve())
    for node in ast.walk(tree) if types else _run_time_nodes(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{module} imports by a relative name"
            found |= {name if name in MODULES else node.module for name in (f"{node.module}.{it.name}" for it in node.names)}
        elif isinstance(node, ast.Import):
            found |= {it.name for it in node.names}
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_HOMES":
            found |= {f"{module}.{home}" for home in ast.literal_eval(node.value)}
    return {name for name in found if name in MODULES} - {module}


def room(module: str) -> str:
    parts = module.split(".")[1:]
    return ".".join(parts[: 2 if parts[0] in ("toolbox", "lab") else 1]) if parts else "fedsim"


def _run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            nodes += [node for other in child.orelse for node in [other, *_run_time_nodes(other)]]
            continue
        nodes += [child, *_run_time_nodes(child)]
    return nodes


_COMMON = "arrays environment errors files language model_cost simulation streams training"
_ENGINE = "data evaluation federation learning strategies world"
_NONE = "arrays environment errors lab model_cost toolbox version"
_LAYERS = {
    "shipped": "errors files",
    "executors": "errors language",
    "files": "errors",
    "streams": "errors",
    "training": "errors",
    "language": "errors files",
    "meters": "common",
    "simulation": "environment errors executors language",
    "output": "errors language records simulation",
    "world": "common",
    "energy": "common meters world",
    "data": "common",
    "learning": "common data",
    "records": "common meters",
    "evaluation": "common learning",
    "federation": "common evaluation learning world",
    "strategies": "common evaluation federation learning world",
    "flower": "common evaluation federation strategies world",
    "toolbox.aggregation": "common federation learning strategies",
    "toolbox.attacks": "common federation learning",
    "toolbox.clustering": "arrays errors language",
    "toolbox.selection": "common evaluation federation learning strategies world",
    "toolbox.models": "common data learning",
    "toolbox.objectives": "common data learning",
    "toolbox.ray": "errors executors language",
    "toolbox.codecs": "common federation learning",
    "toolbox.deadlines": "common strategies world",
    "toolbox.optimisers": "common federation learning strategies",
    "toolbox.partitions": "common data",
    "toolbox.shifts": "common data",
    "toolbox.sources": "common data",
    "toolbox.trainers": "common learning",
    "toolbox.worlds": "common world",
    "toolbox.peers": "common evaluation federation learning strategies world",
    "toolbox.strategies": "common evaluation federation learning strategies toolbox.aggregation toolbox.clustering "
    "toolbox.deadlines toolbox.selection world",
    "checkpoint": "common energy federation learning world",
    "plugin": "common engine meters records toolbox.attacks toolbox.peers toolbox.strategies",
    "running": "common energy engine checkpoint executors meters output records signals version",
    "overrides": "errors files language strategies",
    "signals": "output",
    "sections": "common engine checkpoint energy meters",
    "scenario": "common output overrides running sections shipped",
    "build": "common world",
    "audit": "common meters records",
    "lab.reading": "arrays errors files records",
    "lab.compare": "arrays errors files lab.reading language meters output overrides records",
    "lab.trackers": "arrays errors files lab.reading output records",
    "analysis": "arrays errors executors files lab.compare lab.reading lab.trackers language meters output "
    "records strategies version",
    "lab.loading": "common analysis executors lab.reading meters output records running scenario",
    "fedsim": "build errors lab.loading lab.study running scenario simulation version",
    "calibrate": "common output records scenario world",
    "lab.forecast": "common executors learning output records running strategies",
    "lab.study": "common analysis executors lab.compare lab.loading lab.reading output overrides records running "
    "scenario shipped strategies toolbox.ray world",
    "lab.audited": "audit errors language records scenario version",
    "lab.contract": "data executors fedsim lab.audited records running",
    "testing": "lab.contract",
    "lab.newcomer": "errors files language world",
    "lab.bench": "errors files lab.compare lab.study language overrides records scenario shipped streams version",
    "verbs": "analysis audit calibrate errors executors lab.audited lab.bench lab.catalogue lab.compare "
    "lab.forecast lab.newcomer lab.loading lab.reading lab.study lab.trackers "
    "language output records scenario shipped signals toolbox.sources",
    "lab.catalogue": "data energy errors executors federation lab.study language learning meters scenario shipped strategies "
    "toolbox.clustering toolbox.worlds world",
    "__main__": "cli",
    "cli": "analysis executors output records running scenario signals verbs version",
}
"""The rooms that each room imports at most, lower ones first; ``_NONE`` import none."""
LAYERS = {room: {*needs.replace("common", _COMMON).replace("engine", _ENGINE).split()} for room, needs in _LAYERS.items()}
LAYERS |= {room: set[str]() for room in _NONE.split()}


def test_arrows_run_one_way() -> None:
    assert set(LAYERS) == {room(module) for module in MODULES}
    for module in MODULES:
        for needed in needs(module):
            assert room(needed) in LAYERS[room(module)] | {room(module)}, f"{module} imports {needed}"


def test_no_two_parts_need_each_other() -> None:
    """Each module, types included, and each room can be read after those that it imports, wherever it does so."""
    modules = networkx.DiGraph({module: needs(module, types=True) for module in MODULES})
    rooms = networkx.DiGraph([(room(module), room(other)) for module in MODULES for other in needs(module)])
    for graph in (modules, rooms):
        assert [sorted(part) for part in networkx.strongly_connected_components(graph) if len(part) > 1] == []


def test_nothing_but_fedsim_is_installed_with_the_pictures_and_every_scenario_within_it() -> None:
    setuptools = pytest.importorskip("setuptools")
    told = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["tool"]["setuptools"]
    packages = setuptools.find_packages(str(PACKAGE.parent), include=told["packages"]["find"]["include"])
    assert {name.split(".")[0] for name in packages} == {"fedsim"}
    assert "fedsim.analysis.report" in packages
    installed = {path.relative_to(PACKAGE / "scenarios").as_posix() for path in PACKAGE.glob("scenarios/**/*")}
    assert "scenarios/**/*" in told["package-data"]["fedsim"]
    there = {path.relative_to(PACKAGE.parent / "scenarios").as_posix() for path in (PACKAGE.parent / "scenarios").rglob("*.*")}
    assert there <= installed
