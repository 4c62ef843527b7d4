"""Did every update count, and count once?"""

from collections import Counter
from collections.abc import Iterator

from fedsim.records.reading import RunFolder


def aggregated_once(run: RunFolder) -> Iterator[str]:
    """Tasks named by an aggregation had ended done, before it, and are named once; and no done training is left out.

    A training of which no epoch counts has nothing to aggregate, and must not be; one that belongs to no round (profiling), or
    that only prepared its device for the task that continues it, owes nothing. What was done after the last aggregation may
    still have been waiting for the next one; so may, without rounds, what was done in the same instant.
    """
    done: dict[int, bool] = {}  # task -> whether it has been aggregated
    trained: set[int] = set()
    idle: set[int] = set()
    latest: dict[int, int] = {}  # device -> its latest task
    waiting: list[int] = []
    just_done: list[int] = []
    now, rounds = 0.0, True
    for event in run.events:
        if event["time"] > now:
            now, just_done = event["time"], []
        match event["kind"]:
            case "task-start":
                if "continues" in event["data"]:
                    trained.discard(latest[event["device"]])
                latest[event["device"]] = event["task"]
            case "step-end" if event["step"] == "train":
                if not event["data"]["epochs"]:
                    idle.add(event["task"])
                elif event["round"] is not None:
                    trained.add(event["task"])
            case "task-end" if event["outcome"] == "done" and event["task"] not in idle:
                done[event["task"]] = False
                just_done.append(event["task"])
            case "aggregate":
                rounds = "staleness" not in event["data"]
                yield from _one_aggregation(event["data"]["tasks"], done)
            case "round":
                owed = trained if rounds else trained.difference(just_done)
                waiting = [task for task, counted in done.items() if not counted and task in owed]
                done = {task: counted for task, counted in done.items() if counted or task not in waiting}
                yield from (f"task {task} was done in time, but no aggregation counts it" for task in waiting)


def _one_aggregation(tasks: list[int], done: dict[int, bool]) -> Iterator[str]:
    for task in tasks:
        if task not in done:
            yield f"an aggregation counts task {task}, which had not ended done, with something trained, by then"
        elif done[task]:
            yield f"task {task} is aggregated twice"
        done[task] = True


def round_counts(run: RunFolder) -> Iterator[str]:
    """Each round's counts are those of its tasks, and the rounds' table says what the records say."""
    outcomes: dict[int, Counter[str]] = {}
    events = []
    idle: set[int] = set()  # tasks with no epoch that counts: slow, even if they were carried out to their end
    for event in run.events:
        if event["kind"] == "step-end" and event["step"] == "train" and not event["data"]["epochs"]:
            idle.add(event["task"])
        elif event["kind"] == "task-start" and "continues" in event["data"]:
            outcomes[event["round"]]["done"] -= 1  # the task that prepared the device and this one count as one
        elif event["kind"] == "task-end" and event["round"] is not None:
            slow = event["outcome"] == "done" and event["task"] in idle
            outcomes.setdefault(event["round"], Counter())["late" if slow else event["outcome"]] += 1
        elif event["kind"] == "round":
            events.append(event)
            yield from _count_problems(event["round"], event["data"], outcomes.pop(event["round"], Counter()))
    if len(events) != len(run.rounds) or len(run.rounds) != run.summary["rounds"]:
        yield f"there are {len(events)} recorded rounds, {len(run.rounds)} in the table, {run.summary['rounds']} in the summary"
        return
    for event, row in zip(events, run.rounds, strict=True):
        told = {"round": event["round"], "time": event["time"]} | event["data"]
        for key, value in told.items():
            if row[key] != value:
                yield f"round {event['round']}: {key} is {row[key]!r} in the table and {value!r} in the records"
    accuracies = [row["accuracy"] for row in run.rounds if row["accuracy"] is not None]
    stated = run.summary["accuracy"]
    if accuracies and (stated["final"] != accuracies[-1] or stated["best"] != max(accuracies)):
        yield f"the summary's accuracy is {stated}, the rounds' last {accuracies[-1]!r} and best {max(accuracies)!r}"


def _count_problems(number: int, told: dict[str, int], outcomes: Counter[str]) -> Iterator[str]:
    counted = {
        "valid": outcomes["done"],
        "slow": outcomes["late"],
        "disconnected": outcomes["lost"] + outcomes["left"],
        "selected": outcomes.total(),
    }
    for key, value in counted.items():
        if key in told and told[key] != value:
            yield f"round {number}: {key} is {told[key]}, its tasks say {value}"
