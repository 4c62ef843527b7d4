"""What scripts here share: their arguments, runs in processes of their own, drawn cases one by
one, and rounds of learning.
"""

import argparse
import atexit
import json
import random
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import fedsim
from fedsim.lab.audit import audit
from tests import children
from tests.children import adopt_orphans, end_others

Result = dict[str, Any]


def parser(doc: str | None, **defaults: float | bool | str) -> argparse.ArgumentParser:
    """Arguments of a script: an option for each default, of its type."""
    made = argparse.ArgumentParser(
        description=doc, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for name, default in defaults.items():
        if isinstance(default, bool):
            made.add_argument(f"--{name}", action="store_true")
        else:
            made.add_argument(f"--{name}", type=type(default), default=default)
    return made


def start(*words: str | Path, **how: Any) -> "subprocess.Popen[Any]":
    """``fedsim WORDS`` in a process of its own; ``how`` is for ``subprocess.Popen``."""
    adopt_orphans()
    atexit.register(end_others, set())  # also if this script fails
    return children.fedsim(*words, **how)


def agree(one: Path, other: Path) -> bool:
    """Whether two run folders have the same events and models."""
    summaries = [json.loads((folder / "summary.json").read_text()) for folder in (one, other)]
    return all(
        summaries[0][name] == summaries[1][name] for name in ("events_sha256", "models_sha256")
    )


def is_sound(run: Path) -> bool:
    return not any(audit(run).values())


def whole_run(sections: dict[str, Any], folder: Path, *options: str) -> tuple[Path, Path, float]:
    """A run that is never stopped: its scenario's file, its folder, and how long it took (s)."""
    path, whole = folder / "scenario.toml", folder / "whole"
    path.write_text(fedsim.Scenario(**sections).to_toml(), encoding="utf-8")
    began = time.perf_counter()
    start("run", path, "--out", whole, "--quiet", "--allow-code", *options).wait()
    return path, whole, time.perf_counter() - began


def tried(cases: int, seed: int, one: Callable[[random.Random, Path], Result]) -> list[Result]:
    """What comes of so many cases, each with draws and a folder of its own; prints a line each."""
    results = []
    for number in range(cases):
        with tempfile.TemporaryDirectory() as folder:
            results.append(one(random.Random(f"{seed}/{number}"), Path(folder)))
        print(json.dumps(results[-1]), flush=True)
    return results


async def round_s(core: Any, clients: int, epochs: int, rounds: int) -> tuple[float, float]:
    """Median seconds of a round of federated averaging with all clients, and of a test; the
    first round does not count.
    """
    from fedsim.common.training import Training

    model, training, testing = core.initial(), [], []
    for number in range(rounds + 1):
        begin = time.perf_counter()
        updates = [
            core.train(Training(model, epochs), device, key=number) for device in range(clients)
        ]
        model = core.mix([(update, 1 / clients) for update in updates])
        await core.value(model)
        trained = time.perf_counter()
        await core.evaluate({"global": (model, None)})
        training.append(trained - begin)
        testing.append(time.perf_counter() - trained)
    return median(training[1:]), median(testing[1:])
