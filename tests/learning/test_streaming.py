"""Large models are computed part by part: who may be freed when, by hand, and the same bits and
records as in waves.
"""

import asyncio
import errno
import gc
import os
import pickle
import random
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.common.errors import show_error
from fedsim.common.tensor_files import open_tensors, write_tensors
from fedsim.common.training import Proximal, Training
from fedsim.learning import scratch as scratch_module
from fedsim.learning.derived import Derived
from fedsim.learning.engine import Learning
from fedsim.learning.functions import function_at, spliced, weighted_sum
from fedsim.learning.models import Logistic
from fedsim.learning.refs import Applied, Initial, Mixed, Ref, Trained, Waves
from fedsim.learning.resident_models import MixSum, ResidentModels
from fedsim.learning.scratch import Scratch, Weights, Written
from fedsim.learning.streaming import ResultOf, Stream, build_graph, steps_of
from fedsim.running.checkpoint.codec import Decoder, Encoder
from fedsim.running.runner import Job
from tests.learning.small import federation, learning, run

D = 4


class Plain:
    """A calculator whose initial models are their number everywhere, and whose trainings add 1.

    Attributes:
        arrays: all weights made so far.
        alive: for each model that was begun how many of these were in memory.
        lost: names of models whose computation fails.
    """

    workers = 1
    at_once = 1

    def __init__(self) -> None:
        self.arrays: list[weakref.ref[Any]] = []
        self.begun: list[str] = []
        self.alive: list[int] = []
        self.lost: list[str] = []
        self.left_out: list[tuple[str, list[str]]] = []

    def begin(self, refs: Sequence[Ref]) -> list[ResultOf | Weights]:
        return [self._begin(ref) for ref in refs]

    def _begin(self, ref: Ref) -> Weights:
        self.begun.append(ref.name)
        self.alive.append(sum(array() is not None for array in self.arrays))
        if ref.name in self.lost:
            raise RuntimeError(ref.name)
        recipe = ref.recipe
        if isinstance(recipe, Initial):
            return self._made(np.full(D, recipe.count, np.float32))
        if isinstance(recipe, Trained):
            value = recipe.training.start.value
            return self._made(value + (np.float32(np.inf) if ref.device == 99 else 1))
        assert isinstance(recipe, Applied)
        values = [model.value for model in recipe.models if model.value is not None]
        return self._made(np.asarray(np.add.reduce(values), dtype=np.float32))

    def _made(self, weights: Weights) -> Weights:
        self.arrays.append(weakref.ref(weights))
        return weights

    def finish(self, ref: Ref, result: Weights) -> None:
        ref.settle(result)

    async def wait(self, work: Any) -> Any:
        raise AssertionError

    def note_left_out(self, ref: Ref, models: Sequence[Ref]) -> None:
        if models:
            self.left_out.append((ref.name, [model.name for model in models]))

    def new_sum(self) -> MixSum:
        return MixSum(ResidentModels(torch.device("cpu")), D)

    def substitute(self, otherwise: Ref | None) -> Weights:
        assert otherwise is not None
        assert otherwise.value is not None
        return otherwise.value

    def nothing(self) -> Weights:
        return np.zeros(D, np.float32)

    @contextmanager
    def muted(self) -> Iterator[None]:
        before = list(self.left_out)
        yield
        assert self.left_out == before


def _trained(start: Ref, serial: int, device: int = 0) -> Ref:
    return Ref(f"update-{serial}", serial, Trained(Training(start), device, 0, 0, 0), device)


def _mixed(parts: list[tuple[Ref, float]], serial: int, **how: Any) -> Ref:
    recipe = Mixed(tuple(parts), how.get("otherwise"), how.get("rescale", True))
    return Ref(f"model-{serial}", serial, recipe)


def _cohort(size: int, device: int = 0) -> tuple[Ref, list[Ref], Ref]:
    """A start, updates from it, and their mean."""
    start = Ref("model-0", 0, Initial(3))
    updates = [_trained(start, 1 + number, device) for number in range(size)]
    mean = _mixed([(update, 1 / size) for update in updates], size + 1)
    return start, updates, mean


def _play(targets: list[Ref], calculator: Plain, room: float = 0, stay: bool = True) -> Scratch:
    scratch = Scratch(room)
    run(Stream(calculator, scratch).compute(targets, stay=stay))
    return scratch


@pytest.fixture(autouse=True)
def _no_array_is_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_module, "SMALL", 0)


def test_the_steps_of_a_mean() -> None:
    _, updates, mean = _cohort(2)
    del updates
    steps = [(step.node.name, step.part) for step in steps_of(build_graph([mean], stay=True))]
    assert steps == [
        ("model-0", None),
        ("update-1", None),
        ("model-3", 0),
        ("update-2", None),
        ("model-3", 1),
        ("model-3", None),
    ]


def test_the_cells_of_a_mean_of_means_are_added_up_one_after_the_other() -> None:
    start = Ref("model-0", 0, Initial(3))
    cells = [
        _mixed([(_trained(start, n), 0.5), (_trained(start, n + 1), 0.5)], n + 2) for n in (1, 4)
    ]
    cloud = _mixed([(cell, 0.5) for cell in cells], 7)
    steps = [(step.node.name, step.part) for step in steps_of(build_graph([cloud], stay=True))]
    assert [name for name, part in steps if part is None] == [
        *("model-0", "update-1", "update-2", "model-3", "update-4", "update-5", "model-6"),
        "model-7",
    ]
    assert steps.index(("model-7", 0)) < steps.index(("update-4", None))


def test_parts_that_nobody_names_are_freed_as_they_are_added() -> None:
    mean = _cohort(40)[2]
    calculator = Plain()
    scratch = _play([mean], calculator)
    assert mean.value is not None
    assert mean.value.tolist() == [4.0] * D
    assert max(calculator.alive) == 2  # the start, and the part whose turn it is
    assert sum(array() is not None for array in calculator.arrays) == 0
    assert scratch.written_bytes == 0
    assert len(calculator.begun) == 41


def test_parts_that_somebody_names_lie_on_disk() -> None:
    start, updates, mean = _cohort(5)
    named = updates[1:3]
    updates.clear()
    calculator = Plain()
    scratch = _play([mean], calculator)
    assert [type(update.held) for update in named] == [Written, Written]
    assert [update.value.tolist() for update in named if update.value is not None] == [
        [4.0] * D
    ] * 2
    assert type(start.held) is Written  # named here
    assert scratch.written_bytes == 3 * 4 * D
    assert type(mean.held) is np.ndarray  # wanted
    assert all(update.recipe is None and update.finite for update in named)


def test_an_uncomputed_recipe_names_its_models() -> None:
    start, updates, mean = _cohort(5)
    later = _mixed([(updates[3], 1.0), (start, -1.0)], 9, rescale=False)
    updates.clear()
    calculator = Plain()
    _play([mean], calculator)
    assert len(calculator.begun) == 6
    _play([later], calculator)
    assert len(calculator.begun) == 6  # nothing is computed twice
    assert later.value is not None
    assert later.value.tolist() == [1.0] * D


def test_a_device_s_previous_model_is_freed_once_its_new_one_is_computed() -> None:
    """Ditto: at no time are the old and the new models of all devices in the file."""
    first = [_trained(Ref("model-0", 0, Initial(3)), 1 + number) for number in range(8)]
    scratch = _play(first, Plain(), stay=False)
    assert scratch.peak_bytes == 8 * 4 * D
    second = [_trained(old, 20 + number) for number, old in enumerate(first)]
    personal = [
        _mixed([(update, 1.0)], 40 + number, otherwise=old)
        for number, (update, old) in enumerate(zip(second, first, strict=True))
    ]
    first.clear()
    second.clear()
    run(Stream(Plain(), scratch).compute(personal, stay=False))
    assert [type(model.held) for model in personal] == [Written] * 8
    assert scratch.peak_bytes <= 10 * 4 * D


def _kept(model: Ref, serial: int) -> Ref:
    path = "fedsim.learning.functions:taken"
    recipe = Applied(path, (model,), {"places": ((0, 1),)}, None, None, False, 1)
    return Ref(f"values-{serial}", serial, recipe)


def test_values_are_taken_from_a_model_before_it_is_freed() -> None:
    """FedPer: no update waits in memory for the step that takes what its device keeps."""
    _, updates, mean = _cohort(30)
    kept = [_kept(update, 50 + number) for number, update in enumerate(updates)]
    updates.clear()
    calculator = Plain()
    _play([mean, *kept], calculator)
    assert mean.value is not None
    assert len(calculator.begun) == 61
    waiting = [number - place // 2 for place, number in enumerate(calculator.alive)]
    assert max(waiting) <= 3  # besides the kept values: the start, an update, and the next one


def _spliced(model: Ref, values: Ref, serial: int, places: Any = ((0, 1),)) -> Ref:
    recipe = Applied(
        "fedsim.learning.functions:spliced", (model, values), {"places": places}, None, None, False
    )
    return Ref(f"model-{serial}", serial, recipe)


class Splicing(Plain):
    """A calculator that calls the functions of recipes."""

    def _begin(self, ref: Ref) -> Weights:
        recipe = ref.recipe
        if not isinstance(recipe, Applied):
            return super()._begin(ref)
        values = [model.value for model in recipe.models if model.value is not None]
        function = function_at(recipe.function)
        return self._made(np.asarray(function(values, **recipe.constants), dtype=np.float32))


@pytest.mark.parametrize(
    ("values", "held"), [([7.0], Derived), ([7.0, 7.0, 7.0], Written), ([np.inf], Written)]
)
def test_a_shared_model_with_few_values_of_a_device_is_put_together_when_it_is_read(
    values: list[float], held: type
) -> None:
    shared = Ref("model-0", 0, Initial(3))
    kept = Ref("values-1", 1, None)
    kept.settle(np.array(values, dtype=np.float32))
    personal = _spliced(shared, kept, 2, ((0, len(values)),))
    scratch = _play([shared], Splicing(), stay=False)
    run(Stream(Splicing(), scratch).compute([personal], stay=False))
    assert type(personal.held) is held
    assert personal.value is not None
    assert personal.value.tolist() == [*values, *[3.0] * (D - len(values))]
    again = pickle.loads(pickle.dumps(personal.held))
    assert again.tolist() == personal.value.tolist()


def test_a_model_that_needs_no_space_leaves_memory_first() -> None:
    shared = Ref("model-0", 0, Initial(3))
    kept = Ref("values-1", 1, None)
    kept.settle(np.array([7.0], dtype=np.float32))
    scratch = Scratch(2 * 4 * D)
    run(Stream(Splicing(), scratch).compute([shared], stay=False))
    personal = [_spliced(shared, kept, 2 + number) for number in range(4)]
    run(Stream(Splicing(), scratch).compute(personal, stay=False))
    assert type(shared.held) is np.ndarray
    assert [type(model.held) for model in personal] == [Derived] * 3 + [np.ndarray]
    assert scratch.written_bytes == 0


def test_there_is_room_in_memory_until_it_is_taken_and_again_when_it_is_given_back() -> None:
    _, updates, mean = _cohort(5)
    scratch = _play([mean], Plain(), room=3 * 4 * D)
    kinds = [type(update.held) for update in updates]
    assert kinds == [Written] * 3 + [np.ndarray] * 2  # the oldest ones lie in the file
    del updates[3:]
    gc.collect()
    other = Ref("model-9", 9, None)
    other.settle(np.zeros(D, np.float32))
    scratch.hold(other)
    assert type(other.held) is np.ndarray


def test_personal_models_of_many_rounds_take_no_more_than_the_memory_for_models() -> None:
    """Each round fits in the memory, and all devices' own models do not."""
    made = {
        "seed": 3,
        "population": {"devices": 12, "speed": "40 samples/s"},
        "network": {"kind": "star"},
        "data": {"source": "digits", "partition": "iid"},
        "model": {"kind": "mlp", "hidden": [300]},  # 22,510 numbers, 90 kB
        "strategy": {"kind": "ditto", "clients_per_round": 2},
        "stop": {"rounds": 8},
    }
    found = {}
    for memory in ("1 GB", "1 MB"):
        scenario = fedsim.Scenario(**made | {"training": {"memory": memory}})
        job = Job(scenario, None, Inline())
        summary = asyncio.run(job.execute()).summary
        scratch = job.run.learner._computing.scratch
        found[memory] = summary["models_sha256"], summary["events_sha256"]
        assert (scratch.written_bytes > 0) == (memory == "1 MB")
        assert scratch._used <= {"1 GB": 1e9, "1 MB": 1e6}[memory]
    assert found["1 MB"] == found["1 GB"]


def test_the_file_is_emptied_when_nobody_names_its_models() -> None:
    updates, mean = _cohort(5)[1:]
    scratch = _play([mean], Plain())
    file = scratch._descriptor()
    assert os.fstat(file).st_size == 5 * 4 * D
    updates.pop()
    again = Ref("model-9", 9, None)
    again.settle(np.arange(D, dtype=np.float32))
    scratch.hold(again)
    assert os.fstat(file).st_size == 5 * 4 * D  # in the free place
    assert again.value is not None
    assert again.value.tolist() == [0.0, 1.0, 2.0, 3.0]
    updates.clear()
    again.held = None
    gc.collect()
    assert os.fstat(file).st_size == 0


def test_targets_lie_on_disk_unless_their_weights_are_wanted() -> None:
    _, updates, _ = _cohort(3)
    _play(updates, Plain(), stay=False)
    assert {type(update.held) for update in updates} == {Written}
    _, updates, _ = _cohort(3)
    _play(updates, Plain(), stay=True)
    assert {type(update.held) for update in updates} == {np.ndarray}


def test_a_sum_whose_part_is_not_finite_is_repeated_with_what_was_freed() -> None:
    start = Ref("model-0", 0, Initial(3))
    changes = []
    for number in range(4):  # an update that is used through a function
        update = _trained(start, 1 + 2 * number, device=99 if number == 2 else number)
        recipe = Applied("f", (update, start), {}, None, None, leave_out=False)
        changes.append(Ref(f"model-{2 + 2 * number}", 2 + 2 * number, recipe))
    mean = _mixed([(change, 0.25) for change in changes], 10)
    del update, recipe
    changes.clear()
    calculator = Plain()
    _play([mean], calculator)
    assert calculator.left_out == [("model-10", ["model-6"])]
    assert mean.value is not None
    assert mean.value.tolist() == pytest.approx([7.0] * D)
    assert calculator.begun.count("update-1") == 2
    assert calculator.begun.count("update-5") == 1
    assert len(calculator.begun) == 9 + 6


def test_a_chain_of_thousands_needs_no_recursion() -> None:
    ref = start = Ref("model-0", 0, Initial(0))
    for at in range(1, 6001, 3):
        update = _trained(ref, at)
        other = _trained(ref, at + 1)
        parts = [(update, 0.5), (other, 0.5)] if at % 2 else [(other, 0.5), (update, 0.5)]
        ref = _mixed(parts, at + 2, otherwise=start)
    del update, other, parts
    calculator = Plain()
    _play([ref], calculator)
    assert ref.value is not None
    assert ref.value.tolist() == [2000.0] * D
    assert max(calculator.alive) < 8


def test_after_an_error_models_can_be_computed_again() -> None:
    _, updates, mean = _cohort(4)
    calculator = Plain()
    calculator.lost = ["update-3"]
    with pytest.raises(RuntimeError, match="update-3"):
        _play([mean], calculator)
    assert updates[0].value is not None
    calculator.lost = []
    _play([mean], calculator)
    assert mean.value is not None
    assert mean.value.tolist() == [4.0] * D


def test_a_full_disk_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    _, updates, mean = _cohort(4)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space") as failure:
        _play([mean], Plain())
    assert updates
    assert show_error(failure.value).startswith("the disk that holds '")


def test_a_model_on_disk_is_saved_and_sent_as_its_weights() -> None:
    ref = Ref("model-9", 9, None)
    ref.settle(np.arange(D, dtype=np.float32))
    Scratch(0).hold(ref)
    assert type(ref.held) is Written
    encoder = Encoder()
    tree = encoder.encode(ref)
    assert list(tree["objects"][0][1])[4] == "held"
    assert list(encoder.arrays.values()) == [ref.held]  # not read before it is written
    (restored,) = _restored(encoder, tree)
    assert restored.value is not None
    assert restored.value.tolist() == [0.0, 1.0, 2.0, 3.0]
    copy = pickle.loads(pickle.dumps(ref))
    assert copy.held.tolist() == [0.0, 1.0, 2.0, 3.0]


def _restored(encoder: Encoder, tree: dict[str, object]) -> list[Ref]:
    """The models of a checkpoint, of which only the tree and the file are left."""
    with tempfile.TemporaryDirectory() as folder:
        write_tensors(Path(folder, "arrays"), encoder.arrays)
        decoder = Decoder(dict(open_tensors(Path(folder, "arrays")).tensors))
        decoder.decode(tree)
    return [ref for ref in decoder.objects if isinstance(ref, Ref)]


def test_a_resume_reads_as_many_models_as_it_has_room_for() -> None:
    refs = [Ref(f"model-{serial}", serial, None) for serial in range(5)]
    for ref in refs:
        ref.settle(np.full(D, ref.serial, dtype=np.float32))
    same = Ref("choice-5", 5, None, held=refs[4].held, finite=True)
    encoder = Encoder()
    restored = _restored(encoder, encoder.encode([*refs, same]))
    size = D * 4
    storage = Scratch(3 * size)
    storage.hold_restored(restored)
    held = [type(ref.held) is np.ndarray for ref in restored]
    assert held == [False, False, False, True, True, True]  # the newest
    assert restored[4].held is restored[5].held
    assert [ref.value.tolist() for ref in restored if ref.value is not None] == [
        [float(serial)] * D for serial in (0, 1, 2, 3, 4, 4)
    ]
    late = Ref("model-6", 6, None)
    late.settle(np.zeros(D, dtype=np.float32))
    storage.hold(late)  # a model more, so that the oldest of those in memory goes to the file
    assert [type(ref.held) is np.ndarray for ref in restored] == [False] * 4 + [True] * 2


# The engine, with every model too large for memory, against the same in waves.


def _drawn(core: Learning, draw: random.Random) -> list[Ref]:
    """Models made of each other in all ways, some of which are not finite."""
    models = [core.initial(0), core.initial(1), core.zero()]
    for number in range(draw.randint(5, 40)):
        kind = draw.choice(["train", "train", "mix", "mix", "apply", "best"])
        start, other = draw.choice(models), draw.choice(models)
        if kind == "train":
            training = Training(
                start,
                draw.randint(1, 2),
                proximal=Proximal(draw.choice([0.0, 0.1]), draw.choice([None, other])),
                lr=1e38 if draw.random() < 0.15 else None,
            )
            models.append(core.train(training, draw.randrange(4), key=number))
        elif kind == "mix":
            parts = [(draw.choice(models), draw.uniform(-1, 1)) for _ in range(draw.randint(0, 6))]
            otherwise = draw.choice([None, other])
            models.append(core.mix(parts, otherwise, rescale=draw.random() < 0.6))
        elif kind == "apply":
            pair = [start, other]
            function: Any = spliced
            constants: dict[str, Any] = {"places": ((0, 3), (5, 6))}
            if draw.random() < 0.5:
                function = weighted_sum
                constants = {"coefficients": [0.5, draw.random()]}
            otherwise = draw.choice([None, draw.choice(models)])
            models.append(core.apply(function, pair, otherwise=otherwise, **constants))
        elif kind == "best":
            models.append(core.best([start, other], draw.randrange(4)))
    return models


def _values(seed: int, room: float, executor: Any) -> tuple[list[bytes], list[Any]]:
    draw = random.Random(seed)
    core, records = learning(federation([9, 7, 12, 5]), Logistic(), executor)
    core._computing.memory_bytes = room
    core._computing.scratch = Scratch(room)
    models = _drawn(core, draw)
    found = []
    for _ in range(3):
        targets = [draw.choice(models) for _ in range(draw.randint(1, 3))]
        named = [model for model in models if draw.random() < 0.3]  # all others are forgotten
        models = [*targets, *named]
        gc.collect()
        found += [weights.tobytes() for weights in run(core.values(targets))]
        losses = [core.train_loss([(target, 1.0)]) for target in targets]
        found += [repr(run(loss)).encode() for loss in losses]
    found += [weights.tobytes() for weights in run(core.values(models))]
    core._simulation.executor.close()
    return found, [(record.kind, record.fields) for record in records]


@pytest.mark.parametrize("seed", range(60))
def test_bits_and_records_are_those_of_waves(seed: int) -> None:
    expected = _values(seed, 1e9, Inline())
    assert _values(seed, 0, Inline()) == expected
    if seed % 4 == 0:
        assert _values(seed, 0, Threads(3)) == expected
    if seed % 4 == 1:
        assert _values(seed, 700.0, Threads(1)) == expected


def test_waves_know_their_number() -> None:
    _, updates, mean = _cohort(5)
    assert len(Waves([mean])) == 7
    assert len(Waves(updates[:2])) == 3
