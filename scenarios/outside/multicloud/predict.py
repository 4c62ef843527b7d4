"""Predicts training over zones, clouds and continents: ``python
scenarios/outside/multicloud/predict.py``.
"""

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

import fedsim
from fedsim.running.scenarios.outside.rows import Prediction, given, show, write
from fedsim.toolbox.peers.collectives import AllReduce

HERE = Path(__file__).resolve().parent
SAMPLES = 32_768
PARAMETERS = {"CV": 197.8e6, "NLP": 560.1e6}
PIECES = 16
FASTER = {"T4": 1.0, "A10": 600 / 320, "RTX8000": 672 / 320, "8xV100": 8 * 900 / 320}

GPUS = {"8xV100": 8}  # of a machine that has several
MEMORY_GB = {"T4": 16, "A10": 24, "RTX8000": 48, "8xV100": 32}  # of a GPU, by datasheets
COSTS = ("host", "memory")

Peers = list[tuple[str, str]]
"""The machine and the site of each peer."""


def placements() -> dict[str, Peers]:
    """All experiments."""
    continents = ("us", "eu", "asia", "aus")
    found: dict[str, Peers] = {f"A-{n}": [("T4", "us")] * n for n in (1, 2, 3, 4, 6, 8)}
    found |= {f"B-{n}": [("T4", "us")] * (n // 2) + [("T4", "eu")] * (n // 2) for n in (2, 4, 6, 8)}
    for n, parts in ((3, 3), (4, 4), (6, 3), (8, 4)):
        found[f"C-{n}"] = [("T4", place) for place in continents[:parts] for _ in range(n // parts)]
    for number, other in enumerate(("gc", "aws", "azure"), 1):
        found[f"D-{number}"] = [("T4", "gc")] * 2 + [("T4", other)] * 2
    for name, first in (("E", "RTX8000"), ("F", "8xV100")):
        for letter, machine, place in (
            ("A", "T4", "T4 eu"),
            ("B", "T4", "T4 us"),
            ("C", "A10", "A10 us"),
        ):
            for n in (1, 2, 4, 8):
                found[f"{name}-{letter}-{n}"] = [(first, first)] + [(machine, place)] * n
    return found


def exchange_s(peers: Peers, parameters: float) -> float:
    """The butterfly alone (s)."""
    sites = [site for _, site in peers]
    world = fedsim.build_world(
        {"devices": len(sites)},
        {"kind": "regions", "of": sites, "file": str(HERE / "connections.csv"), "connections": 1},
    )
    averaging = AllReduce(world, range(len(sites)), 2 * parameters, "butterfly", PIECES)
    world.env.run(until=world.env.all_of([averaging.join(rank) for rank in range(len(sites))]))
    return world.now


@dataclass(frozen=True)
class Rule:
    """Samples/s of a peer with a T4 by model, and the four constants of averaging (s; s a peer; s
    a million parameters, twice).

    ``single`` has the samples/s of a T4 that averages with nobody; ``cost`` says what becomes of
    the difference on other machines: None scales it, ``host`` keeps its seconds a sample and GPU,
    ``memory`` drops it on GPUs with more memory.
    """

    speed: dict[str, float]
    averaging: tuple[float, float, float, float] = (0.0, 0.0, 0.0, 0.0)
    single: dict[str, float] | None = None
    cost: str | None = None

    def speed_of(self, machine: str, model: str) -> float:
        """Samples/s of a peer's computing."""
        if self.cost is None or self.single is None:
            return self.speed[model] * FASTER[machine]
        alone = self.single[model]
        if self.cost == "memory":
            has_more = MEMORY_GB[machine] > MEMORY_GB["T4"]
            return FASTER[machine] * (alone if has_more else self.speed[model])
        gpus = GPUS.get(machine, 1)
        host_s = 1 / self.speed[model] - 1 / alone
        return gpus / (gpus / (alone * FASTER[machine]) + host_s)

    def predict(
        self, name: str, model: str, peers: Peers, row: dict[str, str] | None
    ) -> list[Prediction]:
        computing = SAMPLES / sum(self.speed_of(machine, model) for machine, _ in peers)
        averaging = 0.0
        if len(peers) > 1:
            fixed, each, converting, sending = self.averaging
            n, millions = len(peers), PARAMETERS[model] / 1e6
            machines = millions * (converting + sending * 2 * (n - 1) / n)
            averaging = fixed + each * n + max(machines, exchange_s(peers, PARAMETERS[model]))
        epoch = computing + averaging
        cell = f"{name} {model}"
        figures = {"sps": SAMPLES / epoch, "epoch_s": epoch, "comm_s": averaging}
        return [
            Prediction(
                what, cell, float(row[what]) if row and row[what] else None, value, row is not None
            )
            for what, value in figures.items()
        ]


def fitted(rows: list[dict[str, str]]) -> Rule:
    """The rule, fitted to what the README says."""
    runs = [row for row in rows if row["kind"] == "run"]
    speed, equations, took = {}, [], []
    for row in runs:
        n, millions = int(row["peers"]), PARAMETERS[row["model"]] / 1e6
        equations.append([1.0, n, millions, millions * 2 * (n - 1) / n])
        took.append(float(row["comm_s"]))
        if n == 2:
            speed[row["model"]] = SAMPLES / (2 * (float(row["epoch_s"]) - float(row["comm_s"])))
    fixed, each, converting, sending = np.linalg.lstsq(
        np.array(equations), np.array(took), rcond=None
    )[0].tolist()
    return Rule(speed, (fixed, each, converting, sending))


def main() -> None:
    """Print both tables, and write the predictions."""
    rows = [row for row in given(HERE) if row["kind"] in ("base", "run")]
    measured = {(row["exp"], row["model"]): row for row in rows}
    single = {row["model"]: float(row["sps"]) for row in rows if row["kind"] == "base"}
    cells = [
        (name, model, peers)
        for name, peers in placements().items()
        for model in PARAMETERS
        if name != "A-1"
    ]
    known = [cell for cell in cells if cell[:2] in measured]
    before = Rule(single)
    show(
        "before anything is fitted",
        [each for cell in known for each in before.predict(*cell, measured[cell[:2]])],
    )
    rule = fitted(rows)
    print(rule)
    predictions = [each for cell in cells for each in rule.predict(*cell, measured.get(cell[:2]))]
    for cost in COSTS:
        other = replace(rule, single=single, cost=cost)
        for name, model, peers in cells:
            if all(machine == "T4" for machine, _ in peers):
                continue
            for each in other.predict(name, model, peers, None):
                predictions.append(each._replace(what=f"{each.what}, cost of the {cost}"))
    show("after", predictions)
    write(HERE / "predicted.csv", predictions)
    order = sorted((row for row in predictions if row.what == "sps"), key=lambda row: row.predicted)
    print("from the slowest: " + ", ".join(f"{row.cell} {row.predicted:.0f}" for row in order))


if __name__ == "__main__":
    main()
