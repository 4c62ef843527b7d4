"""A walk over the records, one after the other, that says what the checks of the audit must say: an oracle for them."""

import math
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

from fedsim.simulation import TICK_S

Events = list[dict[str, Any]]


def walk_places(events: Events) -> Iterator[str]:
    busy: dict[int, int] = {}
    for event in events:
        device, task, when = event["device"], event["task"], f"at {event['time']!r} s"
        if event["kind"] == "task-start":
            if device in busy:
                yield f"device {device} begins task {task} {when} while it still has task {busy[device]}"
            busy[device] = task
        elif event["kind"] == "task-end" and busy.get(device, "none") == task:
            del busy[device]
        elif event["kind"] in ("step-start", "step-end") and busy.get(device, "none") != task:
            yield f"device {device} works on task {task} {when} without having it"


def walk_deadlines(events: Events) -> Iterator[str]:
    deadline: dict[int, float] = {}
    longest: dict[int, float] = {}
    begun: dict[int, float] = {}
    for event in events:
        number, task, time = event["round"], event["task"], event["time"]
        if event["kind"] == "round-start":
            if event["data"].get("deadline") is not None:
                deadline[number] = event["data"]["deadline"]
            longest[number] = event["data"].get("training_limit", math.inf)
        elif event["kind"] == "step-start" and event["step"] == "train":
            begun[task] = time
        elif event["kind"] == "step-end" and event["step"] == "train":
            if task not in begun:
                yield f"task {task} ends a training that it has not begun"
            elif time - begun[task] > longest.get(number, math.inf) + TICK_S:
                took, limit = time - begun[task], float(longest[number])
                yield f"task {task} trained for {took!r} s, longer than its limit of {limit!r} s"
        elif event["kind"] == "task-end" and time > deadline.get(number, math.inf):
            yield f"task {task} ended {event['outcome']} at {time!r} s, after its deadline {float(deadline[number])!r} s"


def walk_aggregations(events: Events) -> Iterator[str]:
    done: dict[int, bool] = {}  # task -> whether it has been aggregated
    owed: dict[int, None] = {}
    trained: set[int] = set()
    idle: set[int] = set()
    latest: dict[int, int] = {}
    rounds, ended_at = True, dict[int, float]()
    group, group_of = None, dict[int, int | None]()
    for event in events:
        task, data = event["task"], event["data"]
        match event["kind"]:
            case "task-start":
                if "continues" in data and event["device"] in latest:
                    trained.discard(latest[event["device"]])
                    owed.pop(latest[event["device"]], None)
                latest[event["device"]] = task
            case "step-end" if event["step"] == "train":
                if not data["epochs"]:
                    idle.add(task)
                elif event["round"] is not None:
                    trained.add(task)
            case "task-end" if event["outcome"] == "done" and task not in idle:
                done[task], ended_at[task], group_of[task] = False, event["time"], event["group"]
                owed |= {task: None} if task in trained else {}
            case "aggregate":
                rounds, group = "staleness" not in data, event["group"]
                for named in data["tasks"]:
                    if named not in done:
                        yield f"an aggregation counts task {named}, which had not ended done, with something trained, by then"
                    elif done[named]:
                        yield f"task {named} is aggregated twice"
                    done[named] = True
                    owed.pop(named, None)
            case "round":
                for late in [*owed]:
                    if rounds or (ended_at[late] < event["time"] and group in (None, group_of[late])):
                        del owed[late]
                        yield f"task {late} was done in time, but no aggregation counts it"


def walk_counts(events: Events) -> Iterator[str]:
    ended: dict[int, Counter[str]] = {}
    idle: set[int] = set()
    for event in events:
        number, task, data = event["round"], event["task"], event["data"]
        if event["kind"] == "step-end" and event["step"] == "train" and not data["epochs"]:
            idle.add(task)
        elif event["kind"] == "task-start" and "continues" in data:
            if number not in ended:
                yield f"task {task} goes on with one of round {number}, of which none has ended"
            ended.setdefault(number, Counter())["done"] -= 1
        elif event["kind"] == "task-end" and number is not None:
            slow = event["outcome"] == "done" and task in idle
            ended.setdefault(number, Counter())["late" if slow else event["outcome"]] += 1
        elif event["kind"] == "round":
            tasks = ended.pop(number, Counter())
            counts = {"valid": tasks["done"], "slow": tasks["late"], "disconnected": tasks["lost"] + tasks["left"]}
            for key, value in (counts | {"selected": tasks.total()}).items():
                if key in data and data[key] != value:
                    yield f"round {number}: {key} is {data[key]}, its tasks say {value}"


WALKS: dict[str, Callable[[Events], Iterator[str]]] = {
    "no device does two things at once": walk_places,
    "deadlines held": walk_deadlines,
    "every valid update was aggregated once": walk_aggregations,
    "rounds agree with their tasks": walk_counts,
}
