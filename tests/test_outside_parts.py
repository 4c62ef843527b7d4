"""A part of each family, written from the docs alone: alone, all together, and registered by an
installed package.
"""

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any, ClassVar

import pytest

from fedsim import plugin
from fedsim.common.registry import Registry
from fedsim.lab import catalogue
from fedsim.lab.audited import audit_run
from fedsim.testing import StrategyContract, assert_sound, run
from tests import outside_parts

HERE = "tests.outside_parts:"
WORLD: dict[str, Any] = {
    "population": {"devices": 9, "speed": "60 samples/s", "jitter": 0.2},
    "network": {
        "kind": "star",
        "device": {"down": "1 Mbit/s", "up": "200 kbit/s", "latency": "40 ms"},
    },
    "strategy": {"kind": "fedavg", "clients_per_round": 6},
    "stop": {"rounds": 2, "simulated_time": "1 h"},
}
PARTS: dict[str, dict[str, Any]] = {
    "strategy": {"strategy": {"kind": "Ring", "patience": "90 s", "selection": "random"}},
    "selection": {"strategy.selection": "Turns"},
    "aggregation": {"strategy.aggregation": "Geometric"},
    "server_optimiser": {"strategy.server": {"kind": "Ramp", "growth": 0.4}},
    "deadline": {"strategy.deadline": {"kind": "Shrinking", "first": "40 s"}},
    "codec": {"messages.up": {"kind": "Bits", "head": "1 kB"}},
    "attack": {"malicious": {"attack": "Flips", "share": 0.2}},
    "trainer": {"training": {"kind": "Signs", "lr": 0.1}},
    "source": {"data.source": "Spirals"},
    "partition": {"data.partition": "Alternating"},
    "shift": {"drift": {"kind": "Rotate", "at": {"rounds": [1]}}},
    "availability": {"population.availability": {"kind": "Blinking", "phase": "20 s"}},
    "distribution": {
        "population.speed": {"kind": "Steps", "slowest": "20 samples/s", "step": "5 samples/s"}
    },
    "network": {"network.kind": "MastsSpec", "network.masts": 3, "network.rate": "2 Mbit/s"},
    "protocol": {"network.protocol": "Padded"},
    "process_of_the_world": {"world.processes": [{"kind": "Beacon", "device": 3, "every": "2 s"}]},
    "meter": {"meters": [{"kind": "Trips", "least": "10 B"}]},
}
"""Entry point group without ``fedsim.`` -> the keys of a scenario that use a part of it, by the
name of its class.
"""
TOGETHER = [group for group in PARTS if group != "strategy"]


def named(value: Any, name: Any) -> Any:
    """Keys in which the name of a class is the name of a kind."""
    if isinstance(value, dict):
        return {key: named(each, name) for key, each in value.items()}
    if isinstance(value, list):
        return [named(each, name) for each in value]
    return name(value) if isinstance(value, str) and hasattr(outside_parts, value) else value


def world(*groups: str, name: Any = lambda part: f"{HERE}{part}") -> dict[str, Any]:
    """The sections of a scenario with the parts of some groups."""
    sections = json.loads(json.dumps(WORLD))
    for group in groups:
        for path, value in named(PARTS[group], name).items():
            table = sections
            *tables, key = path.split(".")
            for each in tables:
                table = table.setdefault(each, {})
            table[key] = value
    return sections


@pytest.mark.parametrize(
    "group", ["strategy", *(pytest.param(group, marks=pytest.mark.long) for group in TOGETHER)]
)
def test_a_part_alone(group: str, tmp_path: Path) -> None:
    summary = run(world(group), tmp_path / "run")
    assert (summary["status"], summary["rounds"]) == ("done", 2)
    assert_sound(tmp_path / "run")


def test_all_together(tmp_path: Path) -> None:
    run(world(*TOGETHER), tmp_path / "run")
    folder = assert_sound(tmp_path / "run")
    assert {"process:beacon", "shift", "malicious"} <= {event["kind"] for event in folder.events}
    assert sum(row["trips"] for row in folder.devices) > 15


OF_STRATEGIES = {"Halving": {"clients_per_round": 6}, "Fresh": {"concurrency": 6, "buffer": 3}}


@pytest.mark.parametrize("kind", ["Trickle", "Halving", "Fresh"])
def test_another_strategy(kind: str, tmp_path: Path) -> None:
    strategy = {"kind": f"{HERE}{kind}"} | (OF_STRATEGIES.get(kind, {}))
    run(world("source") | {"strategy": strategy}, tmp_path / "run")
    assert_sound(tmp_path / "run")


RING = PARTS["strategy"]["strategy"] | {"kind": f"{HERE}Ring"}


@pytest.mark.long
class TestRing(StrategyContract):
    """A strategy from ``Strategy`` alone, which probes, reports losses and never records an
    aggregation itself.
    """

    strategy: ClassVar[dict[str, Any]] = RING


def test_a_strategy_from_scratch_goes_on_as_if_it_had_not_been_stopped(tmp_path: Path) -> None:
    TestRing().test_it_goes_on_as_if_it_had_not_been_stopped(tmp_path)


def groups() -> set[str]:
    """All entry point groups, without ``fedsim.``."""
    registries: list[Registry] = list(catalogue._REGISTRIES.values())
    registries += [
        value
        for module in (sys.modules["fedsim.world.network.spec"],)
        for value in vars(module).values()
        if isinstance(value, Registry)
    ]
    return {
        registry.group.removeprefix("fedsim.")
        for registry in registries
        if registry.group is not None
    }


def test_every_group_is_tried() -> None:
    assert groups() == set(PARTS)
    assert all(group.replace("_", "").isalnum() for group in PARTS)


def test_an_installed_package_registers_a_part_in_each_group(tmp_path: Path) -> None:
    """Built by setuptools, which checks the names of groups, and installed as pip does; each
    kind is then used by name.
    """
    setuptools = pytest.importorskip("setuptools")
    assert setuptools is not None
    source = tmp_path / "source"
    source.mkdir()
    (source / "outsiders.py").write_text(Path(outside_parts.__file__).read_text())
    points = {group: next(part for part in _classes(PARTS[group])) for group in PARTS}
    lines = [
        f'[project.entry-points."fedsim.{group}"]\n{part.lower()} = "outsiders:{part}"\n'
        for group, part in points.items()
    ]
    (source / "pyproject.toml").write_text(
        '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n\n'
        '[project]\nname = "outsiders"\nversion = "1"\n\n[tool.setuptools]\npy-modules = '
        '["outsiders"]\n\n' + "\n".join(lines)
    )
    target = tmp_path / "installed"
    build = textwrap.dedent("""
        import sys, zipfile
        from setuptools import build_meta
        wheels, target = sys.argv[1:]
        wheel = build_meta.build_wheel(wheels)
        zipfile.ZipFile(f"{wheels}/{wheel}").extractall(target)
    """)
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", build, str(tmp_path), str(target)],
        cwd=source,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    sections = world(*TOGETHER, name=str.lower), world("strategy", name=str.lower)
    use = textwrap.dedent("""
        import json, sys
        import fedsim
        from fedsim.lab.contract import assert_sound
        from fedsim.common.imports import code_from_file
        for number, sections in enumerate(json.loads(sys.argv[1])):
            with code_from_file(False):  # no code of a file may be imported
                scenario = fedsim.Scenario(**sections)
            result = fedsim.run(scenario, f"runs/{number}")
            print(result.summary["status"], result.summary["rounds"])
            assert_sound(f"runs/{number}")  # here, where the package's kinds are known
        print("outsiders" in sys.modules)
    """)
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {str(target)!r})\n{use}",
            json.dumps(sections),
        ],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.splitlines() == ["done 2", "done 2", "True"], done.stderr[-2000:]
    # where the package is not installed, its parts are listed as unchecked
    for number in range(len(sections)):
        audited = audit_run(tmp_path / "runs" / str(number))
        assert not [problem for problems in audited.findings.values() for problem in problems]
        assert any("of the package outsiders 1, " in sentence for sentence in audited.unchecked)


def _classes(keys: Any) -> list[str]:
    values = (
        list(keys.values()) if isinstance(keys, dict) else keys if isinstance(keys, list) else []
    )
    here = (
        [keys]
        if isinstance(keys, str) and isinstance(getattr(outside_parts, keys, None), type)
        else []
    )
    return here + [part for value in values for part in _classes(value)]


def test_they_are_written_with_public_names_alone() -> None:
    text = Path(outside_parts.__file__).read_text()
    assert "from fedsim import plugin as fed" in text
    assert "import fedsim" not in text.replace("from fedsim import plugin as fed", "")
    used = {
        name.partition(".")[2]
        for name in text.split()
        if name.startswith("fed.") and name[4:5].isupper()
    }
    assert {name for name in used if name.isidentifier()} <= set(plugin.__all__)
