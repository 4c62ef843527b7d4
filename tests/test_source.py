"""The source as its readers meet it: names with one meaning, docstrings that begin with their
subject, short files.
"""

import ast
import inspect
import re
import tomllib
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path

import pytest
import simpy

import fedsim
import fedsim.plugin

ROOT = Path(__file__).resolve().parents[1]
SOURCES = sorted(
    path
    for folder in ("fedsim", "analysis")
    for path in (ROOT / folder).rglob("*.py")
    if "scenarios" not in path.parts
)
RIDDLE = re.compile(r"(What|Who|Whose|Whom|How|Where|Those|Which|Whatever|Whoever)\b")
_DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


@cache
def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def trees() -> dict[str, ast.Module]:
    return {path.relative_to(ROOT).as_posix(): tree_of(path) for path in SOURCES}


MOST_LINES = 640


def test_no_file_is_long() -> None:
    paths = [*SOURCES, *(ROOT / "tests").rglob("*.py")]
    assert [path.name for path in paths if len(path.read_text().splitlines()) > MOST_LINES] == []


_HEADING = re.compile(r"(?<=\n\n) *# (.+)\n(?=\n)")


def test_section_headings_are_nouns_without_a_full_stop() -> None:
    """A heading is a comment of one line between empty lines, such as ``# ends of tasks``."""
    odd = []
    for path in SOURCES:
        for heading in _HEADING.findall(path.read_text()):
            if heading.endswith(".") or re.match("[A-Z][a-z]", heading):
                odd.append(f"{path.relative_to(ROOT)}: {heading}")
    assert odd == []


CEILINGS = tomllib.loads((ROOT / "tests" / "ceilings.toml").read_text(encoding="utf-8"))
_PRONOUNS_AND_PARTICIPLES = (
    "said told found known given taken kept seen there here own how what asked held sought chosen "
    "meant wanted shown called heard spent written needed moved left way one other others these "
    "those gone had"
)
VAGUE = frozenset(_PRONOUNS_AND_PARTICIPLES.split())
"""Names that do not say what a variable holds."""
HABITS = {
    "elided nouns": r"\bthose (of|that|which|with|who)|\bthat of\b|\bthe others?\b"
    r"|\bof (its own|one|another)\b",
    "where for if": r"[, ] ?where (it|they|there|an?|the|no|one|nobody|this|that|some|its|these"
    r"|those)\b",
    "so many": r"\b(so (many|much|few|little|far as)|such of)\b",
    "beside": r"\bbesides?\b",
    "is there": r"\b(is|are|was|were|be|not|been) there\b",
    "says, tells": r"\b(says|said|tells?|told)\b",
    "opens with The same": r"^(The same\b|As \w+,|(As|See|Like) ``)",
}
"""Habits of docstrings that a reader stumbles over."""


@cache
def figures() -> dict[str, dict[str, float]]:
    """Each habit's figure, as ``ceilings.toml`` has them: under ``code`` and ``docstrings``."""
    lines = 0
    ignored = 0
    words = 0
    names: list[str] = []
    nodes: Counter[str] = Counter()
    habits: Counter[str] = Counter()
    for path in SOURCES:
        text = path.read_text()
        ignored += text.count("type: ignore")
        for line in text.split("\n"):
            lines += bool(line.strip()) and not line.strip().startswith("#")
        for node in ast.walk(tree_of(path)):
            nodes[_NODES.get(type(node), "")] += 1
            match node:
                case ast.Assign(targets=[ast.Tuple(), *_], value=ast.Tuple()):
                    nodes["tuple assignments"] += 1
                case ast.Name(id="Any") | ast.alias(name="Any") | ast.Attribute(attr="Any"):
                    nodes["Any"] += 1
                case ast.Name(id=name, ctx=ast.Store()) | ast.arg(arg=name):
                    names.append(name)
            docstring = ast.get_docstring(node) if isinstance(node, _DOCUMENTED) else None
            if docstring:
                words += len(docstring.split())
                for habit, pattern in HABITS.items():
                    habits[habit] += len(re.findall(pattern, docstring))
    code: dict[str, float] = {"Any": nodes["Any"], "type: ignore": ignored}
    for habit in ("ternaries", "comprehensions", "tuple assignments"):
        code[habit] = 1000 * nodes[habit] / lines
    code["vague names"] = 100 * sum(name in VAGUE for name in names) / len(names)
    return {"code": code, "docstrings": {habit: 1000 * habits[habit] / words for habit in HABITS}}


_NODES: dict[type[ast.AST], str] = {
    ast.IfExp: "ternaries",
    ast.ListComp: "comprehensions",
    ast.SetComp: "comprehensions",
    ast.DictComp: "comprehensions",
    ast.GeneratorExp: "comprehensions",
}


@pytest.mark.parametrize("part", ["code", "docstrings"])
def test_habits_only_fall(part: str) -> None:
    """The ceilings may only fall."""
    assert set(figures()[part]) == set(CEILINGS[part])
    above = {
        habit: figure for habit, figure in figures()[part].items() if figure > CEILINGS[part][habit]
    }
    assert above == {}


def test_docstrings_begin_with_their_subject() -> None:
    """Not with "What" or "How", to name a thing by a question."""
    found = [
        f"{name}: {text.splitlines()[0]}"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, _DOCUMENTED)
        and (text := ast.get_docstring(node))
        and RIDDLE.match(text)
    ]
    assert found == []


_SECTION = re.compile(r"^(Args|Returns|Raises|Attributes|Example):$", re.MULTILINE)
_ARGS = re.compile(r"^Args:\n((?:    .*\n|\n)*)", re.MULTILINE)
_EXPLAINED = re.compile(r"^    ([*\w, ]+):", re.MULTILINE)


def _faults_of(node: ast.FunctionDef | ast.AsyncFunctionDef) -> list[str]:
    """Sections that a docstring has twice, and parameters that it explains and that are none."""
    text = f"{ast.get_docstring(node) or ''}\n"
    faults = [name for name, count in Counter(_SECTION.findall(text)).items() if count > 1]
    parameters = {name.arg for name in ast.walk(node.args) if isinstance(name, ast.arg)}
    explained = _ARGS.search(text)
    for names in _EXPLAINED.findall(explained[1]) if explained else ():
        faults += {name.strip(" *") for name in names.split(",")} - parameters
    return faults


def test_docstrings_explain_parameters_that_there_are_and_once() -> None:
    faults = {
        f"{path}: {node.name}": found
        for path, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (found := _faults_of(node))
    }
    assert faults == {}
    wrong = 'def f(a):\n    """Do.\n\n    Args:\n        a: 1.\n\n    Args:\n        b: 2.\n    """'
    node = ast.parse(wrong).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert _faults_of(node) == ["Args"]
    node = ast.parse(wrong.replace("        a: 1.", "        b: 1.")).body[0]
    assert isinstance(node, ast.FunctionDef)
    assert _faults_of(node) == ["Args", "b"]


def test_a_type_has_a_name_of_its_own() -> None:
    """Classes and aliases of types at the top of a module; a leading underscore makes no other
    name.
    """
    places = defaultdict(list)
    for name, tree in trees().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places[node.name.lstrip("_")].append(name)
            elif (
                isinstance(node, ast.Assign)
                and isinstance(node.targets[0], ast.Name)
                and _is_type(node.value)
            ):
                places[node.targets[0].id.lstrip("_")].append(name)
    twice = {
        name: found
        for name, found in places.items()
        if len(found) > 1 and name[:1].isupper() and not name.isupper()
    }
    assert twice == {}


def _is_type(value: ast.expr) -> bool:
    return not isinstance(value, ast.Constant | ast.Tuple | ast.List | ast.Dict | ast.Set)


def test_what_authors_of_plugins_meet_is_explained() -> None:
    """A public method of the public face has a docstring, or overrides one that has."""
    faces = [getattr(face, name) for face in (fedsim, fedsim.plugin) for name in face.__all__]
    missing = [
        f"{cls.__name__}.{name}"
        for cls in faces
        if inspect.isclass(cls) and cls.__module__.startswith("fedsim.")
        for name, method in vars(cls).items()
        if not name.startswith("_") and (inspect.isfunction(method) or isinstance(method, property))
        if not inspect.getdoc(getattr(cls, name))
    ]
    assert missing == []


LIBRARIES = ("simpy", "asyncio", "json", "networkx")


@cache
def _private_names_of_simpy() -> set[str]:
    env = simpy.Environment()
    resource = simpy.Resource(env)
    process = env.process(env.timeout(1) for _ in range(1))
    things = (
        env,
        env.event(),
        process,
        env.timeout(1),
        env.all_of([]),
        resource,
        resource.request(),
    )
    return {name for thing in things for name in dir(thing) if _is_private(name)}


def _is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def reaches_in(tree: ast.Module) -> list[str]:
    """The names that a file uses of the insides of the four libraries."""
    names, found = _private_names_of_simpy(), []
    for node in ast.walk(tree):
        if isinstance(node, ast.ClassDef) and any(
            "simpy" in base or base == "Event" for base in map(ast.unparse, node.bases)
        ):
            inside = {getattr(one, "attr", getattr(one, "id", "")) for one in ast.walk(node)}
            found += [f"{node.name} uses {name}" for name in sorted(inside & names)]
        elif isinstance(node, ast.ImportFrom) and str(node.module).split(".")[0] in LIBRARIES:
            parts = [*str(node.module).split("."), *(alias.name for alias in node.names)]
            found += [ast.unparse(node) for part in parts if _is_private(part) or part == "encoder"]
        elif isinstance(node, ast.Attribute) and _is_private(node.attr):
            owner = ast.unparse(node.value)
            if owner.split(".")[0] in LIBRARIES or (
                owner not in ("self", "cls") and node.attr in names
            ):
                found.append(f"{owner}.{node.attr}")
    return found


def test_only_the_environment_reaches_into_simpy() -> None:
    paths = [*SOURCES, *(ROOT / "scenarios").rglob("*.py")]
    found = {
        path.relative_to(ROOT).as_posix(): used
        for path in paths
        if (used := reaches_in(tree_of(path)))
    }
    own = [
        "Signal uses _ok",
        "Signal uses _value",
        "DirectProcess uses _active_proc",
        "DirectProcess uses _generator",
        "DirectProcess uses _ok",
        "DirectProcess uses _resume",
        "DirectProcess uses _target",
        "DirectProcess uses _value",
        "Environment uses _eid",
        "Environment uses _env",
        "Environment uses _now",
        "Environment uses _queue",
        "env._active_proc",
        "env._active_proc",
        "env._active_proc",
        "resource._env",
        "event._ok",
        "event._value",
        "event._value",
    ]
    assert found == {"fedsim/clock/environment.py": own}


def test_it_would_be_seen() -> None:
    inside = [
        "env._queue.clear()",
        "class Alarm(Event):\n    _ok = True",
        "asyncio._get_running_loop()",
    ]
    inside += ["from json.encoder import c_make_encoder", "from networkx.utils import _private"]
    assert all(reaches_in(ast.parse(source)) for source in inside)


TESTS = sorted(path for path in (ROOT / "tests").rglob("*.py") if "apps" not in path.parts)
STARTERS = {
    "Popen",
    "fork",
    "forkpty",
    "posix_spawn",
    "spawnv",
    "get_context",
    "ProcessPoolExecutor",
}
OWN_STARTERS = {
    "tests/children.py",
    "tests/fuzzing/place.py",
    "tests/benchmarks/bounds.py",
    "tests/benchmarks/digests.py",
    "tests/benchmarks/fuzz.py",
    "tests/benchmarks/hashes.py",
    "tests/benchmarks/huge.py",
    "tests/clusters/ray_nodes.py",
}
"""They end what they start: by the fixture of all tests, by a limit for each case, and by a
pool's context.
"""
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time"}
OF_THEIR_OWN = {
    "tests/test_contract.py",
    "tests/test_source.py",
    "tests/clock/test_ray.py",
    "tests/analysis/chromium.py",
}
"""A strategy that draws from a clock, which is found; a wait of a task for another to be killed;
a page that is waited for.
"""
LEAST_WAIT_S = 300


def calls_of(path: Path) -> list[tuple[str, ast.Call]]:
    calls = [node for node in ast.walk(tree_of(path)) if isinstance(node, ast.Call)]
    return [(getattr(call.func, "attr", getattr(call.func, "id", "")), call) for call in calls]


def test_nothing_is_started_that_does_not_end_with_its_test() -> None:
    """All are started by ``tests.children``, or by ``subprocess.run``, which waits for them."""
    found = {
        path.relative_to(ROOT).as_posix()
        for path in TESTS
        for name, _ in calls_of(path)
        if name in STARTERS
    }
    assert found <= OWN_STARTERS


def test_no_test_measures_time_or_waits_for_too_short() -> None:
    """Benchmarks and fuzzing measure; tests wait for events, and give up only after what no
    loaded machine needs.
    """
    paths = [
        path
        for path in TESTS
        if not {"benchmarks", "clusters", "fuzzing"} & set(path.parts)
        and path.name != "children.py"
    ]
    assert len(paths) > 100
    found = []
    for path in paths:
        place = path.relative_to(ROOT).as_posix()
        for name, call in calls_of(path):
            waits = [word.value for word in call.keywords if word.arg == "timeout"]
            waits += call.args[:1] if name == "wait" and "process" in ast.unparse(call.func) else []
            short = [
                wait
                for wait in waits
                if isinstance(wait, ast.Constant) and float(wait.value) < LEAST_WAIT_S
            ]
            if short or (name in CLOCKS and place not in OF_THEIR_OWN):
                found.append(f"{place}:{call.lineno}: {ast.unparse(call)}")
    assert found == []
