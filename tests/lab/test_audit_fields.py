"""No field of any record can be changed unnoticed, and what the checks say is what a plain walk
over the records says.
"""

import json
import math
import random
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from fedsim.clock.simulation import TICK_S
from fedsim.common.errors import FedsimError
from fedsim.lab.audit import CHECKS, audit
from fedsim.lab.audit.evidence import Evidence
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import EVENTS, TRANSFERS
from fedsim.testing import eventful_world, run
from tests.lab.test_audit import Rows, found, read, reseal

FINGERPRINTED = "the records are those that were fingerprinted"

RUNS = {
    "rounds": {
        "kind": "ifca",
        "groups": 2,
        "clients_per_round": 6,
        "local_epochs": 2,
        "deadline": "15 s",
    },
    "versions": {"kind": "fedbuff"},
    "stragglers": {"kind": "cata-fed", "clients_per_round": 6, "deadline": "1 s", "clusters": 2},
    "campaigns": {"kind": "lcfl"},
    "tiers": {"kind": "fedat", "tiers": 2, "clients_per_round": 4},
    "prepared": {"kind": "flexcfl", "groups": 2, "clients_per_round": 6, "moment": {"devices": 3}},
    "late": {"kind": "refl", "clients_per_round": 6, "local_epochs": 2, "deadline": "8 s"},
}


@pytest.fixture(scope="module", params=RUNS)
def eventful(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run in which all that can happen happens; not to be changed."""
    folder = tmp_path_factory.mktemp("eventful") / "run"
    run(eventful_world(RUNS[request.param], seed=4, rounds=6), folder)
    return folder


# Changes of one field.


def other(draw: random.Random, rows: Rows, row: int, column: str) -> Any:
    """Another value for a field, of its type: one that stands in another record, a near one, or
    none.
    """
    here, kind = rows[row][column], EVENTS.field(column).type
    near: list[Any] = ["heartbeat"]
    if column == "data":
        near = ['{"x":1}', *([near_data(draw, here)] if here else [])]
    elif pa.types.is_floating(kind):
        near = [math.nextafter(here, math.inf), here + 1.0, here - 1.0, 0.0]
    elif pa.types.is_integer(kind):
        near = [(here or 0) + 1, (here or 0) - 1, 10**6]
    values = [
        value
        for value in (None, *near, *(draw.choice(rows)[column] for _ in range(4)))
        if value != here
    ]
    return draw.choice(values)


def near_data(draw: random.Random, text: str) -> str:
    data = json.loads(text)
    key = draw.choice(sorted(data))
    match data[key]:
        case [*values] if values:
            data[key] = draw.choice([values[1:], values * 2, values[::-1]])
        case int() | float():
            data[key] += draw.choice([1, -1])
        case _:
            del data[key]
    return json.dumps(data, sort_keys=True, separators=(",", ":"))


def write(folder: Path, rows: Rows) -> None:
    pq.write_table(pa.Table.from_pylist(rows, schema=EVENTS), folder / files.EVENTS)


def test_any_field_of_any_record_is_fingerprinted(eventful: Path, tmp_path: Path) -> None:
    rows = read(eventful, files.EVENTS)
    folder = shutil.copytree(eventful, tmp_path / "run")
    draw = random.Random(1)
    for column in EVENTS.names:
        row = draw.randrange(len(rows))
        kept, rows[row][column] = rows[row][column], other(draw, rows, row, column)
        write(folder, rows)
        assert found(folder, [FINGERPRINTED]), (row, column, kept, rows[row][column])
        rows[row][column] = kept


def walk_places(events: Rows) -> Iterator[str]:
    busy: dict[int, int] = {}
    for event in events:
        device, task, when = event["device"], event["task"], f"at {event['time']!r} s"
        if event["kind"] == "task-start":
            if device in busy:
                yield (
                    f"device {device} begins task {task} {when} while it still has task "
                    f"{busy[device]}"
                )
            busy[device] = task
        elif event["kind"] == "task-end" and busy.get(device, "none") == task:
            del busy[device]
        elif event["kind"] in ("step-start", "step-end") and busy.get(device, "none") != task:
            yield f"device {device} works on task {task} {when} without having it"


def walk_deadlines(events: Rows) -> Iterator[str]:
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
            yield (
                f"task {task} ended {event['outcome']} at {time!r} s, after its deadline "
                f"{float(deadline[number])!r} s"
            )


WALKS = {"no device does two things at once": walk_places, "deadlines held": walk_deadlines}


# Any story: the checks and a walk over the records say the same.


def disturb(draw: random.Random, rows: Rows) -> None:
    """What a forger, or an error of the engine, might do to a few records."""
    for _ in range(draw.choice([1, 1, 2, 5])):
        rare = [
            at
            for at, row in enumerate(rows)
            if row["kind"] in ("aggregate", "round") or "continues" in (row["data"] or "")
        ]
        one, two = (
            draw.choice([draw.randrange(len(rows)), draw.choice(rare)]),
            draw.randrange(len(rows)),
        )
        match draw.randrange(6):
            case 0:
                rows[one], rows[two] = rows[two], rows[one]
            case 1:
                rows.insert(two, dict(rows[one]))
            case 2:
                del rows[one]
            case 3:
                column = draw.choice(["time", "data"])
                rows[one][column] = other(draw, rows, one, column) or rows[one][column]
            case _:
                column = draw.choice(["device", "round", "task", "outcome", "kind", "step"])
                rows[one][column] = rows[two][column]


def told(findings: Callable[[], Iterable[str]]) -> list[str] | None:
    """What is found; None if the data do not say what they must."""
    try:
        return sorted(findings())
    except (FedsimError, KeyError, TypeError, AttributeError):
        return None


def test_the_checks_say_what_a_walk_over_the_records_says(eventful: Path, tmp_path: Path) -> None:
    """Finding by finding, in the story as it was and in any other."""
    original = read(eventful, files.EVENTS)
    folder = shutil.copytree(eventful, tmp_path / "run")
    draw = random.Random(2)
    seen = Counter[str]()
    for number in range(13):
        rows = [dict(row) for row in original]
        if number:
            disturb(draw, rows)
        write(folder, rows)
        evidence = Evidence(RunFolder(folder))
        for name, walk in WALKS.items():
            wanted, said = (
                told(partial(look, of))
                for look, of in ((walk, evidence.run.events), (CHECKS[name], evidence))
            )
            assert said == wanted, (name, audit(folder)[name], wanted)
            seen["damaged" if wanted is None else "wrong" if wanted else "right"] += 1
            assert number or not wanted
        assert number == 0 or found(folder), number
    assert min(seen["wrong"], seen["right"]) > 3


def test_an_update_left_out_or_counted_twice_and_a_wrong_count_are_named(
    eventful: Path, tmp_path: Path
) -> None:
    """With rounds and without, of groups, and of tasks that continue others."""
    rows = read(eventful, files.EVENTS)
    folder = shutil.copytree(eventful, tmp_path / "run")
    aggregates = [row for row in rows if row["kind"] == "aggregate"]
    row = next(row for row in aggregates if json.loads(row["data"])["tasks"])
    data, kept = json.loads(row["data"]), row["data"]
    (task, *others), counted = data["tasks"], "every valid update was aggregated once"
    for tasks, text in (
        (others, f"task {task} was done in time, but no aggregation counts it"),
        ([task, task, *others], f"task {task} is aggregated twice"),
    ):
        row["data"] = json.dumps(data | {"tasks": tasks})
        write(folder, rows)
        assert [*CHECKS[counted](Evidence(RunFolder(folder)))] == [text]
    row["data"] = kept
    for row in [
        row for row in rows if row["kind"] == "round" and json.loads(row["data"]).get("valid")
    ][:1]:
        row["data"] = row["data"].replace('"valid":', '"valid":1')
        write(folder, rows)
        assert any(
            ": valid is 1" in text
            for text in CHECKS["rounds agree with their tasks"](Evidence(RunFolder(folder)))
        )


# A story that is damaged in one place is told as such, and all else is still checked.


def resealed(
    folder: Path, rows: Rows, name: str = files.EVENTS, schema: pa.Schema = EVENTS
) -> dict[str, list[str]]:
    """What the audit finds with other rows in a table."""
    pq.write_table(pa.Table.from_pylist(rows, schema=schema), folder / name)
    reseal(folder)
    return audit(folder)


def test_what_is_wrong_with_one_record_s_data_leaves_the_other_checks_their_findings(
    tiny_run: Path,
) -> None:
    rows = read(tiny_run, files.EVENTS)
    at = next(
        number
        for number, row in enumerate(rows)
        if row["step"] == "train" and row["kind"] == "step-end"
    )
    rows[at]["step"] = "upload"
    findings, turns = (
        resealed(tiny_run, rows),
        "every task begins, takes its steps in order and ends once",
    )
    assert findings[turns] == [f"task {rows[at]['task']}: train begins and upload ends"]
    (problem,) = findings["transfers agree with the records"]
    assert (
        f"record {at} (step-end of download or upload) has wrong data (KeyError: 'bytes')"
        in problem
    )
    assert findings["no device does two things at once"] == []


@pytest.mark.parametrize("text", ["{", "nonsense", "", "[1]", "5", '"text"', "null"])
def test_data_that_are_no_table_are_found(tiny_run: Path, text: str) -> None:
    rows = read(tiny_run, files.EVENTS)
    rows[next(number for number, row in enumerate(rows) if row["step"] == "train" and row["data"])][
        "data"
    ] = text
    assert any(
        "is damaged" in problem
        for problem in resealed(tiny_run, rows)["rounds agree with their tasks"]
    )


def test_a_table_with_a_column_missing_or_of_another_kind_is_found(tiny_run: Path) -> None:
    table = pq.read_table(tiny_run / files.TRANSFERS)
    for changed in (
        table.drop_columns(["delivered"]),
        table.set_column(0, "start", pa.array(["soon"] * len(table))),
    ):
        pq.write_table(changed, tiny_run / files.TRANSFERS)
        reseal(tiny_run)
        (problem,) = audit(tiny_run)["transfers agree with the records"]
        assert problem.startswith(f"{files.TRANSFERS} of ")
        assert "is missing or damaged" in problem


@pytest.mark.parametrize(
    "column",
    ["purpose", "sender", "direction", "outcome", "start", "end", "device", "task", "payloads"],
)
def test_any_field_of_a_transfer_is_compared_with_the_records(tiny_run: Path, column: str) -> None:
    rows = read(tiny_run, files.TRANSFERS)
    change = {
        "direction": "sideways",
        "outcome": "lost",
        "purpose": "control",
        "sender": "me",
        "payloads": '[["control",2.0]]',
    }
    rows[3][column] = change[column] if column in change else rows[3][column] + 1
    findings = resealed(tiny_run, rows, files.TRANSFERS, TRANSFERS)[
        "transfers agree with the records"
    ]
    assert any(finding.startswith(f"transfer 3: {column} is ") for finding in findings)


def test_findings_are_listed_up_to_a_limit(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fedsim.lab.audit.MOST_FINDINGS", 5)
    rows = read(tiny_run, files.TRANSFERS)[1:]
    findings = resealed(tiny_run, rows, files.TRANSFERS, TRANSFERS)[
        "transfers agree with the records"
    ]
    assert len(findings) == 6
    assert findings[-1] == "more than these 5 findings, which are not listed"


def test_no_check_holds_records_as_rows(tiny_run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What lets a run of millions of records be audited in seconds."""

    def refuse(self: RunFolder, *_: object) -> Rows:
        raise AssertionError("all rows of a table at once")

    monkeypatch.setattr(RunFolder, "rows", refuse)
    assert found(tiny_run) == set()


def test_tables_are_read_in_pieces(eventful: Path, tmp_path: Path) -> None:
    """Groups of rows with dictionaries of their own, as in the file of a long run."""
    folder = shutil.copytree(eventful, tmp_path / "run")
    events = read(folder, files.EVENTS)
    for seed in range(5):
        disturb(random.Random(seed), events)
    write(folder, events)
    whole = audit(folder)
    with pq.ParquetWriter(folder / files.EVENTS, EVENTS) as writer:
        for start in range(0, len(events), 50):
            writer.write_table(pa.Table.from_pylist(events[start : start + 50], schema=EVENTS))
    assert audit(folder) == whole
    assert sum(map(bool, whole.values())) > 2
    assert not any(audit(eventful).values())
