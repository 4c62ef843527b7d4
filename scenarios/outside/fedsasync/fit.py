"""Fits FedSaSync to the cells without slow clients: ``python
scenarios/outside/fedsasync/fit.py`` (two minutes).

The fit asks for thousands of runs, so the app is here a second time, as one loop without fedsim.
It checks the first one, too: both give the same rates (``--check``), within the noise of the
seeds.
"""

import heapq
import json
import math
import random
import sys
from collections import deque
from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np
from scipy.optimize import minimize

from fedsim.running.scenarios.outside.fedsasync.predict import HERE, NODES, PARTITIONS, ROUNDS, rate
from fedsim.running.scenarios.outside.rows import given

POLLS, TESTS_POLLED, ENGINE, SLEEPS = 0.05, 0.1, 0.1, 5.0
NAMES = ("cold", "mnist", "cifar10", "fixed", "jitter", "slowdown", "server")
STARTS = {0.1: (7.39, 0.109e-3, 0.172e-3, 0.0579, 0.0321, 0.119, 0.0475)}
"""By the size of the first simplex: the end of a first fit, of 110 runs of the table from
(7.3, 0.113e-3, 0.171e-3, 0.068, 0.033, 0.116, 0.06). What fits the cells best is kept."""
RUNS = 60  # of the whole table for each
SEEDS = (1,)
TEST = 0.74
"""A test's sample as a share of a training's: processor time of the app's own functions, on
another machine.
"""

Stage = tuple[str, float]
"""``core``: so many seconds of a core; ``sleep``: so many seconds."""


class Machine:
    """Actors that share cores, on a clock of their own."""

    def __init__(self, fitted: dict[str, Any], seed: int) -> None:
        self.now, self.random, self.jitter = 0.0, random.Random(seed), fitted["jitter"]
        counts, work = zip([1.0, 1.0], *fitted["throughput"], strict=True)
        self._rates = [
            0.0,
            *(float(np.interp(busy, counts, work)) / busy for busy in range(1, NODES + 1)),
        ]
        self._served, self._at, self._running = 0.0, 0.0, 0
        self._ends: list[tuple[float, int]] = []
        self._timers: list[tuple[float, int, str, int]] = []
        self._free, self._waiting = NODES, deque[int]()
        self._stages: list[deque[Stage]] = []
        self.replies: set[int] = set()

    def message(self, when: float, stages: Sequence[Stage]) -> int:
        """A message that the engine takes up at a time (s); returns its number."""
        number = len(self._stages)
        self._stages.append(deque(stages))
        heapq.heappush(self._timers, (when, number, "take", number))
        return number

    def core(self, seconds: float) -> Stage:
        """A stage of so many seconds of a core, with jitter."""
        return "core", seconds * math.exp(self.random.gauss(0, self.jitter) - self.jitter**2 / 2)

    def run(self, until: float) -> None:
        """Let time pass."""
        while True:
            left = max(0.0, self._ends[0][0] - self._served) if self._ends else math.inf
            end = self._at + left / self._rates[self._running] if self._ends else math.inf
            timer = self._timers[0][0] if self._timers else math.inf
            if min(end, timer) > until:
                break
            self._go_to(min(end, timer))
            if timer <= end:
                _, _, what, number = heapq.heappop(self._timers)
                if what == "take" and not self._free:
                    self._waiting.append(number)
                    continue
                self._free -= what == "take"
            else:
                number = heapq.heappop(self._ends)[1]
                self._running -= 1
            self._go_on(number)
        self._go_to(until)

    def _go_to(self, time: float) -> None:
        self._served += (time - self._at) * self._rates[self._running]
        self.now = self._at = time

    def _go_on(self, number: int) -> None:
        stages = self._stages[number]
        if not stages:
            self.replies.add(number)
            self._free += 1
            if self._waiting:
                self._free -= 1
                self._go_on(self._waiting.popleft())
            return
        what, seconds = stages.popleft()
        if what == "sleep":
            heapq.heappush(self._timers, (self.now + seconds, number, what, number))
        else:
            self._running += 1
            heapq.heappush(self._ends, (self._served + seconds, number))


def messages_a_second(
    setting: str, slow: str, variant: str, seed: int, fitted: dict[str, Any]
) -> float:
    """The app's rate in one run."""
    data, rows = setting.partition("_")[0], PARTITIONS[setting]
    needed = NODES if variant == "FedAvg" else int(variant[1:])
    slept, rounds = round(float(slow) * NODES), ROUNDS[data]
    machine = Machine(fitted, seed)
    phase, sample, fixed = machine.random.random() * ENGINE, fitted["sample"][data], fitted["fixed"]
    cold, server = fitted["cold"], fitted["server"]
    open_nodes: dict[int, int] = {}
    seconds, received = 0.0, 0
    for number in range(rounds):
        began, got = machine.now, 0
        for node in range(NODES):
            if node not in open_nodes:
                stages = [machine.core(fixed + sample * 0.8 * rows[node])]
                if node < slept:
                    stages.insert(0, ("sleep", SLEEPS))
                if not number:
                    stages.insert(0, machine.core(cold))
                open_nodes[node] = machine.message(_next_look(machine.now, phase), stages)
        while True:
            replied = [node for node, message in open_nodes.items() if message in machine.replies]
            for node in replied:
                del open_nodes[node]
            got += len(replied)
            if got >= needed if number < rounds - 1 else not open_nodes:
                break
            machine.run(machine.now + POLLS)
        seconds, received = seconds + machine.now - began, received + got
        machine.run(machine.now + server)
        look, tested = _next_look(machine.now, phase), fitted["test"] * sample * 0.2
        tests = {
            machine.message(look, [machine.core(fixed + tested * rows[node])])
            for node in range(NODES)
        }
        while not tests <= machine.replies:
            machine.run(machine.now + TESTS_POLLED)
        machine.run(machine.now + server / 2)
    return received / seconds


def _next_look(now: float, phase: float) -> float:
    return math.ceil((now - phase) / ENGINE) * ENGINE + phase


def calibration(logarithms: Any) -> dict[str, Any]:
    """The numbers of ``calibration.json``."""
    told = dict(zip(NAMES, np.exp(logarithms).tolist(), strict=True))
    curve = [
        [busy, busy / (1 + told["slowdown"] * (busy - 1))] for busy in (2, 4, 6, 8, 12, 16, 20)
    ]
    sample = {name: float(f"{told[name]:.3g}") for name in ("mnist", "cifar10")}
    kept = {name: float(f"{told[name]:.3g}") for name in ("cold", "fixed", "jitter", "server")}
    throughput = [[count, float(f"{work:.3g}")] for count, work in curve]
    return kept | {"test": TEST, "sample": sample, "throughput": throughput}


def main(*words: str) -> None:
    """Fit, and write ``calibration.json``; with ``--check`` compare both models of the app
    instead.
    """
    rows = [row for row in given(HERE) if row["fraction_slow"] == "0.0"]
    cells = [(row["setting"], row["fraction_slow"], row["variant"]) for row in rows]
    means, sds = (np.array([float(row[name]) for row in rows]) for name in ("rate_mean", "rate_sd"))

    def rates(fitted: dict[str, Any]) -> Any:
        found = {
            cell: fmean(messages_a_second(*cell, seed, fitted) for seed in SEEDS)
            for cell in cells
            if cell[2] != "FedAvg"
        }
        return np.array(
            [
                found[setting, slow, variant.replace("FedAvg", "M20")]
                for setting, slow, variant in cells
            ]
        )

    def cost(logarithms: Any) -> float:
        errors = (rates(calibration(logarithms)) - means) / np.maximum(2 * sds, 0.05 * means)
        return float(np.minimum(errors**2, 25.0).sum())

    if "--check" in words:
        fitted = json.loads((HERE / "calibration.json").read_text(encoding="utf-8"))
        for cell, found in zip(cells, rates(fitted), strict=True):
            print(f"{' '.join(cell):30} {found:8.3f} {rate(*cell, 1):8.3f} by fedsim")
        return
    ends = []
    for size, start in STARTS.items():
        best = np.log(start)
        simplex = np.vstack(
            [
                best,
                *(
                    best + size * (1 if at % 2 else -1) * unit
                    for at, unit in enumerate(np.eye(len(best)))
                ),
            ]
        )
        options = {"initial_simplex": simplex, "maxfev": RUNS, "xatol": 1e-2, "fatol": 0.05}
        ends.append(minimize(cost, best, method="Nelder-Mead", options=options))
        print(f"{ends[-1].fun:.2f}", calibration(ends[-1].x), flush=True)
    least = min(ends, key=lambda found: float(found.fun))
    (HERE / "calibration.json").write_text(
        json.dumps(calibration(least.x), indent=2) + "\n", encoding="utf-8"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
