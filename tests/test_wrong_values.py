"""Wrong values that users' code gives otherwise than as arguments: in results of hooks and in names.

A hook of a strategy or of its client half returns steps, trainings, contents and the like. A wrong
value in these ends in an error of fedsim that names the field and the value. A value that is
accepted does no harm: the run goes on to its end, and its folder passes the audit.
"""

import asyncio
import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.errors import FedsimError, SimulationError, show_value
from fedsim.common.returns import guard
from fedsim.federation.contents import payloads
from fedsim.federation.round_checks import find_wrong_model
from fedsim.lab.audit import audit
from fedsim.plugin import (
    Client,
    Contrast,
    Device,
    Evaluate,
    Instruction,
    Limit,
    LocalEpochs,
    LocalResult,
    LocalSteps,
    ModelCut,
    Part,
    Pause,
    Payload,
    PreviousResult,
    Proximal,
    Real,
    Strategy,
    Streams,
    TaskEnd,
    TaskStep,
    Train,
    Training,
    Upload,
    Work,
    pure,
)
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job
from fedsim.strategies.updates import samples_of

HERE = f"{__name__}:"
ODD: dict[str, Any] = {
    "None": None,
    "text": "x",
    "-1": -1,
    "0": 0,
    "1.5": 1.5,
    "NaN": math.nan,
    "infinity": math.inf,
    "2**70": 2**70,
    "True": True,
    "list": [],
    "dict": {},
    "object": object(),
}


def train(model: Any, *amount: Any, **fields: Any) -> list[TaskStep]:
    return [Train(Training(model, *amount, **fields))]


def limited(model: Any, **fields: Any) -> list[TaskStep]:
    return [Train(Training(model), Limit(**{"stop_at": 1e6, **fields}))]


def sums(model: Any, *parts: Any) -> list[TaskStep]:
    start = PreviousResult(parts)
    return [Train(Training(model)), Train(Training(start))]


SPOTS: dict[str, Callable[[Any, Any], Any]] = {
    "amount": lambda model, value: train(model, value),
    "LocalEpochs.count": lambda model, value: train(model, LocalEpochs(value)),
    "LocalSteps.steps": lambda model, value: train(model, LocalSteps(value)),
    "LocalSteps.only_batch": lambda model, value: train(model, LocalSteps(2, value)),
    "batch_size": lambda model, value: train(model, batch_size=value),
    "part": lambda model, value: train(model, part=value),
    "Part.splits": lambda model, value: train(model, part=Part(value, 1, 20)),
    "Part.number": lambda model, value: train(model, part=Part(1, value, 20)),
    "Part.out_of": lambda model, value: train(model, part=Part(1, 1, value)),
    "proximal": lambda model, value: train(model, proximal=value),
    "Proximal.mu": lambda model, value: train(model, proximal=Proximal(value)),
    "Proximal.anchor": lambda model, value: train(model, proximal=Proximal(0.1, value)),
    "linear": lambda model, value: train(model, linear=value),
    "contrast": lambda model, value: train(model, contrast=value),
    "Contrast.previous": lambda model, value: train(model, contrast=Contrast(value, 0.1, 0.5)),
    "Contrast.weight": lambda model, value: train(model, contrast=Contrast(model, value, 0.5)),
    "Contrast.temperature": lambda model, value: train(model, contrast=Contrast(model, 1.0, value)),
    "lr": lambda model, value: train(model, lr=value),
    "held": lambda model, value: train(model, held=value),
    "held of a range": lambda model, value: train(model, held=((0, value),)),
    "share": lambda model, value: train(model, share=value),
    "cut": lambda model, value: train(model, cut=value),
    "ModelCut.by": lambda model, value: train(model, cut=ModelCut(value, 0.5)),
    "ModelCut.size": lambda model, value: train(model, cut=ModelCut("width", value)),
    "result": lambda model, value: train(model, result=value),
    "layers": lambda model, value: train(model, layers=value),
    "training": lambda model, value: [Train(value)],
    "limit": lambda model, value: [Train(Training(model), value)],
    "Limit.stop_at": lambda model, value: limited(model, stop_at=value),
    "Limit.budget": lambda model, value: limited(model, budget=value),
    "Limit.reserve_upload": lambda model, value: limited(model, reserve_upload=value),
    "Limit.adaptive": lambda model, value: limited(model, adaptive=value),
    "Limit.at_least": lambda model, value: limited(model, at_least=value),
    "Limit.go_on": lambda model, value: limited(model, go_on=value),
    "Limit.reserve_s": lambda model, value: limited(model, reserve_s=value),
    "Limit.cut_undoes": lambda model, value: limited(model, cut_undoes=value),
    "parts": lambda model, value: train(PreviousResult(value)),
    "parts of an entry": lambda model, value: sums(model, value),
    "parts of a model": lambda model, value: sums(model, (value, 0.5), (model, 0.5)),
    "parts of a factor": lambda model, value: sums(model, (0, value)),
    "Work.samples": lambda model, value: [Work(samples=value)],
    "Work.flops": lambda model, value: [Work(flops=value)],
    "Work.seconds": lambda model, value: [Work(seconds=value)],
    "Work.what": lambda model, value: [Work(seconds=1.0, what=value)],
    "Pause.name": lambda model, value: [Pause(value, 1.0)],
    "Pause.seconds": lambda model, value: [Pause("sleep", value)],
    "Evaluate.models": lambda model, value: [Evaluate(value)],
    "Evaluate.models of an entry": lambda model, value: [Evaluate((value,))],
    "Evaluate.limit": lambda model, value: [Evaluate((model,), value)],
    "Evaluate.samples": lambda model, value: [Evaluate((model,), samples=value)],
    "payloads": lambda model, value: [Upload(value)],
    "payloads of an entry": lambda model, value: [Upload((value,))],
    "Payload.purpose": lambda model, value: [Upload((Payload(value, 10.0),))],
    "Payload.bytes": lambda model, value: [Upload((Payload("x", value),))],
    "step": lambda model, value: [Pause("sleep", 1.0), value],
}
"""Field of a step -> function of a model and a value that makes steps, one with the value."""

NEEDS = {
    "Work.flops": "population.device, which says so in its own error",
    "ModelCut.size": "a model that has no such cut says so in its own error",
}
"""Field -> what an accepted value needs, so that it is not tried in the run."""


def cases() -> Iterator[tuple[str, str]]:
    for spot in SPOTS:
        for label in ODD:
            yield spot, label


class Odd(Client[Any]):
    """Does the steps of a case, and answers without an update."""

    def work(self, device: Device, instruction: Instruction) -> Any:
        model = instruction["model"]
        return SPOTS[instruction["spot"]](model, ODD[instruction["label"]])

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Any:
        return {"model": result.update} if result.update is not None else {"none": 1}


class Mean(Strategy[Any]):
    """Calls ``play`` at its start, and reads each model that a device answers."""

    Client = Odd
    play: ClassVar[Callable[["Mean"], Any]]
    facts_of_run: ClassVar[dict[str, Any]] = {}

    async def on_start(self) -> None:
        self.state["model"] = self.server.models.initial()
        await type(self).play(self)

    async def on_task_end(self, message: Any) -> None:
        if "model" in message.contents:
            await self.server.models.value(message["model"])

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}

    def facts(self) -> Any:
        return self.facts_of_run


def run(folder: Path, devices: int = 2, kind: str = "Mean") -> None:
    scenario = fedsim.Scenario(
        data={"source": "digits"},
        model={"kind": "logistic"},
        population={"devices": devices, "speed": "100 samples/s"},
        network={"kind": "star", "device": {"up": "10 kB/s", "down": "10 kB/s"}},
        strategy={"kind": f"{HERE}{kind}"},
        stop={"simulated_time": "100000 s"},
    )
    asyncio.run(Job(scenario, folder, Inline()).execute())


def called(base: type, name: str, function: Callable[..., Any], *arguments: Any) -> Any:
    """The result of a hook of a user's class, or its error."""
    names = {name: function, "__module__": __name__, "__qualname__": "Mine"}
    own: Any = type(base)("Mine", (base,), names)
    guard(own, "strategy")
    return getattr(own, name)(None, *arguments)


ANSWERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda update: None,
    "empty": lambda update: {},
    "number": lambda update: {"loss": 0.5},
    "header": lambda update: {"samples": fedsim.plugin.Header(3)},
    "model": lambda update: {"update": update},
    "model in a header": lambda update: {"update": fedsim.plugin.Header(update)},
    "model in a dict": lambda update: {"update": fedsim.plugin.Opaque({"of": [update]}, 8.0)},
}
"""Name -> function of an update that makes an answer."""


class Answering(Client[Any]):
    """Trains, and answers as the request says."""

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Any:
        return ANSWERS[instruction["answer"]](result.update)


class OneRound(Strategy[Any]):
    """Asks a device for each answer in one round, and aggregates the answers in ``aggregated``."""

    Client = Answering
    aggregated: ClassVar[tuple[str, ...]] = ()

    async def on_start(self) -> None:
        self.state.update(model=self.server.models.initial(), answers=[], open=len(ANSWERS))
        self.server.begin_round(0)
        for device, answer in enumerate(ANSWERS):
            contents = {"model": self.state["model"], "answer": fedsim.plugin.Header(answer)}
            self.server.ask(device, contents, round=0)

    async def on_task_end(self, message: Any) -> None:
        self.state["open"] -= 1
        if message.asked["answer"] in self.aggregated:
            self.state["answers"].append(message.task)
        if self.state["open"]:
            return
        tasks = self.state["answers"]
        if tasks:
            self.server.emit(
                "aggregate", round=0, tasks=tasks, weights=[1 / len(tasks)] * len(tasks)
            )
        counts = {"selected": len(ANSWERS), "valid": len(ANSWERS), "slow": 0, "disconnected": 0}
        await self.server.finish_round(0, self.models(), [], **counts)
        self.server.stop("one round")

    def models(self) -> Any:
        return {"global": (self.state["model"], None)}


class Handed(Client[Any]):
    """Has a function in place of its work, so that the class is guarded once."""

    function: ClassVar[Callable[[], Any]]

    def work(self, device: Device, instruction: Instruction) -> Any:
        return type(self).function()


def error_of(function: Callable[..., Any], *arguments: Any) -> str:
    """The error of fedsim that a call ends in; empty if the call is right."""
    try:
        function(*arguments)
    except FedsimError as error:
        return str(error)
    return ""


def is_refused(spot: str, label: str, model: Any) -> bool:
    """Whether steps with a value are refused, by an error that names the field and the value."""
    value = ODD[label]
    guard(Handed, "strategy")
    Handed.function = lambda: SPOTS[spot](model, value)
    error = error_of(Handed.work, Handed.__new__(Handed), None, None)
    if not error:
        return False
    field = spot.partition(" ")[0].rpartition(".")[2]
    assert field in error or "LocalEpochs whose count" in error, error
    assert show_value(value)[:30] in error, error
    return True


def test_wrong_fields_of_steps_are_refused_by_name_or_do_no_harm(tmp_path: Path) -> None:
    accepted: list[tuple[str, str]] = []

    async def play(strategy: Mean) -> None:
        model = strategy.state["model"]
        accepted.extend(case for case in cases() if not is_refused(*case, model))
        tried = [(spot, label) for spot, label in accepted if spot not in NEEDS]
        for device, (spot, label) in enumerate(tried):
            contents = {"model": model, "spot": fedsim.plugin.Header(spot)}
            strategy.server.ask(device, contents | {"label": fedsim.plugin.Header(label)})

    Mean.play = play
    run(tmp_path / "run", devices=150)
    assert not any(audit(tmp_path / "run").values())
    assert 80 < len(accepted) < 150
    assert len([*cases()]) > 600


WITH_MODEL = tuple(answer for answer in ANSWERS if answer.startswith("model"))


@pytest.mark.parametrize("left_out", [(), *[(answer,) for answer in WITH_MODEL], WITH_MODEL])
def test_answers_with_a_model_have_to_be_aggregated_and_no_others(
    left_out: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    aggregated = tuple(answer for answer in WITH_MODEL if answer not in left_out)
    monkeypatch.setattr(OneRound, "aggregated", aggregated)
    run(tmp_path / "run", devices=len(ANSWERS), kind="OneRound")
    findings = {name: sorted(lines) for name, lines in audit(tmp_path / "run").items() if lines}
    tasks = [[*ANSWERS].index(answer) for answer in left_out]
    says = [f"task {task} was done in time, but no aggregation counts it" for task in tasks]
    assert findings == ({"every valid update was aggregated once": says} if says else {})
    events = RunFolder(tmp_path / "run").events
    (record,) = [event for event in events if event["kind"] == "no-update"]
    assert sorted(record["data"]["tasks"]) == [0, 1, 2, 3]


def test_an_update_of_numbers_may_be_aggregated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OneRound, "aggregated", (*WITH_MODEL, "number"))
    run(tmp_path / "run", devices=len(ANSWERS), kind="OneRound")
    assert not any(audit(tmp_path / "run").values())


def test_layers_of_a_training_are_fedsims_to_set() -> None:
    with pytest.raises(SimulationError, match=r"whose layers is 1 and not None, as fedsim sets it"):
        called(Client, "work", lambda *_: train(None, layers=1), None, None)
    with pytest.raises(SimulationError, match=r"Mine\.training .* a Training whose layers is 2"):
        called(Client, "training", lambda *_: Training(None, layers=2), None, None)


PLACES: dict[str, Any] = {
    "tuples": ((0, 2), (5, 7)),
    "lists": [[0, 2], [5, 7]],
    "numbers of numpy": ((np.int64(0), np.int32(2)), (np.uint8(5), np.int64(7))),
    "array": np.array([[0, 2], [5, 7]]),
    "list of arrays": [np.array([0, 2]), np.array([5, 7])],
}


@pytest.mark.parametrize("places", PLACES)
def test_places_of_a_partial_are_plain_numbers(places: str) -> None:
    partial = fedsim.plugin.Partial(None, None, PLACES[places])  # type: ignore[arg-type]
    assert partial.places == ((0, 2), (5, 7))
    assert {type(number) for pair in partial.places for number in pair} == {int}
    assert partial.count == 4


def test_wrong_places_of_a_partial_are_refused_as_they_are() -> None:
    ref = fedsim.learning.refs.Ref("m", 0, None)
    for value in [*ODD.values(), ((0, np.float64(1.5)),), ((2, 1),), ((np.int64(-1), 1),), [(0,)]]:
        if isinstance(value, list) and not value:
            continue  # a message of no parameters
        with pytest.raises(SimulationError, match="a Partial with places=") as caught:
            payloads({"update": fedsim.plugin.Partial(ref, ref, value)}, None)  # type: ignore[arg-type]
        assert show_value(value) in str(caught.value)


@pytest.mark.parametrize("name", ["training", "limit", "work", "computed", "reply", "real"])
def test_a_hook_of_a_client_that_returns_another_value_is_named(name: str) -> None:
    arguments = (None, None, None) if name in ("computed", "reply") else (None, None)
    for label, value in ODD.items():
        if (name, label) in (("reply", "None"), ("reply", "dict"), ("real", "None")):
            continue
        if (name, label) == ("work", "list"):
            continue
        says = f"strategy: Mine.{name} "
        with pytest.raises(SimulationError, match=says) as caught:
            called(Client, name, lambda *_, value=value: value, *arguments)
        assert show_value(value) in str(caught.value)


def test_steps_of_a_generator_are_checked_and_remain_to_be_read() -> None:
    def work(*_: Any) -> Any:
        yield Pause("sleep", 1.0)

    def wrong(*_: Any) -> Any:
        yield Pause("sleep", 1.0)
        yield 5

    assert len([*called(Client, "work", work, None, None)]) == 1
    with pytest.raises(SimulationError, match=r"Mine\.work .* returns 5 as a step; allowed"):
        called(Client, "work", wrong, None, None)


def test_numbers_of_numpy_are_right_in_a_training() -> None:
    training = Training(
        fedsim.learning.refs.Ref("m", 0, None),
        LocalSteps(np.int64(3), np.int64(0)),
        lr=np.float32(0.1),
        held=((np.int64(0), np.int64(2)),),
    )
    assert called(Client, "training", lambda *_: training, None, None) is training
    assert (type(training.amount.count), training.amount.only_batch) == (int, 0)


@pytest.mark.parametrize("name", ["update", "start", "tested", "trained", "samples", "steps"])
def test_wrong_fields_of_a_result_are_named(name: str) -> None:
    right = LocalResult(1, 1, 1, None, None, None)
    right_labels = ("0",) if name in ("samples", "steps") else ("None",)
    for label, value in ODD.items():
        result = right._replace(**{name: value})
        arguments = (lambda *_, result=result: result, None, None, None)
        if label in right_labels or (name == "samples" and label == "0"):
            assert called(Client, "computed", *arguments) is result
            continue
        with pytest.raises(SimulationError, match=f"a LocalResult whose {name} is "):
            called(Client, "computed", *arguments)


def test_a_pause_cannot_pass_for_another_step() -> None:
    for name in ("train", "upload", "queue", ""):
        with pytest.raises(SimulationError, match=r"a Pause whose name is .* no name of another"):
            called(Client, "work", lambda *_, name=name: [Pause(name, 1.0)], None, None)


def test_a_sum_of_results_begins_with_trainings_that_there_are() -> None:
    with pytest.raises(
        SimulationError, match=r"PreviousResult whose parts have training 1, of 1 before it"
    ):
        called(Client, "work", lambda *_: sums(None, (1, 1.0)), None, None)


def test_a_function_that_is_none_and_names_of_contents_are_named() -> None:
    with pytest.raises(SimulationError, match="a Real whose function is 3"):
        called(Client, "real", lambda *_: Real(3, ()), None, None)
    with pytest.raises(SimulationError, match="a Real whose arguments are 3"):
        called(Client, "real", lambda *_: Real(len, 3), None, None)
    with pytest.raises(SimulationError, match="a dict with the name 3"):
        called(Client, "reply", lambda *_: {3: 1.0}, None, None, None)


WRONG_OF_STRATEGY: dict[str, list[tuple[Any, str]]] = {
    "tensors": [
        ({"file": value}, show_value(value)) for label, value in ODD.items() if label != "dict"
    ]
    + [({"file": {"array": value}}, show_value(value)) for value in ODD.values()]
    + [({name: {}}, repr(name)) for name in ("", "a/b", "../a", "/tmp/a", "a\0b", 3, "a" * 300)]
    + [({"file": {name: np.zeros(2)}}, repr(name)) for name in (None, True, math.nan, (1,), "")]
    + [({"file": {"array": np.array([object()])}}, "array")],
    "facts": [
        ({"algorithm": 3}, "3 for 'algorithm'"),
        ({"notes": "a text"}, "'a text' for 'notes'"),
        ({"warnings": [3]}, "[3] for 'warnings'"),
        ({"mine": math.nan}, "nan for 'mine'"),
        ({"mine": object()}, "for 'mine'"),
        ({3: 1}, "the name 3"),
    ],
    "group_of": [(value, show_value(value)) for value in (-2, 1.5, 2**70, "x", [], math.nan)],
    "groups_of": [([0, value], show_value(value)) for value in (-2, 1.5, 2**70, "x", [], {})]
    + [([], "0 groups for 2 devices"), (None, "None")],
}
"""Hook of a strategy -> wrong results, each with a part of its error."""


@pytest.mark.parametrize("name", WRONG_OF_STRATEGY)
def test_wrong_results_of_hooks_of_a_strategy_are_named(name: str) -> None:
    arguments = {"group_of": (0,), "groups_of": (range(2),)}.get(name, ())
    for value, says in WRONG_OF_STRATEGY[name]:
        with pytest.raises(SimulationError, match=f"strategy: Mine.{name} ") as caught:
            called(Strategy, name, lambda *_, value=value: value, *arguments)
        assert says[:60] in str(caught.value)


def test_right_results_of_hooks_of_a_strategy_are_as_they_were() -> None:
    facts = {"algorithm": "mine", "notes": ["a"], "mine": {"b": [1.5, None]}}
    assert called(Strategy, "facts", lambda *_: facts) is facts
    groups = np.array([0, 1])
    assert called(Strategy, "groups_of", lambda *_: groups, range(2)) is groups
    tensors = {"file": {"array": np.zeros(2)}}
    assert called(Strategy, "tensors", lambda *_: tensors) is tensors


@pytest.mark.parametrize("samples", [value for label, value in ODD.items() if label not in "01.5"])
def test_a_count_of_samples_that_is_none_is_named(samples: Any) -> None:
    answer = TaskEnd(0, 7, 0, None, "train", "done", {}, {"samples": samples})
    with pytest.raises(SimulationError, match="the answer of device 7 has the content 'samples'"):
        samples_of(answer)


@pytest.mark.parametrize("name", ["", "/tmp/x", "a\0b", "a" * 300, 3])
def test_a_name_of_a_model_by_which_no_file_can_be_written_is_refused(name: Any) -> None:
    ref = fedsim.learning.refs.Ref("m", 0, None)
    assert "by which no file can be written" in find_wrong_model({name: (ref, None)}, 2, 3)
    assert find_wrong_model({"group/0": (ref, None)}, 2, 3) == ""


@pytest.mark.parametrize("name", ["status", "stopped", "events", "wall_s"])
def test_an_entry_of_the_summary_that_fedsim_adds_is_refused(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def play(strategy: Mean) -> None:
        strategy.server.stop("enough")

    monkeypatch.setattr(Mean, "play", play, raising=False)
    monkeypatch.setattr(Mean, "facts_of_run", {name: 1})
    with pytest.raises(SimulationError, match=f"Mean.facts returns '{name}', an entry"):
        run(tmp_path / "run")


STREAMS: dict[str, Callable[[Any], object]] = {
    "seed": lambda value: Streams(value).word("draw"),
    "word purpose": lambda value: Streams(1).word(value),
    "word entity": lambda value: Streams(1).word("draw", value),
    "word count": lambda value: Streams(1).word("draw", 0, value),
    "uniform purpose": lambda value: Streams(1).uniform(value),
    "uniform entity": lambda value: Streams(1).uniform("draw", value),
    "uniform count": lambda value: Streams(1).uniform("draw", 0, value),
    "normal purpose": lambda value: Streams(1).normal(value),
    "normal entity": lambda value: Streams(1).normal("draw", value),
    "normal count": lambda value: Streams(1).normal("draw", 0, value),
    "uniforms purpose": lambda value: Streams(1).uniforms(value, np.arange(3)),
    "uniforms entities": lambda value: Streams(1).uniforms("draw", value),
    "uniforms count": lambda value: Streams(1).uniforms("draw", np.arange(3), value),
    "generator purpose": lambda value: Streams(1).generator(value),
    "generator id": lambda value: Streams(1).generator("draw", value),
}


@pytest.mark.parametrize("spot", STREAMS)
def test_wrong_names_of_random_draws_are_refused(spot: str) -> None:
    allowed = ("text",) if "purpose" in spot else ("-1", "0", "True", "2**70")
    for label, value in ODD.items():
        error = error_of(STREAMS[spot], value)
        assert label in allowed if error == "" else show_value(value) in error


@pure
def times(models: list[Any], factor: Any) -> Any:
    return models[0] * factor


@pure
def made(models: list[Any], label: str) -> Any:
    return ODD[label]


def test_a_function_of_models_that_fails_is_named_with_its_constants(tmp_path: Path) -> None:
    says: list[str] = []

    async def play(strategy: Mean) -> None:
        models = strategy.server.models
        start = [strategy.state["model"]]
        calls: list[tuple[Any, dict[str, Any]]] = [
            (times, {"factor": "x"}),
            (times, {"factor": {}}),
            (times, {"unknown": 1}),
            *((made, {"label": label}) for label in ODD),
        ]
        for function, constants in calls:
            with pytest.raises(SimulationError) as caught:
                await models.value(models.apply(function, start, **constants))
            says.append(str(caught.value))
            assert f"{HERE}{function.__name__}" in says[-1]
        with pytest.raises(SimulationError, match=r"stream is \('draw', -2\); allowed is a tuple"):
            models.apply(times, start, stream=("draw", -2), factor=1.0)
        strategy.server.stop("enough")

    Mean.play = play
    run(tmp_path / "run")
    assert f"{HERE}times(..., factor='x') failed, in test_wrong_values.py, line" in says[0]
    assert json.loads((tmp_path / "run" / "summary.json").read_text())["status"] == "done"
    assert len(RunFolder(tmp_path / "run").events) > 0
