"""Predicts DiLoCo's synchronisation and utilisation over shaped links: ``python
scenarios/outside/diloco/predict.py``.
"""

from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean, median

import numpy as np

import fedsim
from fedsim.running.scenarios.outside.rows import Prediction, given, show, write
from fedsim.toolbox.peers.collectives import AllReduce

HERE = Path(__file__).resolve().parent

NODES, BYTES, MBIT = 4, 4 * 30_846_720, 1e6 / 8
RING_BYTES = 2 * (NODES - 1) / NODES * BYTES
TREE_BYTES = 2 * BYTES  # sent by the two inner nodes of a double binary tree of four nodes
BACKWARD = 2 / 3  # share of a step's computing, during which buckets are ready to be sent
DDP_COMPUTING = 0.02068
WAIT_OF_ONE = 1.029  # expected wait of one of four for the last, in standard deviations
VERIFIED = 0.9927
Row = dict[str, str]


@dataclass(frozen=True)
class Rule:
    """The constants of the rule; times in s, the rate in bytes/s."""

    step: float = 0.0245
    after_wait: float = 0.0
    deviation: float = 0.0
    fixed: float = 0.0
    free: float = 10_000 * MBIT
    start: float = 0.0
    besides: float = 0.0
    free_tree: float = 10_000 * MBIT

    def computing(self, period: int) -> float:
        return self.step + self.after_wait / period

    def rate(self, row: Row) -> float:
        if row["verified_gbit_s"]:
            return float(row["verified_gbit_s"]) * 1000 * MBIT
        return self.free if row["bw"] == "unshaped" else VERIFIED * nominal(row["bw"]) * MBIT


def nominal(bandwidth: str) -> float:
    """Mbit/s of ``5g`` or ``200m``."""
    return float(bandwidth[:-1]) * (1000 if bandwidth.endswith("g") else 1)


def window(row: Row) -> tuple[int, int]:
    """Steps and those of warm-up."""
    if row["steps"]:
        return int(row["steps"]), int(row["warmup"])
    period = int(row["H"])
    if row["bw"] == "unshaped":
        return (150, 20) if period < 64 else (200, 20)
    return (100, 10) if period <= 32 else (200, 20)


def synchronisation_s(rule: Rule, row: Row, seed: int) -> tuple[float, int]:
    """The mean synchronisation of node 0 in the window (s), and how many there are."""
    period, (steps, warmup) = int(row["H"]), window(row)
    step = rule.computing(period)
    world = fedsim.build_world(
        {"devices": NODES, "jitter": rule.deviation / step},
        {"kind": "star", "device": {"up": f"{rule.rate(row)!r} B/s"}},
        seed=seed,
    )
    ring, lasted = AllReduce(world, range(NODES), BYTES), []

    def node(me: int):  # type: ignore[no-untyped-def]
        yield world.timeout(rule.start if me == NODES - 1 else 0.0)
        for number in range(1, steps + 1):
            yield world.compute(me, seconds=step)
            if number % period == 0:
                begin = world.now
                yield ring.join(me)
                yield world.timeout(rule.fixed)
                if me == 0 and number > warmup:
                    lasted.append(world.now - begin)

    world.env.run(until=world.env.all_of([world.env.process(node(me)) for me in range(NODES)]))
    return fmean(lasted), len(lasted)


def predict(rule: Rule, row: Row) -> list[Prediction]:
    """Synchronisation, step and utilisation of a cell."""
    if row["algorithm"] == "ddp":
        rate = rule.free_tree if row["bw"] == "unshaped" else rule.rate(row)
        computing = DDP_COMPUTING
        sync = TREE_BYTES / rate - BACKWARD * computing
        step = computing + sync + 0.005
    else:
        seeds = [synchronisation_s(rule, row, seed) for seed in (1, 2, 3)]
        sync, count = fmean(each for each, _ in seeds), seeds[0][1]
        steps, warmup = window(row)
        computing = rule.computing(int(row["H"]))
        step = computing + sync * count / (steps - warmup) + rule.besides
    cell = f"{row['algorithm']} H={row['H']} {row['bw']}"
    figures = {"sync_mean_ms": 1e3 * sync, "step_ms": 1e3 * step, "cu": computing / step}
    known = bool(row.get("cu"))
    return [
        Prediction(what, cell, float(row[what]) if known else None, value, known)
        for what, value in figures.items()
    ]


def fitted(rows: list[Row]) -> Rule:
    """The rule, fitted to what the README says."""
    diloco = [row for row in rows if row["algorithm"] == "diloco"]
    sync = {(int(row["H"]), row["bw"]): float(row["sync_mean_ms"]) / 1e3 for row in diloco}
    inverse = np.array([[1.0, 1 / int(row["H"])] for row in diloco])
    step, after_wait = np.linalg.lstsq(
        inverse, np.array([float(row["compute_mean_ms"]) / 1e3 for row in diloco])
    )[0].tolist()
    deviation = (sync[8, "unshaped"] - sync[1, "unshaped"]) / (WAIT_OF_ONE * (8**0.5 - 1))
    shaped = next(row for row in diloco if row["bw"] == "1g")
    wait = WAIT_OF_ONE * deviation
    fixed = sync[1, "1g"] - RING_BYTES / Rule().rate(shaped) - wait
    free = RING_BYTES / (sync[1, "unshaped"] - fixed - wait)
    at_start = [sync[32, "unshaped"] * 4, sync[128, "unshaped"] * 1]
    usual = [
        count * (sync[1, "unshaped"] + wait * (period**0.5 - 1))
        for period, count in ((32, 4), (128, 1))
    ]
    start = fmean(whole - part for whole, part in zip(at_start, usual, strict=True))
    rest = [
        float(row["step_ms"]) - float(row["compute_mean_ms"])
        - float(row["sync_mean_ms"]) * int(row["syncs"]) / (int(row["steps"]) - int(row["warmup"]))
        for row in diloco
    ]  # fmt: skip
    rule = Rule(step, after_wait, deviation, fixed, free, start, median(rest) / 1e3)
    ddp = next(row for row in rows if row["algorithm"] == "ddp")
    exchange_s = float(ddp["sync_mean_ms"]) / 1e3 + BACKWARD * DDP_COMPUTING
    return replace(rule, free_tree=TREE_BYTES / exchange_s)


def main() -> None:
    """Print both tables, and write the predictions."""
    rows = given(HERE)
    show("before anything is fitted", [each for row in rows for each in predict(Rule(), row)])
    rule = fitted(rows)
    print(rule)
    bandwidths = ("50m", "100m", "200m", "500m", "1g", "2g", "5g", "unshaped")
    asked = [("ddp", 1, bandwidth) for bandwidth in bandwidths]
    for algorithm in ("diloco", "localsgd"):
        asked += [
            (algorithm, period, bandwidth)
            for period in (1, 2, 4, 8, 16, 32, 64, 128)
            for bandwidth in bandwidths
        ]
    known = {(row["algorithm"], int(row["H"]), row["bw"]) for row in rows}
    blank = {"verified_gbit_s": "", "steps": "", "warmup": ""}
    rows += [
        {"algorithm": a, "H": str(h), "bw": b} | blank
        for a, h, b in asked
        if (a, h, b) not in known
    ]
    predictions = [each for row in rows for each in predict(rule, row)]
    show("after", predictions)
    write(HERE / "predicted.csv", predictions)


if __name__ == "__main__":
    main()
