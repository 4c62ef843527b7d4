"""fedsim: a discrete-event simulator for federated learning.

The module has nothing but the public names. Each name is loaded when it is first used, so that
``import fedsim`` is fast.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from fedsim.version import __version__ as __version__

if TYPE_CHECKING:
    from fedsim.clock.simulation import Record, Simulation
    from fedsim.common.errors import (
        DataError,
        FedsimError,
        RunFolderError,
        ScenarioError,
        SimulationError,
    )
    from fedsim.lab.loading import LoadedRun, Result, load_run, run, run_async
    from fedsim.lab.study.loaded import LoadedStudy, load_study
    from fedsim.running.scenario import Scenario, load
    from fedsim.world.build import build_world

_HOMES = {
    "running.scenario": ["load", "Scenario"],
    "lab.loading": ["run", "run_async", "Result", "load_run", "LoadedRun"],
    "lab.study.conduct": ["run_study"],
    "lab.study.loaded": ["load_study", "LoadedStudy"],
    "clock.simulation": ["Simulation", "Record"],
    "world.build": ["build_world"],
    "common.errors": [
        "FedsimError",
        "ScenarioError",
        "DataError",
        "RunFolderError",
        "SimulationError",
    ],
}

__all__ = [  # noqa: RUF022 - by task: run, look at a run, compare, step through a run or a world alone, errors
    "load", "Scenario", "run", "run_async", "Result",
    "load_run", "LoadedRun",
    "run_study", "load_study", "LoadedStudy",
    "Simulation", "Record", "build_world",
    "FedsimError", "ScenarioError", "DataError", "RunFolderError", "SimulationError",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            value = globals()[name] = getattr(import_module(f"fedsim.{home}"), name)
            return value
    raise AttributeError(f"module 'fedsim' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
