"""Memory and disk that ``fedsim check`` predicts, against those of whole runs.

    python -m tests.benchmarks.check_memory                  # all scenarios
    python -m tests.benchmarks.check_memory fedavg ditto     # these
    python -m tests.benchmarks.check_memory --strategies     # models of every strategy, by their count

Each forecast and each run is a process of its own. A line has the predicted and the measured peak
of the resident memory, of the run folder, and of models in the folder for temporary files, with the
error of each prediction in percent of what was measured. Exit status 1 if a prediction of memory is
off by more than a third of what was measured, one of the run folder by more than a half, or one of
temporary files by more than a quarter.

With ``--strategies`` each registered strategy trains 30 devices for three rounds, with 12 of them and
with all in a round, with and without checkpoints, in memory for five megabytes of models. A line has
the predicted and the measured peak of the models that are held in memory and on disk, of the
temporary file, of all checkpoints, and of final models, in models of some 1.1 MB. Exit status 1 if
one is off by more than a twentieth and half a model, or, with a strategy of which ``check`` says
that not all is known before, if it is less than nine tenths of what was measured or more than twice.
"""

import asyncio
import json
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, NamedTuple

from torch import nn

import fedsim
from fedsim.clock.executors import Inline
from fedsim.lab.forecast import Beginning
from fedsim.lab.model_memory import count_models
from fedsim.running.checkpoint import store
from fedsim.running.checkpoint.apart import LinkedTensors
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES as REGISTERED
from tests.benchmarks.hashes import STRATEGIES
from tests.benchmarks.personal import size_of
from tests.benchmarks.script import parser

Sections = dict[str, Any]
MEMORY_ERROR = 1 / 3
DISK_ERROR = 0.51
SCRATCH_ERROR = 0.25
_LEAST_BYTES = 1e6
WIDTH = 4000

_FORECAST = """
import json, sys
import fedsim
from fedsim.clock.executors import Inline
from fedsim.lab.whole_forecast import forecast_whole
whole = forecast_whole(fedsim.Scenario(**json.loads(sys.argv[1])), Inline())
cost = whole.cost
assert cost is not None, whole.lines
print(json.dumps([cost.memory_bytes, cost.disk_bytes, cost.scratch_bytes]))
"""

_RUN = """
import asyncio, json, sys, tempfile, threading, time
from pathlib import Path
import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.machine import peak_memory
from fedsim.running.runner import Job
with tempfile.TemporaryDirectory() as name:
    folder = Path(name, "run")
    job = Job(fedsim.Scenario(**json.loads(sys.argv[1])), folder, Inline())
    peak = 0
    def size():
        total = 0
        for path in folder.rglob("*"):
            try:
                total += path.stat().st_size
            except OSError:
                pass
        return total
    def watch():
        global peak
        while True:
            peak = max(peak, size())
            time.sleep(0.1)
    threading.Thread(target=watch, daemon=True).start()
    asyncio.run(job.execute())
    peak = max(peak, size())
    computing = getattr(job.simulation.installed.learner, "_computing", None)
    scratch = 0 if computing is None else computing.scratch.peak_bytes
    print(json.dumps([peak_memory(), peak, scratch]))
"""


class WatchedLinks(LinkedTensors):
    """Arrays of a run's checkpoints, which also measure the size of all checkpoints on disk.

    Args:
        folder: the run folder.

    Attributes:
        peak_bytes: greatest size of all checkpoints at a time (bytes); a file with several names
            counts once.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.peak_bytes = 0
        self._folder = folder

    def keep_readable(self, folder: Path) -> None:
        self.look()  # all checkpoints are there still
        super().keep_readable(folder)

    def look(self, *_: object) -> None:
        """Measure the present size."""
        self.peak_bytes = max(self.peak_bytes, size_of(self._folder / store.FOLDER))


def _sections(devices: int, hidden: int, rounds: int, **strategy: Any) -> Sections:
    """The scenario of a run with a perceptron of two hidden layers."""
    source = {"kind": "synthetic", "features": 64, "classes": 10}
    partition = {"kind": "synthetic", "log_mean": 1.2, "log_std": 0.1, "least": 3}
    return {
        "seed": 7,
        "data": {"source": source, "partition": partition},
        "model": {"kind": "mlp", "hidden": [hidden, hidden]},
        "training": {"lr": 0.05, "batch_size": 100, "memory": "32 MB"},
        "population": {"devices": devices, "speed": "100 samples/s"},
        "strategy": {"kind": "fedavg", "clients_per_round": devices, **strategy},
        "stop": {"rounds": rounds},
    }


def _with(sections: Sections, **more: Sections) -> Sections:
    """The sections, with further keys."""
    return {**sections, **{name: {**sections.get(name, {}), **keys} for name, keys in more.items()}}


_ADAM = {"kind": "torch", "optimizer": "Adam", "lr": 0.001}
SCENARIOS: dict[str, Sections] = {
    "softmax": {**_sections(50, 8, 20), "model": "logistic"},
    "off": {
        "learning": "off",
        "population": {
            "devices": 20_000,
            "speed": "100 samples/s",
            "samples": {"low": 5, "high": 9},
        },
        "strategy": {"kind": "fedavg", "clients_per_round": 100},
        "stop": {"rounds": 50},
    },
    "fedavg": _sections(40, 1000, 3),
    "fedavg-waves": _with(_sections(40, 1000, 3), training={"memory": "1 GB"}),
    "saved": _with(_sections(10, 1500, 4), checkpoint={"rounds": 1}),
    "best": _with(_sections(10, 1500, 3), evaluation={"keep_best": True}),
    "median": _sections(40, 1000, 2, aggregation="median"),
    "scaffold": _sections(30, 1000, 2, kind="scaffold"),
    "ditto": _with(_sections(60, 1000, 2, kind="ditto"), evaluation={"every": 2}),
    "ditto-saved": _with(
        _sections(40, 1000, 2, kind="ditto"), checkpoint={"rounds": 1}, evaluation={"every": 2}
    ),
    "fedper": _sections(40, 1000, 2, kind="fedper"),
    "local": _sections(60, 1000, 1, kind="local"),
    "kept-adam": _with(_sections(20, 700, 2), training={**_ADAM, "state": "kept"}),
    "cnn": {
        "seed": 7,
        "data": {"source": "digits"},
        "model": {"kind": "cnn5"},
        "population": {"devices": 50, "speed": "100 samples/s"},
        "strategy": {"kind": "fedavg", "clients_per_round": 3, "local_epochs": 1},
        "stop": {"rounds": 2},
    },
}


def _measure(script: str, sections: Sections) -> list[float]:
    """Peaks of memory, run folder and temporary files (bytes), as a process prints them."""
    words = [sys.executable, "-c", script, json.dumps(sections)]
    done = subprocess.run(words, stdout=subprocess.PIPE, check=True, text=True)
    numbers: list[float] = json.loads(done.stdout.splitlines()[-1])
    return numbers


class Figure(NamedTuple):
    """Predicted and measured size, in models."""

    predicted: float
    measured: float

    def is_off(self, *, is_bound: bool) -> bool:
        """Whether the prediction is worse than it may be."""
        if is_bound:
            return not 0.9 * self.measured - 0.5 <= self.predicted <= 2 * self.measured + 1
        return abs(self.predicted - self.measured) > 0.05 * self.measured + 0.5


def normed() -> nn.Module:
    """A perceptron with a layer norm, of 1.2 MB."""
    layers = nn.Linear(60, WIDTH), nn.LayerNorm(WIDTH), nn.ReLU(), nn.Linear(WIDTH, 10)
    return nn.Sequential(nn.Flatten(), *layers)


_MODELS: dict[str, Sections] = {
    "fedbn": {"kind": "module", "factory": "tests.benchmarks.check_memory:normed"},
    "flora": {"kind": "mlp", "hidden": [WIDTH], "lora": {"rank": 60}, "train": "*"},
    "hetlora": {"kind": "mlp", "hidden": [WIDTH], "lora": {"rank": 60}},
}
COHORT = 12


def of_strategy(
    kind: str, devices: int, clients: int, *, saved: bool, width: int = WIDTH, memory: str = "5 MB"
) -> Sections:
    """The scenario of a strategy: three rounds with ``clients`` of the devices in each."""
    params = {**STRATEGIES.get(kind, {}), "kind": kind}
    params.pop("deadline", None)
    params.pop("head", None)
    if "clients_per_round" in params:
        params["clients_per_round"] = clients
    if kind == "cata-fed":
        params |= {"deadline": "1 day", "smallest_part": 2}
    if kind == "refl":
        params["over_selection"] = 1.0
    told = _sections(devices, width, 3)
    told |= {
        "model": _MODELS.get(kind, {"kind": "mlp", "hidden": [width]}),
        "training": {"memory": memory, "lr": 0.01},
        "strategy": params,
        "stop": {"rounds": 3, "simulated_time": "30 day"},
    }
    told["data"]["source"]["features"] = 60
    if kind == "hierfavg":
        told["network"] = {"kind": "tree", "cells": 3, "edge": {"latency": "30 ms"}}
    if saved:
        told["checkpoint"] = {"rounds": 1}
    return told


def models_of(sections: Sections) -> dict[str, Figure]:
    """Predict and measure the models of a run, in this process: name -> figure."""
    scenario = fedsim.Scenario(**sections)
    trial = Beginning(scenario, Inline())
    trial.go(60.0)
    counts = count_models(trial)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name, "run")
        job = Job(scenario, folder, Inline())
        links = WatchedLinks(folder)
        assert job.checkpointer is not None
        job.checkpointer._linked = links
        job.checkpointer.on_saved = links.look
        asyncio.run(job.execute())
        final = sum(path.stat().st_size for path in (folder / "models").glob("*"))
    learner = job.simulation.installed.learner
    scratch = learner._computing.scratch
    size = learner.bytes
    held = counts.memory_bytes + counts.scratch_bytes
    return {
        "held": Figure(held / size, scratch.most_held_bytes / size),
        "TMPDIR": Figure(counts.scratch_bytes / size, scratch.peak_bytes / size),
        "checkpoints": Figure((counts.saved_bytes or 0.0) / size, links.peak_bytes / size),
        "final": Figure(float(counts.final_models), final / size),
    }


def sweep(kinds: Sequence[str]) -> int:
    """Compare the models of strategies; print a line for each scenario, and return the faults."""
    faults = 0
    print(
        f"{'models, predicted / measured':32}{'held':>16}{'TMPDIR':>16}{'checkpoints':>16}{'final':>16}"
    )
    for kind in kinds:
        cohorts = [COHORT, 30] if "clients_per_round" in STRATEGIES.get(kind, {}) else [30]
        for clients, saved in product(cohorts, (False, True)):
            if kind == "tifl":  # of one tier
                clients = min(clients, 8)
            told = of_strategy(kind, 30, clients, saved=saved)
            is_bound = bool(fedsim.Scenario(**told).strategy.unforeseen)
            line = f"{kind:12}{clients:3}{' saved' if saved else '':8}{'at most' if is_bound else '':9}"
            for figure in models_of(told).values():
                is_off = figure.is_off(is_bound=is_bound)
                faults += is_off
                line += f"{figure.predicted:8.1f}/{figure.measured:6.1f}{'!' if is_off else ' '}"
            print(line, flush=True)
    print(f"{faults} faults")
    return faults


def main() -> None:
    """Measure, and print a line for each scenario."""
    arguments = parser(__doc__, strategies=False)
    arguments.add_argument("scenarios", nargs="*")
    options = arguments.parse_args()
    if options.strategies:
        sys.exit(
            bool(sweep(options.scenarios or [kind for kind in REGISTERED if kind != "flower"]))
        )
    names = options.scenarios or SCENARIOS
    fails = False
    print(f"{'MB, predicted / measured':24}{'memory':>22}{'run folder':>24}{'TMPDIR':>24}")
    for name in names:
        predicted = _measure(_FORECAST, SCENARIOS[name])
        measured = _measure(_RUN, SCENARIOS[name])
        line = f"{name:24}"
        limits = (MEMORY_ERROR, DISK_ERROR, SCRATCH_ERROR)
        for forecast, fact, limit in zip(predicted, measured, limits, strict=True):
            error = forecast - fact
            fails = fails or abs(error) > max(limit * fact, _LEAST_BYTES)
            percent = 100 * error / fact if fact else 0.0
            line += f"{forecast / 1e6:8.0f} /{fact / 1e6:6.0f} {percent:+5.0f} %"
        print(line, flush=True)
    sys.exit(fails)


if __name__ == "__main__":
    main()
