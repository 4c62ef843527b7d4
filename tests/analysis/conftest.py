"""Runs to draw: with losses and late tasks, without learning, and cut off in the middle."""

import shutil
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from matplotlib.axes import Axes

import fedsim
from fedsim.records.reading import RunFolder
from fedsim.testing import eventful_world
from tests.benchmarks.hashes import OF_WORLDS
from tests.benchmarks.hashes import STRATEGIES as HASHED
from tests.shared import copy_of
from tests.test_runs import STRATEGIES

Made = Callable[[dict[str, Any], Path], Path]
Ran = Callable[..., RunFolder]
Lived = Callable[[str], RunFolder]

PARAMETERS = {entry["kind"]: entry for entry in STRATEGIES} | {
    "hierfavg": {"kind": "hierfavg"} | HASHED["hierfavg"]
}
# some who sit out a split are left without a group
PARAMETERS["cfl"] = PARAMETERS["cfl"] | {"clients_per_round": 6}


def drawn(*panels: Axes) -> Counter[str]:
    """How many bars, marks and lines of each kind the panels have."""
    count: Counter[str] = Counter()
    for panel in panels:
        for item in panel.collections:
            count[str(item.get_gid())] += len(item.get_paths())
        for line in panel.lines:
            count[str(line.get_gid())] += np.size(line.get_xdata())
    return count


@pytest.fixture
def small(small: dict[str, Any]) -> dict[str, Any]:
    """With a deadline that some rounds reach and some do not, and devices that vanish often."""
    small["strategy"]["deadline"] = "10 s"
    small["population"]["availability"]["mean_on"] = "30 s"
    return small


@pytest.fixture
def run(tiny_run: Path) -> RunFolder:
    folder = RunFolder(tiny_run)
    outcomes = {event["outcome"] for event in folder.events if event["kind"] == "task-end"}
    assert {"done", "late", "lost"} <= outcomes  # else the tests here would show little
    return folder


@pytest.fixture
def ran(small: dict[str, Any], tmp_path: Path, made: Made) -> Ran:
    """``ran(name, **sections)`` is the run of ``small`` with other sections, in a folder of that
    name.
    """
    return lambda name, **sections: RunFolder(made(small | sections, tmp_path / name))


@pytest.fixture
def unlearned(ran: Ran) -> RunFolder:
    return ran("unlearned", learning="off")


@pytest.fixture
def queued(ran: Ran) -> RunFolder:
    outage = {
        "kind": "link-outage",
        "link": "server up",
        "every": "20 s",
        "lasts": "2 s",
        "random": False,
    }
    world = {"processes": [{"kind": "upload-slots", "slots": 1}, outage]}
    folder = ran("queued", world=world)
    kinds = {event["kind"] if event["step"] is None else event["step"] for event in folder.events}
    assert {"queue", "link-rate"} <= kinds
    return folder


@pytest.fixture
def cut_off(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run whose events end in the middle of a step, just before its end, as a crash would
    leave them.
    """
    folder = tmp_path / "cut-off"
    shutil.copytree(run.path, folder)
    last = max(place for place, event in enumerate(run.events) if event["kind"] == "step-end")
    pq.write_table(
        pq.read_table(folder / "events.parquet").slice(0, last), folder / "events.parquet"
    )
    return RunFolder(folder)


@pytest.fixture
def renamed(run: RunFolder, tmp_path: Path) -> RunFolder:
    """A run under a folder name that tries its best to break a picture."""
    folder = (
        tmp_path
        / "_$x_{$ \\frac{ & <b> \u202e円\n🙂 and a tail that is far longer than any legend has "
        "room for"
    )
    shutil.copytree(run.path, folder)
    return RunFolder(folder)


@pytest.fixture
def split(ran: Ran) -> RunFolder:
    """CATA-Fed in two clusters: slow devices split their data, some are lost."""
    strategy = {
        "kind": "cata-fed",
        "clients_per_round": 6,
        "deadline": {"kind": "relative", "times": 0.3},
        "smallest_part": 5,
    }
    strategy |= {"clusters": 2, "rejoin": True}
    return ran("split", strategy=strategy, stop={"rounds": 12}, learning="off")


@pytest.fixture
def every_kind(ran: Ran, small: dict[str, Any]) -> RunFolder:
    """Devices on hosts, which start up, queue and sleep, with a kind of step that a user added."""
    population = small["population"] | {
        "host": {"number": 2, "cores": 1, "workers": 1, "start_up": "1 s"}
    }
    strategy = small["strategy"] | {"kind": "tests.own_steps:FromFlash", "deadline": "30 s"}
    return ran("every-kind", population=population, strategy=strategy, learning="off")


@pytest.fixture
def roundless(ran: Ran) -> RunFolder:
    return ran(
        "roundless",
        strategy={"kind": "fedasync", "concurrency": 4},
        stop={"rounds": 40},
        learning="off",
    )


@pytest.fixture(scope="session")
def grouped_scenario() -> dict[str, Any]:
    """FlexCFL among devices that come, go, and exchange their data; its groups' models meet at
    an auxiliary server.
    """
    return {
        "name": "grouped",
        "seed": 2,
        "data": {"source": "digits", "partition": {"kind": "label-groups", "groups": 2}},
        "training": {"lr": 0.1, "batch_size": 10},
        "population": {
            "devices": 24,
            "speed": {"kind": "lognormal", "median": "100 samples/s", "spread": 2.0},
            "arrivals": {"kind": "poisson", "rate": "0.1 /s", "newcomers": 6},
            "departures": {"kind": "exponential", "mean_stay": "60 s", "share": 0.3},
        },
        "network": {"kind": "star", "server": {"down": "1 Mbit/s", "up": "400 kbit/s"}},
        "strategy": {"kind": "flexcfl", "groups": 2, "moment": {"devices": 6}, "eta_g": 0.1}
        | {"clients_per_round": 6, "local_epochs": 2},
        "drift": {"kind": "swap-all", "probability": 0.6, "at": {"every_rounds": 4}},
        "stop": {"rounds": 12},
    }


@pytest.fixture(scope="session")
def grouped(
    grouped_scenario: dict[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> RunFolder:
    scenario = fedsim.Scenario(**grouped_scenario)
    place = copy_of(
        tmp_path_factory,
        "grouped",
        lambda place: fedsim.run(scenario, place / "flexcfl", executor="inline"),
    )
    run = RunFolder(place / "flexcfl")
    kinds = {event["kind"] for event in run.events}
    assert {"arrival", "departure", "shift", "shift-test", "clustering", "server-transfer"} <= kinds
    assert any(
        event["kind"] == "assign" and event["data"]["before"] is not None for event in run.events
    )
    return run


@pytest.fixture
def lived(made: Made, tmp_path: Path) -> Lived:
    """``lived(kind)`` is a run of a strategy in which it does what it is for."""

    def run(kind: str) -> RunFolder:
        sections = eventful_world(
            PARAMETERS[kind], seed=6, rounds=40 if kind in ("fedasync", "fedbuff") else 6
        )
        sections["population"] |= {
            "devices": 18,
            "arrivals": {"kind": "poisson", "rate": "0.2 /s", "newcomers": 6},
            "departures": {"kind": "exponential", "mean_stay": "20 s", "share": 0.3},
        }
        sections["drift"] = {"kind": "swap-all", "probability": 0.5, "at": {"every_rounds": 3}}
        del sections["checkpoint"]
        sections |= OF_WORLDS.get(kind, {})
        if kind == "hierfavg":
            sections["world"] = {
                "processes": [{"kind": "edge-outage", "edge": 1, "every": "20 s", "lasts": "10 s"}]
            }
        return RunFolder(made(sections | {"name": kind}, tmp_path / kind))

    return run
