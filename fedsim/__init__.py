"""fedsim: a discrete-event simulator for federated learning.

The public face, and nothing else; everything is loaded when it is first used, so that ``import fedsim`` costs nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.version import __version__ as __version__

if TYPE_CHECKING:
    from fedsim.build import build_world
    from fedsim.errors import DataError, FedsimError, RunFolderError, ScenarioError, SimulationError
    from fedsim.loading import LoadedRun, LoadedStudy, Result, load_run, load_study, run, run_async
    from fedsim.scenario import Scenario, load
    from fedsim.simulation import Record, Simulation

_HOMES = {
    # Run a scenario.
    "load": "scenario",
    "Scenario": "scenario",
    "run": "loading",
    "run_async": "loading",
    "Result": "loading",
    # Look at a run that is there.
    "load_run": "loading",
    "LoadedRun": "loading",
    # Compare strategies over seeds.
    "run_study": "lab.study.conduct",
    "load_study": "loading",
    "LoadedStudy": "loading",
    # Step through a run, or a world alone.
    "Simulation": "simulation",
    "Record": "simulation",
    "build_world": "build",
    # Errors.
    "FedsimError": "errors",
    "ScenarioError": "errors",
    "DataError": "errors",
    "RunFolderError": "errors",
    "SimulationError": "errors",
}

__all__ = [  # noqa: RUF022 - by task, as above
    "load", "Scenario", "run", "run_async", "Result",
    "load_run", "LoadedRun",
    "run_study", "load_study", "LoadedStudy",
    "Simulation", "Record", "build_world",
    "FedsimError", "ScenarioError", "DataError", "RunFolderError", "SimulationError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'fedsim' has no attribute {name!r}")
    value = getattr(import_module(f"fedsim.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
