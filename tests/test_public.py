"""The public face: what it names, what it costs to import, and which way the arrows run."""

import ast
import graphlib
import subprocess
import sys
from pathlib import Path

import fedsim

PACKAGE = Path(fedsim.__file__).parent
HEAVY = {"torch", "numba", "sklearn", "pandas", "matplotlib", "ray"}


def test_exports() -> None:
    assert set(fedsim.__all__) <= set(dir(fedsim))
    for name in fedsim.__all__:
        assert getattr(fedsim, name).__module__.startswith("fedsim")


def python(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_importing_costs_little_and_loads_nothing_heavy() -> None:
    code = "import time, sys; t = time.process_time(); import fedsim; print(time.process_time() - t); print(*sys.modules)"
    times = []
    for _ in range(3):
        seconds, modules = python(code).splitlines()
        assert not HEAVY & set(modules.split())
        times.append(float(seconds))
    assert min(times) < 0.3


def test_reading_a_scenario_loads_nothing_heavy() -> None:
    modules = python("import sys; import fedsim; fedsim.Scenario(); print(*sys.modules)").split()
    assert not HEAVY & set(modules)


def imports(folder: str) -> set[str]:
    """The fedsim modules that the files of a folder (or one file) import, those for type checking left out."""
    found = set()
    paths = [PACKAGE / f"{folder}.py"] if (PACKAGE / f"{folder}.py").exists() else (PACKAGE / folder).rglob("*.py")
    for path in paths:
        for node in _run_time_nodes(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                found.add(node.module)
    return {name for name in found if name.startswith("fedsim.")}


def _run_time_nodes(tree: ast.AST) -> list[ast.AST]:
    nodes: list[ast.AST] = []
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            continue
        nodes += [child, *_run_time_nodes(child)]
    return nodes


def test_arrows_run_one_way() -> None:
    common = {"streams", "spec", "units", "errors", "files", "durable", "imports", "training"}
    layers = {
        "simulation": {"executors"},
        "executors": {"executors"},
        "world": {"world", "simulation", "sizes"},
        "data": {"data", "sizes"},
        "learning": {"learning", "data", "simulation"},
        "records": {"records", "simulation"},
        "instrument": {"learning", "stop", "agreement"},
        "drift": {"data", "learning", "world", "simulation"},
        "server": {"messages", "message_sizes", "instrument", "world", "learning", "records", "simulation"},
        "strategies": {"strategies", "server"},
        "checkpoint": {"checkpoint", "learning", "world", "simulation"},
        "compare": {"compare", "records", "harmless", "terminal"},
        "study": {
            "study",
            "compare",
            "records",
            "scenario",
            "strategies",
            "world",
            "simulation",
            "runner",
            "executors",
            "progress",
            "harmless",
            "interruption",
            "terminal",
        },
        "loading": {"compare", "records", "scenario", "harmless"},
    }
    for layer, allowed in layers.items():
        for module in sorted(imports(layer)):
            assert module.split(".")[1] in allowed | common, f"{layer} imports {module}"


def test_no_two_parts_need_each_other() -> None:
    """Each folder and each file of the package can be read after those that it imports, wherever it does so."""
    parts = {path.relative_to(PACKAGE).parts[0].removesuffix(".py") for path in PACKAGE.rglob("*.py")} - {"__init__"}
    needs = {part: {name.split(".")[1] for name in imports(part)} - {part} for part in sorted(parts)}
    assert set(graphlib.TopologicalSorter(needs).static_order()) == parts


def test_analysis_reads_run_folders_and_comparisons_of_them_and_never_the_engine() -> None:
    found = set()
    for path in (PACKAGE.parent / "analysis").rglob("*.py"):
        nodes = _run_time_nodes(ast.parse(path.read_text()))
        found |= {node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module}
    theirs = {name.split(".")[1] for name in found if name.startswith("fedsim.")}
    assert theirs == {"compare", "durable", "errors", "harmless", "mistakes", "records", "units"}
