"""Rounds of two Raspberry Pis, one of which throttles: see README.md for the rule.

python scenarios/outside/testbed/predict.py
"""

import sys
import tempfile
from itertools import groupby
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent))

import rows as tables  # type: ignore[import-not-found,unused-ignore]  # noqa: E402

import fedsim  # noqa: E402
from fedsim.records.reading import RunFolder  # noqa: E402

ROUNDS = 10
# of a slow board's speed; between the heats at which it becomes slow and fast
FACTOR, GAP = 0.4, 0.02
WARMS_S = 122.0  # fitted, as the two below
SLOW_AT = {"resnet18_cifar": 0.50}
SLOW_AT_OTHERS = 0.78
HOT_C = 80.0


def hot(row: dict[str, str]) -> bool:
    """Whether a board throttles, by its first round."""
    return bool(row["temp_C"]) and (
        float(row["temp_C"]) >= HOT_C
        or (row["run"], row["client"]) == ("pi-10k-squeezenet", "pi127")
    )


def trained_s(model: str, seconds: list[float], warm: list[int], rounds: int) -> list[list[float]]:
    """Seconds of training of each client in each round, by fedsim; ``seconds`` on a cool board,
    ``warm`` the hot ones.
    """
    slow_at = SLOW_AT.get(model, SLOW_AT_OTHERS)
    heat = {
        "kind": "heat",
        "devices": warm,
        "factor": FACTOR,
        "warms": f"{WARMS_S} s",
        "slow_at": slow_at,
        "fast_at": slow_at - GAP,
    }
    scenario = fedsim.Scenario(
        learning="off",
        model={"kind": "size", "bytes": "1 kB"},
        population={
            "devices": len(seconds),
            "speed": [f"{1000 / each!r} samples/s" for each in seconds],
            "samples": {"low": 1000, "high": 1000},
        },
        strategy={"kind": "fedavg", "clients_per_round": len(seconds)},
        world={"processes": [heat] if warm else []},
        stop={"rounds": rounds},
    )
    with tempfile.TemporaryDirectory() as folder:
        fedsim.run(scenario, folder)
        steps = [event for event in RunFolder(Path(folder)).events if event["step"] == "train"]
    found: list[list[float]] = [[] for _ in seconds]
    begun: dict[int, float] = {}
    for step in steps:
        if step["kind"] == "step-start":
            begun[step["device"]] = step["time"]
        else:
            found[step["device"]].append(step["time"] - begun[step["device"]])
    return found


def main() -> None:
    """Predict all rounds of the given runs."""
    found, given = [], tables.given(HERE)
    for run, of_run in groupby(given, key=lambda row: row["run"]):
        rows = list(of_run)
        firsts = [row for row in rows if row["round"] == "1"]
        measured = {(row["client"], int(row["round"])): float(row["train_s"]) for row in rows}
        least = min(float(row["train_s"]) / int(row["samples"]) for row in firsts)
        cool = [
            least * int(row["samples"]) if hot(row) else float(row["train_s"]) for row in firsts
        ]
        warm = [place for place, row in enumerate(firsts) if hot(row)]
        rounds = 20 if run.endswith("r20") else ROUNDS
        times = trained_s(firsts[0]["model"], cool, warm, rounds)
        if warm:
            print(
                f"{run}: first round {times[warm[0]][0]:.1f} s by heat, "
                f"{float(firsts[warm[0]]['train_s']):.1f} measured"
            )
        scaled = [
            [each / of[0] * float(row["train_s"]) for each in of]
            for row, of in zip(firsts, times, strict=True)
        ]
        for number in range(1, rounds + 1):
            for row, of in zip(firsts, scaled, strict=True):
                known = measured.get((row["client"], number))
                cell = f"{run}, {row['client']}, round {number}"
                found.append(
                    tables.Prediction("training, s", cell, known, of[number - 1], known is not None)
                )
            whole = [measured.get((row["client"], number)) for row in firsts]
            real = None if None in whole else max(filter(None, whole))
            slowest = max(of[number - 1] for of in scaled)
            found.append(
                tables.Prediction(
                    "round, s", f"{run}, round {number}", real, slowest, real is not None
                )
            )
    for row in given:
        if row["round"] == "1":
            cell = f"{row['client']}, {row['model']}, batch {row['B']} ({row['run']})"
            each = float(row["train_s"]) / int(row["samples"]) / int(row["E"])
            found.append(
                tables.Prediction("other partitions, s a sample and epoch", cell, each, each, True)
            )
    tables.write(HERE / "predicted.csv", found)
    tables.show("Rounds", [row for row in found if row.given])


if __name__ == "__main__":
    main()
