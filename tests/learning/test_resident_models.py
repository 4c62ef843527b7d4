"""Models that stay on a torch device: what goes there and comes back, and the bits that they have.

A CPU stands in for the GPU. With room for models on it (``stand_in``) models go the way of a GPU:
they are copied there, stay, are added up there and come back, and all copies are counted.
"""

import asyncio
import gc
import pickle
from contextlib import closing
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads, WorkerProcesses
from fedsim.common.training import Training
from fedsim.learning import engine, resident_models, scratch
from fedsim.learning.data.federated import FederatedData, Shard, pooled
from fedsim.learning.engine import Learning
from fedsim.learning.functions import weighted_sum
from fedsim.learning.host_copies import CopyCounts, counted_copies
from fedsim.learning.models import CNN5, ModelSpec, Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.resident_models import (
    MixSum,
    ResidentModels,
    ResidentScratch,
    ResidentWeights,
)
from fedsim.learning.solvers.context import parts_of
from fedsim.running.checkpoint.apart import LinkedTensors
from fedsim.running.checkpoint.codec import Encoder
from fedsim.running.runner import Job
from fedsim.strategies import STRATEGIES as REGISTERED
from fedsim.testing import go_on, run_until
from tests.benchmarks.hashes import OF_WORLDS, STRATEGIES, WORLDS
from tests.learning.conftest import grey_images
from tests.learning.small import learning, run
from tests.learning.stand_ins import CPU, ROOM, meta_for_a_gpu, stand_in

WEIGHTS = 4 * (64 * 16 + 16 + 16 * 10 + 10)
DEVICES = 8
LANES = 4
SAMPLES = DEVICES * 20 * (4 * 64 + 8)


def learner(
    executor: Executor | None = None, model: ModelSpec | None = None, **training: Any
) -> Learning:
    """A learner of eight devices, whose stacks have four lanes; by default of a perceptron."""
    pool = pooled(grey_images(20, 1), "pixel").pool
    index = np.arange(20 * DEVICES, dtype=np.int32).reshape(DEVICES, 20)
    data = FederatedData(pool, [Shard(part, part[:3]) for part in index])
    options = {"solver": "cohort", "lanes": LANES, "batch_size": 16} | training
    core, _ = learning(data, model or Perceptron(hidden=[16]), executor, **options)
    return core


def known(serial: int, weights: Any) -> Ref:
    """A computed model of the host."""
    ref = Ref(f"model-{serial}", serial, None)
    ref.settle(np.asarray(weights, dtype=np.float32))
    return ref


def resident_model(models: ResidentModels, serial: int, weights: Any) -> Ref:
    """A model that was computed on the torch device."""
    (kept,) = models.keep([torch.tensor(np.asarray(weights, dtype=np.float32))])
    ref = Ref(f"model-{serial}", serial, None)
    ref.settle(kept)
    return ref


def fed_avg(core: Learning, start: Ref, together: int = DEVICES) -> Ref:
    """A round of FedAvg with all devices, whose updates are computed ``together`` at a time."""
    updates = [core.train(Training(start), device, key=start.serial) for device in range(DEVICES)]
    for begin in range(0, DEVICES, together):
        run(core.compute(updates[begin : begin + together]))
    mean = core.mix([(update, 1 / DEVICES) for update in updates])
    run(core.compute([mean]))
    return mean


def third_round(core: Learning) -> tuple[CopyCounts, Ref]:
    """The copies of a round, when all samples have been sent, and its model."""
    model = fed_avg(core, fed_avg(core, core.initial()))
    with counted_copies() as counts:
        model = fed_avg(core, model)
    return counts, model


def test_a_model_is_copied_once_and_the_one_used_longest_ago_is_freed() -> None:
    models = ResidentModels(CPU, memory_bytes=2.5 * 4 * 10)
    first, second, third = (known(serial, np.full(10, serial)) for serial in range(3))

    def copies(ref: Ref) -> int:
        with counted_copies() as counts:
            tensor = models.of(ref)
        assert isinstance(tensor, torch.Tensor)
        assert np.array_equal(tensor.numpy(), ref.value)
        assert models.used_bytes <= 2.5 * 4 * 10
        return counts.to_device

    assert [copies(ref) for ref in (first, second, first, third)] == [1, 1, 0, 1]
    assert [copies(ref) for ref in (first, second)] == [0, 1]
    with counted_copies() as counts:
        assert models.of(known(9, np.ones(100))) is not None  # larger than all the room
    assert counts == CopyCounts(1, 0, 400, 0)


def test_without_room_a_model_is_the_array_of_the_host() -> None:
    ref = known(0, np.ones(10))
    models = ResidentModels(CPU)
    assert not models.stays
    with counted_copies() as counts:
        assert models.of(ref) is ref.value
        assert models.named(ref) is ref.value
    assert counts == CopyCounts()


def test_a_worker_process_has_copies_of_its_own_and_keeps_no_results() -> None:
    ref = known(4, np.ones(10))
    models = ResidentModels(CPU, memory_bytes=ROOM)
    models.of(ref)
    worker = pickle.loads(pickle.dumps(models))
    assert worker.used_bytes == 0
    for copies in (1, 0):
        model = pickle.loads(pickle.dumps(models.named(ref)))
        with counted_copies() as counts:
            worker.flat(model)
        assert counts.to_device == copies
    with counted_copies() as counts:
        results = worker.keep([torch.ones(10), torch.zeros(10)])
    assert counts.to_host == 1
    assert all(isinstance(result, np.ndarray) for result in results)
    sent = pickle.loads(pickle.dumps(resident_model(models, 5, np.arange(10)).held))
    assert sent.tolist() == [*range(10)]


def test_a_round_sends_no_model_and_reads_none(monkeypatch: pytest.MonkeyPatch) -> None:
    before, expected = third_round(learner())
    stand_in(monkeypatch)
    core = learner()
    after, model = third_round(core)
    stacks = DEVICES // LANES
    assert before.to_device_bytes - after.to_device_bytes == stacks * WEIGHTS + SAMPLES
    assert before.to_host_bytes == stacks * LANES * (WEIGHTS + 8)
    flags = DEVICES + 1  # whether each update and their mean are finite
    assert after.to_host_bytes == stacks * LANES * 8 + flags
    assert isinstance(model.held, ResidentWeights)
    with counted_copies() as counts:
        weights = run(core.value(model))
        assert run(core.value(model)) is weights
    assert counts == CopyCounts(0, 1, 0, WEIGHTS)
    assert weights.tobytes() == expected.value.tobytes()  # type: ignore[union-attr]


def test_all_of_a_wave_that_a_strategy_reads_comes_back_in_one_copy(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stand_in(monkeypatch)
    core = learner()
    updates = [core.train(Training(core.initial()), device, key=0) for device in range(DEVICES)]
    run(core.compute(updates))
    with counted_copies() as counts:
        run(core.values(updates))
        run(core.values(updates))
    assert counts == CopyCounts(0, 1, 0, DEVICES * WEIGHTS)
    with counted_copies() as counts:  # the copies on the device serve the next trainings
        run(core.compute([core.train(Training(updates[0]), 0, key=1)]))
    assert counts.to_device_bytes < WEIGHTS


@cache
def plain_bits() -> bytes:
    """The weights after two rounds of FedAvg as a CPU computes them."""
    core = learner()
    model = fed_avg(core, fed_avg(core, core.initial()))
    weights = run(core.value(model)).tobytes()
    assert not core._models.used_bytes
    return weights


@pytest.mark.parametrize("together", [1, 7, DEVICES])
@pytest.mark.parametrize("room", [WEIGHTS / 2, 3 * WEIGHTS, 10 * WEIGHTS, ROOM])
@pytest.mark.parametrize("memory", ["10 kB", "1 GB"])
def test_no_bit_depends_on_waves_workers_and_room(
    memory: str, room: float, together: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """``memory`` is that of the host, of which the lesser one has models computed part by part."""
    expected = plain_bits()
    stand_in(monkeypatch, room)
    with closing(Threads(2) if together == 7 else Inline()) as executor:
        core = learner(executor, memory=memory)
        model = core.initial()
        for _ in range(2):
            model = fed_avg(core, model, together)
        assert run(core.value(model)).tobytes() == expected
    assert core._models.used_bytes <= room


MODELS = {"perceptron": Perceptron(hidden=[16]), "convolutions": CNN5(width=0.1)}


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_on_the_meta_device_only_batches_go_up_and_only_losses_come_down(model: Any) -> None:
    """Torch's device without numbers raises at all that is read without being counted."""
    with meta_for_a_gpu() as loops:
        core = learner(model=model)
        counts, mean = third_round(core)
        run(core.evaluate({"model": (mean, None)}))
    assert loops.count == 3 * DEVICES // LANES
    assert loops.crossings == []
    assert set(map(repr, loops.transfers)) == {repr(CopyCounts())}
    assert isinstance(mean.held, ResidentWeights)
    assert counts.to_device_bytes < 4 * core.parameters
    assert counts.to_host_bytes == DEVICES * 8 + DEVICES + 1


def test_memory_is_free_once_nobody_needs_the_models(monkeypatch: pytest.MonkeyPatch) -> None:
    stand_in(monkeypatch)
    core = learner()
    model = fed_avg(core, fed_avg(core, core.initial()))
    gc.collect()
    assert core._models.used_bytes == 2 * WEIGHTS  # the last model, and the copy of the first
    del model
    gc.collect()
    assert core._models.used_bytes == WEIGHTS


def test_stored_models_leave_the_device_for_new_results_the_unused_ones_first() -> None:
    models = ResidentModels(CPU, memory_bytes=8 * 40)
    storage = ResidentScratch(1e9, models)
    refs = []
    for serial in range(4):
        refs.append(resident_model(models, serial, np.full(10, serial)))
        storage.hold(refs[-1])
    models.of(refs[0])
    refs.append(resident_model(models, 4, np.full(10, 4)))
    storage.hold(refs[-1])  # half of the room is for four models
    on_device = [isinstance(ref.held, ResidentWeights) for ref in refs]
    assert on_device == [True, False, True, True, True]
    assert [float(ref.value[0]) for ref in refs] == [0, 1, 2, 3, 4]  # type: ignore[index]
    assert models.used_bytes == 4 * 40
    shared = Ref("choice-9", 9, None)
    shared.held, shared.finite = refs[0].held, True
    storage.bring_back(refs)
    assert not any(isinstance(ref.held, ResidentWeights) for ref in refs)
    assert shared.value is refs[0].value


def test_models_that_leave_the_device_go_to_disk_if_the_host_has_no_room() -> None:
    models = ResidentModels(CPU, memory_bytes=2.0 * scratch.SMALL)
    storage = ResidentScratch(0, models)
    refs = [resident_model(models, serial, np.full(scratch.SMALL // 4 + 1, 7)) for serial in (0, 1)]
    for ref in refs:
        storage.hold(ref)
    assert storage.written_bytes > 0
    assert all(np.array_equal(ref.value, np.full(scratch.SMALL // 4 + 1, 7)) for ref in refs)


class Operations(TorchDispatchMode):
    """Lists torch's operations, with the factor of additions."""

    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.names.append(func.overloadpacket.__name__)
        assert (kwargs or {}).get("alpha", 1) == 1
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("places", ["dddddddd", "hhhhhhhh", "hddhhddh", "dhhhhhhh", "hhhhhhhd"])
def test_a_sum_has_the_bits_of_the_host_wherever_its_models_lie(places: str) -> None:
    """Products and sums are operations of their own, so that no GPU can fuse them into one."""
    draw = np.random.default_rng(3)
    size = 70_000
    arrays = []
    for _ in places:
        values = np.ldexp(draw.normal(size=size), draw.integers(-149, 124, size))
        arrays.append(values.astype(np.float32))
    arrays[0][:3] = [-0.0, 0.0, 1e-45]
    coefficients = (draw.normal(size=len(places)) * 7).tolist()
    models = ResidentModels(CPU, memory_bytes=ROOM)
    assert models.adds_alike
    total = MixSum(models, size)
    with Operations() as operations:
        for serial, (place, array) in enumerate(zip(places, arrays, strict=True)):
            on_device = place == "d"
            ref = resident_model(models, serial, array) if on_device else known(serial, array)
            total.add(ref, coefficients[serial])
        result = total.result()
    expected = weighted_sum(arrays, coefficients).astype(np.float32)
    assert isinstance(result, ResidentWeights) == ("d" in places)
    found = result.read() if isinstance(result, ResidentWeights) else result
    assert found.tobytes() == expected.tobytes()
    arithmetic = {"mul_", "add_", "copy_", "_to_copy", "zeros", "empty_like", "isfinite", "all"}
    others = {"detach", "stack", "lift_fresh", "clone", "abs", "eq", "ne", "mul"}
    assert {*operations.names} <= arithmetic | others


def test_a_sum_stays_on_the_host_if_the_device_rounds_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Products are added with 64 binary digits here, nearly as by a fused multiply-add."""

    def fused(total: Any, product: Any, model: Any, coefficient: float) -> None:
        exact = model.numpy().astype(np.longdouble) * np.longdouble(coefficient)
        total.copy_(torch.from_numpy((total.numpy() + exact).astype(np.float64)))

    monkeypatch.setattr(resident_models, "add_product", fused)
    models = ResidentModels(CPU, memory_bytes=ROOM)
    assert not models.adds_alike
    total = MixSum(models, 10)
    total.add(resident_model(models, 0, np.ones(10)), 0.1)
    assert isinstance(total.result(), np.ndarray)


def test_a_model_on_the_device_is_one_file_of_all_checkpoints(tmp_path: Path) -> None:
    models = ResidentModels(CPU, memory_bytes=ROOM)
    ref = resident_model(models, 0, np.arange(1 << 18))
    linked = LinkedTensors()
    inodes = []
    for number in range(2):
        encoder = Encoder()
        encoder.encode(ref)
        (tensor,) = encoder.arrays.values()
        assert isinstance(tensor, ResidentWeights)
        path = tmp_path / f"{number}.safetensors"
        linked.add_written(path, tensor, linked.write(path, tensor))
        inodes.append(path.stat().st_ino)
    assert inodes[0] == inodes[1]


def sections(kind: str, rounds: int = 3) -> dict[str, Any]:
    """A small scenario of a strategy with the cohort solver, in the world ``star`` of hashes."""
    tables = WORLDS["star"] | OF_WORLDS.get(kind, {})
    tables |= {"strategy": {"kind": kind} | STRATEGIES.get(kind, {})}
    training = dict(tables["training"]) | {"solver": "cohort", "lanes": LANES}
    return tables | {"training": training, "stop": {"rounds": rounds}}


FIGURES = ("models_sha256", "accuracy", "bytes", "events")


def figures(tables: dict[str, Any], executor: Executor | None = None) -> dict[str, Any]:
    """Figures of a run that do not depend on where models lie."""
    job = Job(fedsim.Scenario(**tables), None, executor or Inline())
    summary = asyncio.run(job.execute()).summary
    return {name: summary.get(name) for name in FIGURES}


KINDS = sorted({*REGISTERED, *STRATEGIES} - {"flower"})


@pytest.mark.parametrize("kind", KINDS)
def test_every_strategy_learns_the_same_models(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = figures(sections(kind))
    stand_in(monkeypatch, 10 * 4 * 1000)  # ten models
    assert figures(sections(kind)) == expected


ADAM = {"kind": "torch", "optimizer": "Adam", "lr": 0.01, "batch_size": 8}
TRAINERS: dict[str, dict[str, Any]] = {
    "one at a time": {"solver": "reference"},
    "clipped": {"solver": "cohort", "lanes": LANES, "clip": 0.5},
    "bf16": {"solver": "cohort", "lanes": LANES, "precision": "bf16"},
    "adam": ADAM | {"solver": "cohort", "lanes": LANES},
    "adam, one at a time": ADAM,
    "adam whose state is sent": ADAM | {"state": "sent"},
}


@pytest.mark.parametrize("training", TRAINERS.values(), ids=TRAINERS)
def test_every_solver_starts_from_models_on_the_device(
    training: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    kind = "fedavg" if "state" in training else "feddyn"  # which sends no state of a trainer
    tables = sections(kind, 2) | {"training": training}
    expected = figures(tables)
    stand_in(monkeypatch, 10 * 4 * 1000)
    assert figures(tables) == expected


def test_a_trainer_gets_copies_of_the_model_on_the_device() -> None:
    model = torch.arange(6.0)
    parts = parts_of(model, {"weight": torch.zeros(2, 2), "bias": torch.zeros(2)})
    parts["weight"].zero_()
    assert model.tolist() == [0, 1, 2, 3, 4, 5]


def test_in_worker_processes_models_go_to_the_device_by_their_serials(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = plain_bits()
    stand_in(monkeypatch)
    monkeypatch.setattr(engine, "ResidentModels", lambda device, _: ResidentModels(device, ROOM))
    with closing(WorkerProcesses(1)) as executor:
        core = learner(executor)
        model = fed_avg(core, fed_avg(core, core.initial()))
        assert isinstance(model.held, np.ndarray)  # sums of models of the host are the host's
        assert model.held.tobytes() == expected
        run(core.evaluate({"model": (model, None)}))


@pytest.mark.parametrize("kind", ["fedbuff", "scaffold", "ditto", "ifca", "fedasync"])
def test_a_run_that_is_killed_while_models_lie_on_the_device_goes_on_to_the_same_end(
    kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tables = sections(kind, 4) | {"checkpoint": {"time": "1 s"}}
    stand_in(monkeypatch)
    expected = figures(tables)
    saved = []

    def note(self: Encoder, value: object) -> dict[str, object]:
        table = encode(self, value)
        saved.append(sum(isinstance(array, ResidentWeights) for array in self.arrays.values()))
        return table

    encode = Encoder.encode
    monkeypatch.setattr(Encoder, "encode", note)
    assert run_until(tables, tmp_path, int(0.6 * expected["events"])) == "interrupted"
    assert any(saved)
    monkeypatch.undo()
    stand_in(monkeypatch)
    resumed = go_on(tables, tmp_path)
    assert {name: resumed[name] for name in FIGURES} == expected
