"""Who is valid, who is a straggler and who splits its data, by uplink, with the upload's time and without.

    python scenarios/stragglers/links.py

Runs ``links.toml`` beside this file twice and prints a table in Markdown.
"""

import tempfile
from pathlib import Path

import pandas as pd

import fedsim

SCENARIO = Path(__file__).with_suffix(".toml")
COLUMNS = ["reserved", "uplink", "upload alone", "trainings", "valid", "epochs", "split", "after T"]


def rows(upload_time: str) -> list[list[str]]:
    """A row for each uplink: of how many trainings and devices, which share did what."""
    with tempfile.TemporaryDirectory() as folder:
        scenario = fedsim.load(SCENARIO, [f"strategy.upload_time={upload_time}"])
        fedsim.run(scenario, Path(folder) / "run", executor="inline")
        run = fedsim.load_run(Path(folder) / "run")
        devices, events = run.devices, run.events
    budget = next(data["training_limit"] for data in events["data"] if "training_limit" in data)
    rate = devices.set_index("device")["link_up"]
    steps = events[events["kind"] == "step-end"]
    begins = events[(events["kind"] == "step-start") & (events["step"] == "train")]
    began = begins.set_index("task")["time"]
    trained = steps[steps["step"] == "train"].set_index("task")
    sent = steps[steps["step"] == "upload"].set_index("task")["time"].reindex(trained.index)
    table = pd.DataFrame(
        {
            "rate": trained["device"].map(rate),
            "epochs": trained["data"].map(lambda data: data["epochs"]),
            "after": sent - began.reindex(trained.index) > budget + 1e-3,
        }
    )
    split = events.loc[events["kind"] == "split", "device"].drop_duplicates().map(rate)
    found = []
    for uplink, group in sorted(table.groupby("rate"), reverse=True):
        valid = group[group["epochs"] > 0]
        found.append(
            [
                "yes" if upload_time == "reserved" else "no",
                f"{uplink * 8 / 1000:g} kbit/s",
                f"{203564 / uplink + 0.04:.1f} s",
                f"{len(group)}",
                f"{len(valid) / len(group):.0%}",
                f"{valid['epochs'].mean():.1f}" if len(valid) else "",
                f"{(split == uplink).sum()} of {(rate == uplink).sum()}",
                f"{valid['after'].mean():.0%}" if len(valid) else "",
            ]
        )
    return found


if __name__ == "__main__":
    print("| " + " | ".join(COLUMNS) + " |")
    print("|" + "---|" * len(COLUMNS))
    for row in [*rows("reserved"), *rows("ignored")]:
        print("| " + " | ".join(row) + " |")
