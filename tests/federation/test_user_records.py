"""What users' code records: which kinds and fields are refused, and that the rest does no harm."""

import asyncio
import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedsim
from fedsim.common.errors import SimulationError
from fedsim.common.user_records import OWN_KINDS
from fedsim.federation.evaluator import NOT_MEASURED
from fedsim.federation.events import TaskEnd
from fedsim.federation.round_checks import BOOKED
from fedsim.federation.strategy_records import KINDS
from fedsim.plugin import Instruction, Measured, Strategy, Streams, World
from fedsim.records.schema import OF_PEERS, ROUNDS
from fedsim.testing import assert_sound, run
from tests.calls import call

HERE = __name__
WORLD: dict[str, Any] = {
    "learning": "off",
    "model": {"kind": "size", "bytes": "1 kB"},
    "population": {"devices": 5, "speed": "10 samples/s", "samples": {"low": 10, "high": 10}},
    "strategy": {"kind": f"{HERE}:Recording"},
}


class Recording(Strategy[Any]):
    """Asks device 0 in round 0, aggregates its update, and records what ``record`` says."""

    record: ClassVar[Callable[["Recording", TaskEnd], object]] = lambda strategy, end: None

    async def on_start(self) -> None:
        self.state["model"] = self.server.models.initial()
        self.server.ask(0, {"model": self.state["model"]}, round=0)

    async def on_task_end(self, message: TaskEnd) -> None:
        extra = type(self).record(self, message) or {}
        updates = [Measured(message["update"], 1.0)]
        await self.server.finish_round(0, self.models(), updates, **extra)  # type: ignore[arg-type]
        self.server.stop("one round")

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


def server() -> Any:
    """The server of a run that has not begun."""
    return fedsim.Simulation(fedsim.Scenario(**WORLD)).installed.strategy.server


def recorded(kind: str, **fields: Any) -> dict[str, Any]:
    """The fields of a record as it is stored."""
    found: list[Any] = []
    api = server()
    api._simulation.listen(found.append)
    api.emit(kind, **fields)
    stored: dict[str, Any] = found[0].fields
    return stored


# kinds


SOURCES = [path.read_text() for path in Path(fedsim.__file__).parent.rglob("*.py")]


def test_the_lists_of_kinds_are_those_that_fedsim_writes() -> None:
    texts = "\n".join(SOURCES)
    written = set(re.findall(r"""imulation\.record\(\s*"([\w-]+)",""", texts))
    written |= set(re.findall(r"""_clock\.record\(\s*"([\w-]+)",""", texts))
    written |= set(re.findall(r"""_processes\.emit\("([\w-]+)",""", texts))
    written |= set(re.findall(r"""kind = "(message|edge-transfer)"\n""", texts))
    written |= set(re.findall(r"""self\._record\(ref, "([\w-]+)",""", texts))
    assert written - {"reported"} == OWN_KINDS.keys() - {"sent", "received"}
    by_strategies = set(re.findall(r"""erver\.emit\(\s*"([\w-]+)",""", texts))
    assert by_strategies - {"mu", "cohort"} == KINDS


@pytest.mark.parametrize("kind", [*OWN_KINDS, "process:compute"])
def test_kinds_that_only_fedsim_writes_are_refused(kind: str) -> None:
    message = rf"Server\.emit: records of the kind '{kind}' are fedsim's own \(.+\); allowed is"
    with pytest.raises(SimulationError, match=message):
        server().emit(kind, device=0, round=0)


def test_an_error_names_what_to_call_instead() -> None:
    with pytest.raises(SimulationError, match=r"Server\.finish_round and Server\.note_round add"):
        server().emit("round", round=3)
    with pytest.raises(SimulationError, match=r"Server\.exchange adds them"):
        server().emit("server-transfer")


@pytest.mark.parametrize("kind", ["", 3, None, ["note"], "\ud800"])
def test_a_kind_is_a_name(kind: Any) -> None:
    with pytest.raises(SimulationError, match=r"Server\.emit: kind is .*; allowed is a text"):
        server().emit(kind)


# fields


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("device", "a", "a device of 0 to 4, or None"),
        ("device", 5, "a device of 0 to 4, or None"),
        ("device", 2**40, "a device of 0 to 4, or None"),
        ("device", True, "a device of 0 to 4, or None"),
        ("round", 1.5, "a whole number from 0 to 2147483647, or None"),
        ("group", -1, "a whole number from 0 to 2147483647, or None"),
        ("task", math.nan, "a whole number from 0 to 2147483647, or None"),
        ("step", 3, "a text .*, or None"),
        ("outcome", [1], "a text .*, or None"),
        ("outcome", "\ud800", "a text .*, or None"),
    ],
)
def test_columns_have_values_of_their_type(field: str, value: Any, allowed: str) -> None:
    message = rf"Server\.emit: {field} of the record 'note' is .*; allowed is {allowed}"
    with pytest.raises(SimulationError, match=message):
        server().emit("note", **{field: value})


LOOP: list[Any] = []
LOOP.append(LOOP)


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (object(), "<object object at .*>"),
        (math.nan, "nan"),
        ([1, {"a": math.inf}], r"\[1, {'a': inf}\], with inf in it"),
        ({1, 2}, "{1, 2}"),
        ({"a": {(1, 2): 3}}, r"{'a': {\(1, 2\): 3}}, with \(1, 2\) in it"),
        ({1: 2, "a": 3}, "{1: 2, 'a': 3}, with 1 in it"),
        (np.float32("nan"), r"np\.float32\(nan\)"),
        (10**5000, "<int>"),
        (LOOP, r"\[\[\.\.\.\]\]"),
    ],
    ids=["object", "nan", "inf", "set", "tuple", "names", "numpy", "digits", "loop"],
)
def test_other_fields_are_json(value: Any, shown: str) -> None:
    message = rf"Server\.emit: x of the record 'note' is {shown}; allowed is JSON: texts, finite"
    with pytest.raises(SimulationError, match=message):
        server().emit("note", x=value)


def test_numbers_of_numpy_are_recorded_as_plain_numbers() -> None:
    fields = recorded(
        "note",
        device=np.int64(3),
        round=np.int32(2),
        share=np.float32(0.5),
        sizes=np.arange(3),
        nested={"a": [np.bool_(True)]},
    )
    assert fields == {
        "device": 3,
        "round": 2,
        "share": 0.5,
        "sizes": [0, 1, 2],
        "nested": {"a": [True]},
    }
    assert [type(fields[name]) for name in ("device", "round", "share")] == [int, int, float]


@pytest.mark.parametrize(
    ("kind", "fields", "message"),
    [
        ("aggregate", {}, "lacks 'tasks'; it needs tasks"),
        ("aggregate", {"tasks": 3}, "tasks of the record 'aggregate' is 3; allowed is a list of"),
        ("aggregate", {"tasks": ["a"]}, r"is \['a'\]; allowed is a list of tasks"),
        ("aggregate", {"tasks": [2**70]}, "allowed is a list of tasks"),
        (
            "aggregate",
            {"tasks": [1], "weights": [1, 2]},
            "weights .* has 2 entries, and tasks has 1",
        ),
        ("aggregate", {"tasks": [1], "staleness": [0.5]}, "each a whole number"),
        ("updates-lost", {"round": 0}, "lacks 'tasks'"),
        ("assign", {"device": 1, "group": 2}, "lacks 'before'; it needs device, before, why"),
        ("assign", {"device": None, "before": None, "why": "x"}, "device of the record 'assign'"),
        ("round-start", {"round": 0}, "lacks 'selected'"),
        ("shift-test", {"device": 0, "fired": 1}, "fired .* is 1; allowed is True or False"),
        ("edges-combined", {"edges": [0]}, "lacks 'weights'"),
        ("cluster-split", {"round": 0, "group": 0, "children": [1]}, "lacks 'members'"),
        ("clustering", {"devices": [0, 1], "groups": [0]}, "groups .* has 1 entries, and devices"),
        ("clustering", {"devices": [0, 5], "groups": [0, 1]}, "each a device of 0 to 4"),
        (
            "clustering",
            {"devices": [0, 1], "groups": [0, 1], "similarity": [[1.0, 0.0], [1.0]]},
            "similarity .* in a matrix also of each row",
        ),
    ],
)
def test_kinds_that_reports_read_need_their_fields(
    kind: str, fields: dict[str, Any], message: str
) -> None:
    with pytest.raises(SimulationError, match=rf"Server\.emit: .*{message}"):
        server().emit(kind, **fields)


def test_records_of_the_house_may_have_numbers_of_models_that_diverge() -> None:
    fields = {"tasks": [1], "weights": [math.nan]}
    assert recorded("aggregate", **fields) == fields
    assert recorded("cluster-criteria", mean_norm=math.inf) == {"mean_norm": math.inf}


# where errors come from


def _wrong_mid_run(strategy: Recording, end: TaskEnd) -> None:
    strategy.server.emit("task-end", task=end.task)


def test_the_command_line_names_file_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "record", _wrong_mid_run)
    (tmp_path / "s.toml").write_text(fedsim.Scenario(**WORLD).to_toml())
    result = call("run", tmp_path / "s.toml", "--out", tmp_path / "run", "--allow-code")
    assert result.exit_code == 1
    assert "'task-end' are fedsim's own" in result.output
    assert re.search(r", in test_user_records\.py, line \d+", result.output)
    assert "Traceback" not in result.output


WRONG: dict[str, dict[str, Any]] = {
    "device": {"device": 9},
    "number": {"x": math.nan},
    "column": {"round": 1},
}


def chatty(world: World, what: str) -> Iterator[Any]:
    yield world.timeout(1.0)
    world.emit("note", **WRONG[what])


@pytest.mark.parametrize(
    ("what", "message"),
    [
        ("device", r"device of the record 'note' is 9; allowed is a device of 0 to 4"),
        ("number", r"x of the record 'note' is nan; allowed is JSON"),
        ("column", r"'round' is a column of its own"),
    ],
)
def test_the_error_of_a_process_has_its_file_and_line(what: str, message: str) -> None:
    process = {"kind": f"{HERE}:chatty", "what": what}
    simulation = fedsim.Simulation(fedsim.Scenario(**WORLD, world={"processes": [process]}))
    place = r"failed at 1\.0 s, in test_user_records\.py, line \d+: "
    with pytest.raises(SimulationError, match=f"{place}.*{message}"):
        asyncio.run(simulation.run())


def test_a_clock_alone_has_no_kinds_of_its_own() -> None:
    simulation = fedsim.Simulation()
    found: list[Any] = []
    simulation.listen(found.append)
    simulation.emit("round", round=np.int64(3))
    assert found[0].fields == {"round": 3}
    with pytest.raises(SimulationError, match=r"Simulation\.emit: x of the record 'a' is <object"):
        simulation.emit("a", x=object())
    with pytest.raises(SimulationError, match=r"Simulation\.emit: kind is 3"):
        simulation.emit(3)  # type: ignore[arg-type]
    of_scenario = fedsim.Simulation(fedsim.Scenario(**WORLD))
    with pytest.raises(SimulationError, match=r"Simulation\.emit: records of the kind 'round'"):
        of_scenario.emit("round", round=3)


# what is allowed does no harm


def _notes_of_a_task(strategy: Recording, end: TaskEnd) -> None:
    strategy.server.emit("note", task=end.task, device=end.device, step="upload", outcome="good")
    strategy.server.emit("stage", clients=3)


def _further_counts(strategy: Recording, end: TaskEnd) -> dict[str, Any]:
    return {"epsilon": np.float64(0.5), "share": np.float32(0.25), "words": ["a", "b"]}


def test_records_of_a_task_need_not_have_its_round_and_group(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "record", _notes_of_a_task)
    run(WORLD, tmp_path / "run")
    folder = assert_sound(tmp_path / "run")
    notes = [event for event in folder.events if event["kind"] == "note"]
    assert [(note["task"], note["step"]) for note in notes] == [(0, "upload")]


def test_further_counts_of_a_round_are_in_its_record_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Recording, "record", _further_counts)
    run(WORLD, tmp_path / "run")
    folder = assert_sound(tmp_path / "run")
    (ended,) = [event for event in folder.events if event["kind"] == "round"]
    assert (ended["data"]["share"], ended["data"]["words"]) == (0.25, ["a", "b"])
    assert [row["epsilon"] for row in folder.rows("rounds.parquet")] == [0.5]


# the end of a round


def test_fedsim_alone_fills_the_columns_that_are_no_measures() -> None:
    measures = {*NOT_MEASURED, *OF_PEERS, "purity", "ari", "nmi", "epsilon"}
    counts = {"selected", "valid", "slow", "disconnected"}
    assert set(BOOKED) == set(ROUNDS.names) - measures - counts


@pytest.mark.parametrize(
    ("figures", "counts", "message"),
    [
        ({"accuracy": math.nan}, {}, r"figures\['accuracy'\] is nan; allowed is a finite number"),
        ({"accuracy": "a"}, {}, r"figures\['accuracy'\] is 'a'"),
        ({"bytes_up": 1.0}, {}, "'bytes_up' is a column that fedsim itself fills"),
        ({}, {"time": 1.0}, "'time' is a column that fedsim itself fills"),
        ({"selected": 1}, {"selected": 1}, "'selected' is given twice"),
        ({}, {"selected": 1.5}, "selected is 1.5; allowed is a whole number"),
        ({}, {"other": object()}, "other of the record 'round' is <object"),
    ],
)
def test_figures_of_a_round_are_finite_and_of_free_columns(
    figures: dict[str, Any], counts: dict[str, Any], message: str
) -> None:
    with pytest.raises(SimulationError, match=rf"Server\.note_round: {message}"):
        server().note_round(0, figures, **counts)


def test_a_round_is_finished_once() -> None:
    api = server()
    api.note_round(np.int64(1), {"accuracy": np.float32(0.5)}, selected=np.int64(2))
    for number in (1, 0):
        with pytest.raises(SimulationError, match=f"round {number} is finished after round 1"):
            api.note_round(number, {})


# messages


def test_a_missing_content_is_named_with_the_nearest_one() -> None:
    end = TaskEnd(3, 0, 0, None, "train", "done", {}, {"update": 1, "samples": 2})
    with pytest.raises(SimulationError, match=r"no content 'updat' \(did you mean 'update'\?\)"):
        end["updat"]
    lost = TaskEnd(3, 0, 0, None, "train", "lost", {}, {})
    with pytest.raises(SimulationError, match="no content 'update', and no other: its outcome is"):
        lost["update"]
    with pytest.raises(SimulationError, match="the Instruction has no content 'model'"):
        Instruction("train", {"start": 1}, 0)["model"]


def test_a_random_generator_has_a_name() -> None:
    """Also that of ``MeterContext.streams``."""
    for name in (("draw", 1.5), ("draw", None), ("draw", -2), ("\ud800",)):
        with pytest.raises(SimulationError, match="a random generator is named"):
            Streams(1).generator(*name)  # type: ignore[arg-type]
