"""The audit: silent on every honest run, and loud at each kind of damage.

Damage to the story (not to the bytes) is sealed again with right fingerprints, as a forger
would, so that the check that finds it is the one that reads the story.
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import fedsim
from fedsim.common.errors import RunFolderError
from fedsim.lab.audit import CHECKS, _findings, audit
from fedsim.lab.audit.evidence import Evidence
from fedsim.records import folder as files
from fedsim.records.chain import EventChain, RowChain
from fedsim.records.reading import RunFolder
from fedsim.records.schema import (
    EVENT_COLUMNS,
    EVENTS,
    ROUNDS,
    TRANSFERS,
    models_digest,
)
from fedsim.testing import quiet_world, run_until

Rows = list[dict[str, Any]]


SEALED = "every file is there, whole and as it was sealed"
LIMITS = "the run kept to the scenario's limits"


def found(folder: Path, among: Iterable[str] = CHECKS) -> set[str]:
    """The checks that find something."""
    evidence = Evidence(RunFolder(folder))
    return {name for name in among if _findings(CHECKS[name], evidence)}


def read(folder: Path, name: str) -> Rows:
    return pq.read_table(folder / name).to_pylist()


def reseal(folder: Path) -> None:
    """Make all fingerprints right for what the folder now holds."""
    summary = json.loads((folder / files.SUMMARY).read_text())
    chain = EventChain() if "events_block" in summary else RowChain()
    names = ("time", *EVENT_COLUMNS, "data")
    chain.extend(tuple(row[name] for name in names) for row in read(folder, files.EVENTS))  # type: ignore[misc]
    last = read(folder, files.EVENTS)[-1]["time"]
    summary |= {"events": chain.count, "events_sha256": chain.hexdigest(), "simulated_s": last}
    summary |= {
        "models_sha256": models_digest(RunFolder(folder).models()),
        "files_sha256": files.fingerprints(folder),
    }
    files.write_summary(folder, summary)


def edit(
    name: str, schema: pa.Schema, change: Callable[[Rows], Rows | None]
) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        rows = read(folder, name)
        changed = change(rows)
        pq.write_table(
            pa.Table.from_pylist(rows if changed is None else changed, schema=schema), folder / name
        )
        reseal(folder)

    return damage


def events(change: Callable[[Rows], Rows | None]) -> Callable[[Path], None]:
    return edit(files.EVENTS, EVENTS, change)


def first(rows: Rows, **wanted: Any) -> int:
    return next(
        number
        for number, row in enumerate(rows)
        if all(row[key] == value for key, value in wanted.items())
    )


def test_an_honest_run_passes_every_check(tiny_run: Path) -> None:
    assert audit(tiny_run) == {name: [] for name in CHECKS}
    reseal(tiny_run)
    assert found(tiny_run) == set()


# Damage to bytes.


def test_a_folder_of_the_time_before_blocks_is_checked_by_single_records(tiny_run: Path) -> None:
    summary = json.loads((tiny_run / files.SUMMARY).read_text())
    del summary["events_block"]
    files.write_summary(tiny_run, summary)
    assert found(tiny_run) == {"the records are those that were fingerprinted"}
    reseal(tiny_run)
    assert not any(audit(tiny_run).values())


@pytest.mark.parametrize(
    "name",
    [
        files.EVENTS,
        files.TRANSFERS,
        files.ROUNDS,
        files.DEVICES,
        files.SCENARIO,
        "models/global.safetensors",
    ],
)
def test_a_byte_lost_or_changed_is_found(tiny_run: Path, name: str) -> None:
    content = (tiny_run / name).read_bytes()
    middle = len(content) // 2
    (tiny_run / name).write_bytes(content[:middle] + content[middle + 1 :])
    assert found(tiny_run, [SEALED])
    (tiny_run / name).write_bytes(
        content[:middle] + bytes([content[middle] ^ 1]) + content[middle + 1 :]
    )
    assert found(tiny_run, [SEALED])
    (tiny_run / name).write_bytes(content)
    assert not found(tiny_run, [SEALED])
    (tiny_run / "extra.txt").write_text("hello")
    assert found(tiny_run, [SEALED])
    (tiny_run / "extra.txt").unlink()
    (tiny_run / name).unlink()
    assert found(tiny_run, [SEALED])


def test_a_folder_without_a_run_is_refused(tmp_path: Path) -> None:
    with pytest.raises(RunFolderError, match="not a run folder"):
        audit(tmp_path)


def test_a_summary_is_sealed_to_the_byte(tiny_run: Path) -> None:
    path = tiny_run / files.SUMMARY
    summary, text = json.loads(path.read_text()), path.read_text()
    assert list(summary)[-1] == files.SEAL
    changed = {key: summary | {key: "other"} for key in summary}
    changed |= {
        f"no {key}": {name: value for name, value in summary.items() if name != key}
        for key in summary
    }
    texts = {key: files.summary_text(others) for key, others in changed.items()}
    texts |= {
        "newline": text[:-1],
        "space": text.replace(": ", ":  ", 1),
        "twice": text.replace("{", '{"seed": 3,', 1),
    }
    texts |= {
        "wall": text.replace('"wall_s": ', '"wall_s": 1'),
        "status": text.replace('"done"', '"failed"'),
    }
    for name, damaged in texts.items():
        path.write_text(damaged)
        assert found(tiny_run, [SEALED]), name
    path.write_text(text)
    assert not found(tiny_run, [SEALED])


def test_parts_of_a_run_that_is_to_go_on_are_sealed_too(
    small: dict[str, Any], tmp_path: Path
) -> None:
    assert run_until(small, tmp_path / "run", 100) == "interrupted"
    part = tmp_path / "run" / "rounds.part-00000.parquet"
    whole = part.read_bytes()
    for content in (b"", whole + b"x"):
        part.write_bytes(content)
        assert found(tmp_path / "run") == {"every file is there, whole and as it was sealed"}
    part.write_bytes(whole)
    assert found(tmp_path / "run") == set()


# Damage to the story.


def effect_before_cause(rows: Rows) -> None:
    end = first(rows, kind="step-end", step="upload")
    rows[end]["time"] = rows[end - 1]["time"] - 1.0


def step_out_of_turn(rows: Rows) -> None:
    start = first(rows, kind="step-start", step="train")
    end = first(rows, kind="step-end", step="train", task=rows[start]["task"])
    rows[start]["kind"], rows[end]["kind"] = "step-end", "step-start"


def in_two_places(rows: Rows) -> None:
    one, two = (
        row["device"]
        for row in rows
        if row["kind"] == "task-start" and row["round"] == 0 and row["task"] in (0, 1)
    )
    for row in rows:
        if row["round"] == 0 and row["device"] == two:
            row["device"] = one


def without(**wanted: Any) -> Callable[[Rows], Rows]:
    """All records but the first of a kind."""
    return lambda rows: [row for number, row in enumerate(rows) if number != first(rows, **wanted)]


def said(change: Callable[[dict[str, Any]], Any], **wanted: Any) -> Callable[[Rows], None]:
    """Other data in the first record of a kind."""

    def damage(rows: Rows) -> None:
        row = rows[first(rows, **wanted)]
        data = json.loads(row["data"])
        change(data)
        row["data"] = json.dumps(data, sort_keys=True, separators=(",", ":"))

    return damage


aggregated_twice = said(lambda data: data["tasks"].append(data["tasks"][0]), kind="aggregate")
aggregated_never = said(lambda data: data["tasks"].pop(0), kind="aggregate")
deadline_missed = said(
    lambda data: data.update(deadline=data["deadline"] - 29.0), kind="round-start"
)


def late_one_counted(rows: Rows) -> None:
    late = next(
        row for row in rows if row["kind"] == "task-end" and row["outcome"] in ("late", "lost")
    )
    said(lambda data: data["tasks"].append(late["task"]), kind="aggregate", round=late["round"])(
        rows
    )


def purpose_relabelled(rows: Rows) -> None:
    for row in rows:
        if row["direction"] == "up":
            row["payloads"] = row["payloads"].replace("update", "probe-loss")


def transfers(change: Callable[[Rows], Rows | None]) -> Callable[[Path], None]:
    return edit(files.TRANSFERS, TRANSFERS, change)


@pytest.mark.parametrize(
    ("damage", "check"),
    [
        (events(effect_before_cause), "time never runs backwards"),
        (events(step_out_of_turn), "every task begins, takes its steps in order and ends once"),
        (
            events(without(kind="task-end")),
            "every task begins, takes its steps in order and ends once",
        ),
        (events(in_two_places), "no device does two things at once"),
        (events(aggregated_twice), "every valid update was aggregated once"),
        (events(aggregated_never), "every valid update was aggregated once"),
        (events(late_one_counted), "every valid update was aggregated once"),
        (events(deadline_missed), "deadlines held"),
        (
            transfers(lambda rows: rows[0].update(delivered=rows[0]["bytes"] * 2)),
            "no more bytes arrived than were sent",
        ),
        (transfers(lambda rows: rows[1:]), "transfers agree with the records"),
        (transfers(purpose_relabelled), "ledger, transfers and summary agree"),
        (
            edit(files.ROUNDS, ROUNDS, lambda rows: rows[-1].update(accuracy=0.999)),
            "rounds agree with their tasks",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_damage_to_the_story_is_found(
    tiny_run: Path, damage: Callable[[Path], None], check: str
) -> None:
    damage(tiny_run)
    assert check in found(tiny_run)


@pytest.mark.parametrize("which", ["aggregated", "late", "unknown"])
def test_only_an_update_that_is_due_is_excused_by_an_answer_without_a_model(
    tiny_run: Path, which: str
) -> None:
    def excuse(rows: Rows) -> Rows:
        late = next(row["task"] for row in rows if row["outcome"] in ("late", "lost"))
        end = first(rows, kind="round", round=rows[first(rows, task=late)]["round"])
        aggregate = first(rows, kind="aggregate", round=rows[end]["round"])
        (aggregated, *_) = json.loads(rows[aggregate]["data"])["tasks"]
        task = {"aggregated": aggregated, "late": late, "unknown": 10**6}[which]
        excused = rows[end] | {"kind": "no-update", "data": json.dumps({"tasks": [task]})}
        return [*rows[:end], excused, *rows[end:]]

    events(excuse)(tiny_run)
    assert found(tiny_run) == {"every valid update was aggregated once"}


@pytest.mark.parametrize(
    ("forged", "check"),
    [
        *(
            ({"status": status}, "the run ended as the summary says")
            for status in ("interrupted", "perfect")
        ),
        ({"stopped": "bored"}, "the run ended as the summary says"),
        *(
            ({"bytes": {key: 1.0}}, "ledger, transfers and summary agree")
            for key in ("down", "wasted", "paper")
        ),
        ({"seed": 99}, "the scenario is the one that was run"),
        ({"events_block": 1}, "the records are those that were fingerprinted"),
    ],
    ids=str,
)
def test_a_forged_summary_is_found(tiny_run: Path, forged: dict[str, Any], check: str) -> None:
    summary = json.loads((tiny_run / files.SUMMARY).read_text())
    told = {
        key: summary[key] | value if isinstance(value, dict) else value
        for key, value in forged.items()
    }
    files.write_summary(tiny_run, summary | told)
    assert found(tiny_run) == {check}


# Runs in which more happens.


def idle_task(rows: Rows) -> int:
    """The first task that ended done with nothing trained."""
    trained = (row for row in rows if row["step"] == "train" and row["data"])
    return next(int(row["task"]) for row in trained if json.loads(row["data"])["epochs"] == 0)


def count_an_idle_one(rows: Rows) -> None:
    said(lambda data: data["tasks"].append(idle_task(rows)), kind="aggregate")(rows)


def call_an_idle_one_trained(rows: Rows) -> None:
    said(lambda data: data.update(epochs=1), kind="step-end", step="train", task=idle_task(rows))(
        rows
    )


def shift_nobody(rows: Rows) -> None:
    rows[first(rows, kind="shift")]["device"] = None


allow_less_time = said(lambda data: data.update(training_limit=0.5), kind="round-start")
share_more = said(
    lambda data: data.update(core_s=data["core_s"] * 1.1),
    kind="step-end",
    step="train",
    outcome="done",
)
WORLDS: dict[str, dict[str, Any]] = {
    "straggling": {
        "strategy": {
            "kind": "cata-fed",
            "clients_per_round": 6,
            "deadline": "1 s",
            "clusters": 1,
            "upload_time": "ignored",
        }
    },
    "shifting": {"drift": {"kind": "label-permutation", "probability": 1.0}, "stop": {"rounds": 3}},
    "sharing": {"learning": "off", "stop": {"rounds": 2}},
}


@pytest.mark.parametrize(
    ("world", "damage", "checks"),
    [
        ("straggling", count_an_idle_one, {"every valid update was aggregated once"}),
        (
            "straggling",
            call_an_idle_one_trained,
            {"every valid update was aggregated once", "rounds agree with their tasks"},
        ),
        ("straggling", allow_less_time, {"deadlines held"}),
        ("shifting", shift_nobody, {"devices agree with the records"}),
        ("sharing", share_more, {"hosts shared their cores"}),
    ],
)
def test_damage_to_stragglers_shifts_and_hosts_is_found(
    world: str,
    damage: Callable[[Rows], None],
    checks: set[str],
    small: dict[str, Any],
    tmp_path: Path,
    made: Callable[[dict[str, Any], Path], Path],
) -> None:
    more = {
        "straggling": {"availability": {"kind": "always"}},
        "sharing": {"host": {"number": 2, "cores": 2, "workers": 3}},
    }
    small["population"] |= more.get(world, {})
    folder = made(small | WORLDS[world], tmp_path / "run")
    assert found(folder) == set()
    events(damage)(folder)
    assert checks <= found(folder)


def test_a_tier_that_lost_its_clients_asks_others_in_the_same_version(tmp_path: Path) -> None:
    """So FedAT may ask more clients in a version than its tiers have at a time, which are still
    limited.
    """
    availability = {"kind": "renewal", "mean_on": "20 s", "mean_off": "20 s"}
    sections = quiet_world(
        {"kind": "fedat", "clients_per_round": 2, "tiers": 3}, seed=9, rounds=4
    ) | {"learning": "off"}
    sections["population"] = {"devices": 24, "speed": "10 samples/s", "availability": availability}
    fedsim.run(fedsim.Scenario(**sections), tmp_path)
    starts = fedsim.load_run(tmp_path).events.query("kind == 'task-start'").dropna(subset="round")
    assert starts.groupby("round")["device"].nunique().max() > 6
    assert found(tmp_path) == set()
    scenario = tmp_path / files.SCENARIO
    scenario.write_text(scenario.read_text().replace("tiers = 3", "tiers = 1"))
    reseal(tmp_path)
    assert found(tmp_path, [LIMITS]) == {LIMITS}


TREE = {
    "kind": "tree",
    "cells": 2,
    "device": {"down": "8 Mbit/s", "up": "8 Mbit/s"},
    "cell": {"down": "8 Mbit/s", "up": "8 Mbit/s"},
    "edge": {},
}
DURATIONS = "training took as long as samples and speed say"


@pytest.mark.parametrize(
    "sections",
    [
        {"training": {"batch_size": 32, "last_batch": "drop"}},
        {"training": {"batch_size": 32, "last_batch": "merge"}},
        {"strategy": {"kind": "hierfavg", "kappa1": 1}, "network": TREE},
        {"strategy": {"kind": "hierfavg", "kappa1": 30}, "network": TREE},
    ],
)
def test_trainings_of_steps_and_of_whole_batches_last_as_long_as_their_samples(
    sections: dict[str, Any], tmp_path: Path
) -> None:
    strategy = {"kind": "fedavg", "clients_per_round": 6} | sections.get("strategy", {})
    world = quiet_world(strategy, seed=2, rounds=2) | {"learning": "off"}
    world["population"] = {"devices": 6, "speed": "10 samples/s"}
    fedsim.run(fedsim.Scenario(**world | sections | {"strategy": strategy}), tmp_path)
    assert found(tmp_path) == set()
    devices = pq.read_table(tmp_path / files.DEVICES)
    place = devices.schema.get_field_index("speed")
    faster = pa.array([11.0] * len(devices), pa.float64())
    faulty = devices.set_column(place, devices.schema.field(place), faster)
    pq.write_table(faulty, tmp_path / files.DEVICES)
    reseal(tmp_path)
    assert DURATIONS in found(tmp_path)


def test_keys_of_secure_aggregation_that_wait_for_a_host_are_of_one_round(tmp_path: Path) -> None:
    strategy = {
        "kind": "fedavg",
        "clients_per_round": 6,
        "secure_aggregation": {"neighbors": 4},
    }
    world = quiet_world(strategy, seed=2, rounds=2) | {"learning": "off"}
    world["population"] = {
        "devices": 6,
        "speed": "10 samples/s",
        "host": {"number": 1, "cores": 1, "workers": 2},
    }
    fedsim.run(fedsim.Scenario(**world), tmp_path)
    assert found(tmp_path) == set()


def test_a_warm_up_of_so_many_steps_is_no_training_of_epochs(tmp_path: Path) -> None:
    moment = {"kind": "local", "steps": 3}
    scenario = fedsim.Scenario(
        learning="off",
        data={"partition": "iid"},
        population={"devices": 6, "speed": "50 samples/s"},
        strategy={
            "kind": "lcfl",
            "groups": 2,
            "participation": 0.2,
            "measure": "diff-norm",
            "moment": moment,
        },
        stop={"rounds": 1},
    )
    fedsim.run(scenario, tmp_path / "run", executor="inline")
    assert found(tmp_path / "run") == set()
