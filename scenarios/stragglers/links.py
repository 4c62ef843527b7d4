"""Who is valid, who is a straggler and who splits its data, by uplink, with the upload's time
and without.

    python scenarios/stragglers/links.py

Runs ``links.toml`` beside this file twice and prints a table in Markdown.
"""

import tempfile
from pathlib import Path
from typing import Any

import fedsim
from fedsim.records.reading import RunFolder

SCENARIO = Path(__file__).with_suffix(".toml")
COLUMNS = ["reserved", "uplink", "upload alone", "trainings", "valid", "epochs", "split", "after T"]
MESSAGE_BYTES = 203_564  # the update and its flag
LATENCY_S = 0.04
TIE_S = 1e-3


def run_of(upload_time: str, folder: Path) -> RunFolder:
    """Run the scenario into a folder."""
    scenario = fedsim.load(SCENARIO, [f"strategy.upload_time={upload_time}"])
    fedsim.run(scenario, folder, executor="inline")
    return RunFolder(folder)


def times_of(events: list[dict[str, Any]], kind: str, step: str) -> dict[int, float]:
    """The time (s) of each task's record of a step."""
    records = [event for event in events if event["kind"] == kind and event["step"] == step]
    return {event["task"]: event["time"] for event in records}


def rows(run: RunFolder, reserved: str) -> list[list[str]]:
    """A row for each uplink, the fastest first."""
    events = run.events
    (budget, *_) = [
        event["data"]["training_limit"] for event in events if event["kind"] == "round-start"
    ]
    trained = [
        event for event in events if event["kind"] == "step-end" and event["step"] == "train"
    ]
    began = times_of(events, "step-start", "train")
    arrived = times_of(events, "step-end", "upload")
    split = {event["device"] for event in events if event["kind"] == "split"}
    table = []
    for rate in sorted({row["link_up"] for row in run.devices}, reverse=True):
        members = {row["device"] for row in run.devices if row["link_up"] == rate}
        tasks = [event for event in trained if event["device"] in members]
        valid = [event for event in tasks if event["data"]["epochs"]]
        epochs = [event["data"]["epochs"] for event in valid]
        took = [
            arrived[event["task"]] - began[event["task"]]
            for event in valid
            if event["task"] in arrived
        ]
        late = [seconds for seconds in took if seconds > budget + TIE_S]
        figures = (
            [f"{sum(epochs) / len(epochs):.1f}", f"{len(late) / len(took):.0%}"]
            if valid
            else ["", ""]
        )
        table.append(
            [
                reserved,
                f"{rate * 8 / 1000:g} kbit/s",
                f"{MESSAGE_BYTES / rate + LATENCY_S:.1f} s",
                f"{len(tasks)}",
                f"{len(valid) / len(tasks):.0%}",
                figures[0],
                f"{len(split & members)} of {len(members)}",
                figures[1],
            ]
        )
    return table


def main() -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as folder:
        reserved = rows(run_of("reserved", Path(folder) / "reserved"), "yes")
        ignored = rows(run_of("ignored", Path(folder) / "ignored"), "no")
    for line in (COLUMNS, ["---"] * len(COLUMNS), *reserved, *ignored):
        print(f"| {' | '.join(line)} |")


if __name__ == "__main__":
    main()
