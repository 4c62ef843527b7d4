"""Nothing but ``fedsim.simulation.Environment`` uses what SimPy, asyncio, json and networkx keep to themselves."""

import ast
from functools import cache

import pytest
import simpy

from tests.test_source import ROOT, SOURCES, tree_of

LIBRARIES = ("simpy", "asyncio", "json", "networkx")


def _private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


@cache
def _of_simpy() -> set[str]:
    """The private names of SimPy's objects."""
    env = simpy.Environment()
    resource = simpy.Resource(env)
    process = env.process(env.timeout(1) for _ in range(1))
    things = (env, env.event(), process, env.timeout(1), env.all_of([]), resource, resource.request())
    return {name for thing in things for name in dir(thing) if _private(name)}


def reaches_in(tree: ast.Module) -> list[str]:
    """What a file uses of the insides of the four libraries."""
    names, found = _of_simpy(), []
    for parent in ast.walk(tree):
        bases = [ast.unparse(base) for base in parent.bases] if isinstance(parent, ast.ClassDef) else []
        if isinstance(parent, ast.ClassDef) and any("simpy" in base or base == "Event" for base in bases):
            inside = {node.attr for node in ast.walk(parent) if isinstance(node, ast.Attribute)}
            inside |= {node.id for node in ast.walk(parent) if isinstance(node, ast.Name)}
            found += [f"{parent.name} uses {name}" for name in sorted(inside & names)]
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] in LIBRARIES:
            parts = [*(node.module or "").split(".")[1:], *(alias.name for alias in node.names)]
            found += [f"from {node.module} import {part}" for part in parts if _private(part) or node.module == "json.encoder"]
        elif isinstance(node, ast.Attribute) and _private(node.attr):
            owner = ast.unparse(node.value)
            if owner.split(".")[0] in LIBRARIES or (owner not in ("self", "cls") and node.attr in names):
                found.append(f"{owner}.{node.attr}")
    return found


def test_only_the_environment_reaches_into_simpy() -> None:
    found = {}
    for path in [*SOURCES, *(ROOT / "scenarios").rglob("*.py")]:
        if used := reaches_in(tree_of(path)):
            found[path.relative_to(ROOT).as_posix()] = used
    own = ["Alarm uses _ok", "Alarm uses _value", "Environment uses _eid", "Environment uses _queue"]
    assert found == {"fedsim/environment.py": own}


@pytest.mark.parametrize(
    "source",
    [
        "env._queue.clear()",
        "simulation.env._now = 3.0",
        "class Alarm(Event):\n    _ok = True",
        "import asyncio\nasyncio._get_running_loop()",
        "from json.encoder import c_make_encoder",
        "from networkx.utils import _private",
        "import networkx\nnetworkx._dispatchable",
    ],
)
def test_it_would_be_seen(source: str) -> None:
    assert reaches_in(ast.parse(source))
