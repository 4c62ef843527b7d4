"""Memory of runs without learning whose model has 810 GB: it must not depend on the model.

    python -m tests.benchmarks.huge                 # every strategy, and every part beside FedAvg and SCAFFOLD
    python -m tests.benchmarks.huge scaffold        # these strategies alone, with every part
    python -m tests.benchmarks.huge --sample 30     # as many of all

Each case is a process of its own, in which a scenario is checked and run for two rounds. The model
is a size alone, or a perceptron of as many bytes for a strategy that needs tensors. A case is
refused by name before the run, or prints the memory that it has used beyond this process. Exit
status 1 if a case uses more than ``MOST``, or fails.
"""

import asyncio
import os
import random
import resource
import sys
import traceback
from typing import Any, NamedTuple

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import FedsimError
from fedsim.lab.whole_forecast import forecast_lines
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES
from tests.benchmarks.parts_matrix import OWN, PARTS
from tests.benchmarks.script import parser

Sections = dict[str, Any]
MOST = 300e6
"""Bytes; a model has 2,700 times as many."""
_LIMIT = 8 << 30  # of addresses, so that a case that would take all memory ends by itself
_SIZE: Sections = {"kind": "size", "bytes": "810 GB", "flops_per_sample": 1e9}
_WIDE: Sections = {"kind": "mlp", "hidden": [450_000, 450_000]}
_ADAPTERS: Sections = {**_WIDE, "lora": {"rank": 4}}
_MODELS: dict[str, Sections] = {
    "fedper": _WIDE,
    "fedrep": _WIDE,
    "fedbn": {"kind": "module", "factory": "tests.benchmarks.hashes:normed"},
    "heterofl": _WIDE,
    "hetlora": _ADAPTERS,
    "flora": {**_ADAPTERS, "train": "*"},
    "moon": _WIDE,
}
_PARAMS: dict[str, Sections] = {
    "fedper": {"clients_per_round": 6, "head": ["*.bias"]},
    "fedrep": {"clients_per_round": 6, "head": ["*.bias"], "head_epochs": 2},
    "cata-fed": {"clients_per_round": 4, "clusters": 2, "smallest_part": 4, "deadline": "1 day"},
}
_WITHOUT_COHORT = {"d-psgd", "diloco", "epidemic", "gossip", "local-sgd"}


class Case(NamedTuple):
    """A strategy, and a part beside it.

    Attributes:
        name: the strategy, with its mode as in ``parts_matrix.OWN``.
        family: ``selection``, ``aggregation``, ``server``, ``codec`` or ``attack``; empty for none.
        part: the part as the scenario has it.
    """

    name: str
    family: str = ""
    part: Any = None

    def __str__(self) -> str:
        return f"{self.name} {self.family} {self.part}" if self.family else self.name


ATTACKS = ("label-flip", "sign-flip", "gaussian", "scaled")


def cases(names: list[str]) -> list[Case]:
    """All cases of some strategies."""
    found = [Case(name) for name in names]
    families = {**PARTS, "attack": list(ATTACKS)}
    for name in names:
        for family, parts in families.items():
            found += [Case(name, family, part) for part in parts]
    return found


def all_cases() -> list[Case]:
    """Every strategy alone, and FedAvg and SCAFFOLD with every part."""
    names = sorted({*STRATEGIES.kinds, *OWN} - {"flower"})
    return [*map(Case, names), *(case for case in cases(["fedavg", "scaffold"]) if case.family)]


def sections(case: Case) -> Sections:
    """The scenario of a case."""
    kind = case.name.partition("/")[0]
    params = _PARAMS.get(case.name, OWN.get(case.name))
    if params is None:
        params = {} if kind in _WITHOUT_COHORT else {"clients_per_round": 7}
    strategy = {"kind": kind, **params}
    if case.family in ("selection", "aggregation", "server", "secure_aggregation"):
        strategy[case.family] = case.part
    found: Sections = {
        "seed": 4,
        "learning": "off",
        "data": {"source": "digits"},
        "model": _MODELS.get(kind, _SIZE),
        "population": {"devices": 12, "samples": {"low": 20, "high": 60}, "speed": "9 samples/s"},
        "network": {"kind": "star", "device": {"down": "10 GB/s", "up": "10 GB/s"}},
        "strategy": strategy,
        "stop": {"rounds": 2, "simulated_time": "30 day"},
    }
    if kind == "hierfavg":
        found["network"] = {
            "kind": "tree",
            "cells": 2,
            "device": {"down": "10 GB/s", "up": "10 GB/s"},
            "edge": {"latency": "30 ms"},
        }
    if case.family == "codec":
        found["messages"] = {"up": case.part}
    if case.family == "attack":
        found["malicious"] = {"attack": case.part, "devices": [5]}
    return found


def played(case: Case) -> str:
    """Check and run a case in this process; the reason if it is refused, else the rounds."""
    try:
        scenario = fedsim.Scenario(**sections(case))
        forecast_lines(scenario, Inline(), 0.1)
        summary = asyncio.run(Job(scenario, None, Inline()).execute()).summary
    except FedsimError as error:
        return f"refused: {error}"
    return f"{summary['rounds']} rounds"


def measured(case: Case) -> tuple[float, str]:
    """Memory (bytes) of a case in a process of its own beyond this one, and its result."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.close(reader)
        status = 0
        try:
            resource.setrlimit(resource.RLIMIT_AS, (_LIMIT, _LIMIT))
            before = _peak()
            said = f"{_peak_after(case, before)}"
        except BaseException as error:
            status = 1
            last = traceback.format_exc().strip().splitlines()[-4:]
            said = f"nan {type(error).__name__}: {' | '.join(last)}"
        os.write(writer, said.encode())
        os._exit(status)
    os.close(writer)
    with os.fdopen(reader) as answer:
        used, _, result = answer.read().partition(" ")
    os.waitpid(child, 0)
    return float(used or "nan"), result or "ended"


def _peak_after(case: Case, before: float) -> str:
    result = played(case)
    return f"{_peak() - before} {result}"


def _peak() -> float:
    return 1024.0 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def main() -> None:
    """Measure, and print a line for each case."""
    arguments = parser(__doc__, sample=0)
    arguments.add_argument("names", nargs="*", metavar="STRATEGY")
    options = arguments.parse_args()
    chosen = cases(options.names) if options.names else all_cases()
    if options.sample:
        chosen = random.Random(1).sample(chosen, options.sample)
    measured(Case("fedavg"))
    faults = 0
    for case in chosen:
        used, result = measured(case)
        faults += not used < MOST
        print(f"{used / 1e6:7.1f} MB  {case}: {result}", flush=True)
    print(f"{len(chosen)} cases, {faults} faults")
    sys.exit(bool(faults))


if __name__ == "__main__":
    main()
