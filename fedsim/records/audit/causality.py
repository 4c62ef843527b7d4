"""Do causes precede effects, and is every device in one place?"""

from collections.abc import Iterator
from typing import Any

from fedsim.records.reading import RunFolder
from fedsim.simulation import TICK_S


def time_order(run: RunFolder) -> Iterator[str]:
    """Times never decrease, the first is not before 0, and the record of the run's end is the last."""
    last = 0.0
    for number, event in enumerate(run.events):
        if not event["time"] >= last:
            yield f"record {number} ({event['kind']}) is at {event['time']!r} s, after one at {last!r} s"
        last = event["time"]
        if event["kind"] == "run-end" and number != len(run.events) - 1:
            yield f"record {number} says that the run is over, but {len(run.events) - 1 - number} follow"
    if run.summary["status"] != "failed" and (not run.events or run.events[-1]["kind"] != "run-end"):
        yield "the run's end is not recorded"


def task_lives(run: RunFolder) -> Iterator[str]:
    """task-start, then step-start and step-end in turn, then task-end with the outcome of the last step; and nothing after."""
    lives: dict[int, list[dict[str, Any]]] = {}
    for event in run.events:
        if event["kind"] in ("task-start", "step-start", "step-end", "task-end"):
            lives.setdefault(event["task"], []).append(event)
    for task, life in lives.items():
        yield from (f"task {task}: {problem}" for problem in _life_problems(life, run.summary["status"]))


def _life_problems(life: list[dict[str, Any]], status: str) -> Iterator[str]:
    kinds = [event["kind"] for event in life]
    middle = kinds[1:-1]
    if kinds[0] != "task-start":
        yield f"begins with {kinds[0]}"
    if kinds[-1] != "task-end":
        if status != "failed":
            yield "never ends"
        return
    if middle != ["step-start", "step-end"] * (len(middle) // 2):
        yield "its steps do not begin and end in turn"
    for start, end in zip(life[1:-1:2], life[2:-1:2], strict=False):
        if start["step"] != end["step"]:
            yield f"{start['step']} begins and {end['step']} ends"
        if end is not life[-2] and end["outcome"] != "done":
            yield f"goes on after {end['step']} ended {end['outcome']}"
    if len(life) > 2 and life[-1]["outcome"] != life[-2]["outcome"]:
        yield f"ended {life[-1]['outcome']}, but its last step {life[-2]['outcome']}"
    if len({event["device"] for event in life}) > 1:
        yield "moves from one device to another"


def one_place(run: RunFolder) -> Iterator[str]:
    """A device has at most one task at a time."""
    busy: dict[int, int] = {}
    for event in run.events:
        device, task = event["device"], event["task"]
        if event["kind"] == "task-start":
            if device in busy:
                yield f"device {device} begins task {task} at {event['time']!r} s while it still has task {busy[device]}"
            busy[device] = task
        elif event["kind"] == "task-end" and busy.get(device) == task:
            del busy[device]
        elif event["kind"] in ("step-start", "step-end") and busy.get(device) != task:
            yield f"device {device} works on task {task} at {event['time']!r} s without having it"


def deadlines(run: RunFolder) -> Iterator[str]:
    """No task of a round is running, and none counts as done, after its deadline; no training is longer than its limit."""
    limits: dict[int, float] = {}
    training_limits: dict[int, float] = {}
    begins: dict[int, float] = {}
    for event in run.events:
        if event["kind"] == "round-start":
            if event["data"].get("deadline") is not None:
                limits[event["round"]] = event["data"]["deadline"]
            training_limits[event["round"]] = event["data"].get("training_limit", float("inf"))
        elif event["kind"] == "step-start" and event["step"] == "train":
            begins[event["task"]] = event["time"]
        elif event["kind"] == "step-end" and event["step"] == "train":
            took, limit = event["time"] - begins[event["task"]], training_limits.get(event["round"], float("inf"))
            if took > limit + TICK_S:
                yield f"task {event['task']} trained for {took!r} s, longer than its limit of {limit!r} s"
        elif event["kind"] == "task-end" and event["time"] > limits.get(event["round"], float("inf")):
            limit = limits[event["round"]]
            yield f"task {event['task']} ended {event['outcome']} at {event['time']!r} s, after its deadline {limit!r} s"
