"""fedsim: a discrete-event simulator for federated learning.

The public face, and nothing else; everything is loaded when it is first used, so that ``import fedsim`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.version import __version__ as __version__

if TYPE_CHECKING:
    from fedsim.build import build_world
    from fedsim.errors import DataError, FedsimError, RunFolderError, ScenarioError, SimulationError
    from fedsim.lab.study.conduct import run_study
    from fedsim.loading import load_run, load_study, run, run_async
    from fedsim.running.runner import Result
    from fedsim.scenario import Scenario, load
    from fedsim.simulation import Record, Simulation

_HOMES = {
    "build_world": "build",
    "DataError": "errors",
    "FedsimError": "errors",
    "RunFolderError": "errors",
    "ScenarioError": "errors",
    "SimulationError": "errors",
    "load_run": "loading",
    "load_study": "loading",
    "run": "loading",
    "run_async": "loading",
    "Result": "running.runner",
    "Scenario": "scenario",
    "load": "scenario",
    "Record": "simulation",
    "Simulation": "simulation",
    "run_study": "lab.study.conduct",
}

__all__ = [  # noqa: RUF022 - by home, as above
    "build_world",
    "DataError",
    "FedsimError",
    "RunFolderError",
    "ScenarioError",
    "SimulationError",
    "load_run",
    "load_study",
    "run",
    "run_async",
    "Result",
    "Scenario",
    "load",
    "Record",
    "Simulation",
    "run_study",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    value = getattr(import_module(f"fedsim.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
