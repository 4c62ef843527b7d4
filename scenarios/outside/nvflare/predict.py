"""Predicts how long devices with delays take, synchronous and asynchronous: ``python
scenarios/outside/nvflare/predict.py``.
"""

from pathlib import Path
from typing import Any

import numpy as np

import fedsim
from fedsim.running.scenarios.outside.nvflare.app import MODULE
from fedsim.running.scenarios.outside.rows import Prediction, given, show, write

HERE = Path(__file__).resolve().parent
DRAWS = range(1, 201)


def minutes(row: dict[str, str], training_s: float, draw: int) -> float:
    """Simulated minutes of a job; ``draw``: of types and delays, 0 for none."""
    devices, sync = int(row["devices"]), row["mode"] == "sync"
    strategy: dict[str, Any] = {"kind": f"{MODULE}:DelayedAsync", "concurrency": devices}
    if sync:
        strategy = {"kind": f"{MODULE}:Delayed", "clients_per_round": devices}
    scenario = fedsim.Scenario(
        name=f"NVFlare, {row['mode']}",
        learning="off",
        model={"kind": "size", "bytes": "4 B", "flops_per_sample": 1.0},
        population={
            "devices": devices,
            "speed": f"{1 / training_s!r} samples/s",
            "samples": {"kind": "uniform", "low": 1, "high": 1},
        },
        network={"kind": "star"},
        strategy=strategy | {"draw": draw},
        stop={"rounds": int(row["versions"])},
    )
    simulation = fedsim.Simulation(scenario)
    simulation.env.run(until=simulation.ended)
    return simulation.env.now / 60


def main() -> None:
    """The table: rows without delays, and mean and range over the draws with them."""
    predictions = []
    rows = given(HERE)
    for row in rows:
        measured = float(row["minutes_measured"])
        a_round = measured * 60 * int(row["updates_per_version"]) / int(row["updates_total"])
        training_s = a_round if row["mode"] == "sync" else a_round * int(row["devices"])
        without = minutes(row, training_s, 0)
        found = np.array([minutes(row, training_s, draw) for draw in DRAWS])
        predictions.append(
            Prediction("min", f"{row['mode']}, no delay", measured, without, given=True)
        )
        for what, value in (
            ("min", found.mean()),
            ("min, least of 200 draws", found.min()),
            ("min, most of 200 draws", found.max()),
            ("min, 5 % of draws below", np.quantile(found, 0.05)),
            ("min, 5 % of draws above", np.quantile(found, 0.95)),
            ("min more than without delay", found.mean() - measured),
        ):
            predictions.append(
                Prediction(what, f"{row['mode']}, delay", None, float(value), given=False)
            )
            print(f"  {what:28} {row['mode']}, delay: {value:.2f}")
    show("NVFlare", predictions)
    write(HERE / "predicted.csv", predictions)


if __name__ == "__main__":
    main()
