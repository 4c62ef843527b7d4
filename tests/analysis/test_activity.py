from collections import Counter

from fedsim.analysis.history import History
from fedsim.records.reading import RunFolder


def test_steps_are_the_intervals_of_the_events(run: RunFolder) -> None:
    begun: dict[int, float] = {}
    expected = []
    for event in run.events:
        if event["kind"] == "step-start":
            begun[event["task"]] = event["time"]
        elif event["kind"] == "step-end":
            expected.append((event["device"], event["task"], event["step"], begun[event["task"]], event["time"]))
    steps = History(run).steps
    found = steps[["device", "task", "step", "start", "end"]].itertuples(index=False, name=None)
    assert sorted(found) == sorted(expected)


def test_a_step_bears_the_outcome_of_its_task(run: RunFolder) -> None:
    outcomes = {event["task"]: event["outcome"] for event in run.events if event["kind"] == "task-end"}
    steps = History(run).steps
    assert list(steps["outcome"]) == [outcomes[task] for task in steps["task"]]


def test_tasks_by_period_are_the_rounds_own_counts(run: RunFolder) -> None:
    tasks = History(run).tasks
    counts = Counter(zip(tasks["period"], tasks["outcome"], strict=True))
    for period, row in enumerate(run.rounds):
        found = tuple(counts[period, outcome] for outcome in ("done", "late", "lost"))
        assert found == (row["valid"], row["slow"], row["disconnected"])


def test_rounds_and_their_deadlines(run: RunFolder) -> None:
    activity = History(run)
    starts = [event["data"]["deadline"] for event in run.events if event["kind"] == "round-start"]
    assert list(activity.rounds["round"]) == [row["round"] for row in run.rounds]
    assert list(activity.rounds["end"]) == [row["time"] for row in run.rounds]
    assert list(activity.rounds["deadline"]) == starts
    assert activity.end == run.summary["simulated_s"]


def test_steps_that_a_cut_off_run_left_open_last_to_its_end(cut_off: RunFolder) -> None:
    activity = History(cut_off)
    started = sum(event["kind"] == "step-start" for event in cut_off.events)
    ended = sum(event["kind"] == "step-end" for event in cut_off.events)
    assert started > ended
    assert len(activity.steps) == started
    unended = activity.steps[~activity.steps["task"].isin(activity.tasks["task"])]
    assert (unended["outcome"] == "stopped").all()
    assert (unended["end"] == activity.end).sum() == started - ended
