"""However a run of an app ends, it leaves the process as it found it, for the next run in it."""

import logging
import random
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

pytest.importorskip("flwr")

from torch.nn.modules import module as torch_modules

from fedsim.clock.executors import Executor, Inline, Threads
from fedsim.common.errors import RunFolderError, ScenarioError, SimulationError
from fedsim.running.runner import Job
from fedsim.running.scenario import Scenario
from tests.flower.runs import APPS, execute, scenario
from tests.flower.test_odd_apps import odd

EXECUTORS: list[Callable[[], Executor]] = [Inline, lambda: Threads(1)]
LAG_S = 120.0  # far longer than any thread of an app goes on


def left(folder: Path) -> list[object]:
    """What a run might leave: modules and the folder of the app, hooks, and global states."""
    places = {
        name: str(getattr(module, "__file__", None) or list(getattr(module, "__path__", [])))
        for name, module in [*sys.modules.items()]
    }
    # some apps import parts of another one as modules of the tests, which stay
    names = [name for name in places if not name.startswith("tests.")]
    modules = [name for name in names if str(folder) in places[name]]
    numbers = np.random.get_state(legacy=False)["state"]  # noqa: NPY002
    return [
        modules,
        [*sys.path],
        torch.get_num_threads(),
        logging.getLogger("flwr").level,
        len(torch_modules._global_forward_pre_hooks),
        random.getstate(),
        (numbers["key"].tolist(), numbers["pos"]),
        torch.default_generator.get_state().tolist(),
    ]


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[None]:
    """Compares at the end of the run, and again when the threads that it has given up are over."""
    threads = threading.enumerate()
    before = [left(APPS), left(tmp_path)]
    assert before[0][0] == before[1][0] == []
    yield
    assert [left(APPS), left(tmp_path)] == before
    for thread in threading.enumerate():
        if thread not in threads and thread.name in ("ServerApp", "ClientApp"):
            thread.join(LAG_S)
            assert not thread.is_alive()
    assert [left(APPS), left(tmp_path)] == before


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("make", EXECUTORS, ids=["inline", "thread"])
@pytest.mark.parametrize(
    ("server", "client", "strategy"),
    [
        ("polls", "answers", {}),
        ("polls", "diverges", {}),
        ("polls", "sleeps", {}),
        ("fails", "answers", {}),
        ("exits", "answers", {}),
        ("interrupts", "answers", {}),
        ("calls-from-a-thread", "answers", {}),
        ("lags", "answers", {"real_patience": "300 ms"}),
        ("lags-later", "answers", {"real_patience": "300 ms"}),
        ("goes-on", "answers", {}),
        ("sleeps", "answers", {}),
        ("cleans-up", "answers", {}),
        ("resists", "answers", {}),
        ("polls", "raises", {}),
        ("polls", "exits", {}),
        ("polls", "interrupts", {}),
        ("polls", "nonsense", {}),
        ("polls", "lags", {"real_patience": "300 ms"}),
    ],
)
def test_an_app_that(
    server: str, client: str, strategy: dict[str, Any], make: Callable[[], Executor]
) -> None:
    sections = odd(server, client, **strategy) | {"stop": {"rounds": 2, "simulated_time": "1 h"}}
    with suppress(SimulationError):
        execute(sections, executor=make())


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("make", EXECUTORS, ids=["inline", "thread"])
@pytest.mark.parametrize(
    ("server", "client"),
    [("signals-and-lags", "answers"), ("signals-and-sleeps", "answers"), ("polls", "signals")],
)
def test_an_app_that_is_interrupted(server: str, client: str, make: Callable[[], Executor]) -> None:
    former = signal.signal(signal.SIGALRM, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            execute(odd(server, client), executor=make())
    finally:
        signal.signal(signal.SIGALRM, former)


PROJECT = """[tool.flwr.app.components]
serverapp = "broken_app.server_app:app"
clientapp = "broken_app.client_app:app"
[tool.flwr.app.config]
"""
SERVER = """
from broken_app import shared
from flwr.app import ArrayRecord, Message, RecordDict
from flwr.serverapp import ServerApp
app = ServerApp()
@app.main()
def main(grid, context):
    messages = [Message(RecordDict({}), node, "train") for node in grid.get_node_ids()]
    list(grid.send_and_receive(messages))
"""
CLIENT = """
from broken_app import shared
from flwr.clientapp import ClientApp
app = ClientApp()
"""


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize("half", ["server", "client"])
@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("raise ValueError('no')", SimulationError),
        ("import sys; sys.exit(3)", SimulationError),
        ("raise KeyboardInterrupt", KeyboardInterrupt),
        ("app = 3", SimulationError),
        ("del app", SimulationError),
        ("from broken_app import missing", SimulationError),
    ],
)
def test_an_app_that_cannot_be_loaded(
    half: str, code: str, error: type[BaseException], tmp_path: Path
) -> None:
    package = tmp_path / "broken_app"
    package.mkdir()
    (tmp_path / "pyproject.toml").write_text(PROJECT)
    (package / "shared.py").touch()
    for name, text in (("server", SERVER), ("client", CLIENT)):
        ending = code if name == half else ""
        (package / f"{name}_app.py").write_text(f"{text}{ending}\n")
    with pytest.raises(error):
        execute(scenario(str(tmp_path), 2))


@pytest.mark.usefixtures("unchanged")
@pytest.mark.parametrize(
    "strategy", [{"app": "nowhere"}, {"run_config": {"nothing": 3}}, {"node_config": {"a": [1]}}]
)
def test_an_app_that_is_refused(strategy: dict[str, Any], tmp_path: Path) -> None:
    sections = scenario("odd_app")
    with pytest.raises(ScenarioError):
        execute(sections | {"strategy": sections["strategy"] | strategy})
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "file").touch()
    with pytest.raises(RunFolderError):
        execute(sections, tmp_path / "run")


@pytest.mark.usefixtures("unchanged")
def test_an_app_that_is_never_begun() -> None:
    Job(Scenario(**odd("polls")), None, Inline())
