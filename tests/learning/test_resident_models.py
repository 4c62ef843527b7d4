"""Models that stay on a torch device: what goes there, and the bits that they have."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim.clock.executors import Executor, Inline, Threads, WorkerProcesses
from fedsim.common.training import Training
from fedsim.learning import resident, resident_models
from fedsim.learning.data.federated import FederatedData, Shard, pooled
from fedsim.learning.engine import Learning
from fedsim.learning.models import Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.resident_models import ResidentModels
from fedsim.learning.transfers import TransferCounts, counted_transfers
from fedsim.running.runner import Job
from tests.learning.conftest import grey_images
from tests.learning.small import learning, run

CPU = torch.device("cpu")
ROOM = 1e9
WEIGHTS = 4 * (64 * 16 + 16 + 16 * 10 + 10)
DEVICES = 8


def stand_in(monkeypatch: pytest.MonkeyPatch, room: float = ROOM) -> None:
    """Let the CPU stand for a GPU: samples and models are copied to it, and stay there."""
    monkeypatch.setattr(resident, "room_of", lambda _: ROOM)
    monkeypatch.setattr(resident_models, "room_of", lambda _: room)


def learner(executor: Executor | None = None, **training: Any) -> Learning:
    """A learner of eight devices, whose stacks have four lanes."""
    pool = pooled(grey_images(20, 1), "pixel").pool
    index = np.arange(160, dtype=np.int32).reshape(DEVICES, 20)
    data = FederatedData(pool, [Shard(part, part[:3]) for part in index])
    options = {"solver": "cohort", "lanes": 4, "batch_size": 16} | training
    core, _ = learning(data, Perceptron(hidden=[16]), executor, **options)
    return core


def known(serial: int, weights: Any) -> Ref:
    """A computed model."""
    ref = Ref(f"model-{serial}", serial, None)
    ref.settle(np.asarray(weights, dtype=np.float32))
    return ref


def test_a_model_is_copied_once_and_the_one_used_longest_ago_is_freed() -> None:
    models = ResidentModels(CPU, room=2.5 * 4 * 10)
    first, second, third = (known(serial, np.full(10, serial)) for serial in range(3))

    def copies(ref: Ref) -> int:
        with counted_transfers() as counts:
            tensor = models.of(ref)
        assert isinstance(tensor, torch.Tensor)
        assert np.array_equal(tensor.numpy(), ref.value)
        assert models.used_bytes <= 2.5 * 4 * 10
        return counts.to_device

    assert [copies(ref) for ref in (first, second, first, third)] == [1, 1, 0, 1]
    assert [copies(ref) for ref in (first, second)] == [0, 1]
    with counted_transfers() as counts:
        assert models.of(known(9, np.ones(100))) is not None  # larger than all the room
    assert counts == TransferCounts(1, 0, 400, 0)


def test_without_room_a_model_is_the_array_of_the_host() -> None:
    ref = known(0, np.ones(10))
    models = ResidentModels(CPU)
    assert not models.stays
    with counted_transfers() as counts:
        assert models.of(ref) is ref.value
        assert models.named(ref) is ref.value
    assert counts == TransferCounts()


def test_a_worker_process_has_copies_of_its_own_by_the_serials_of_models() -> None:
    ref = known(4, np.ones(10))
    models = ResidentModels(CPU, room=ROOM)
    models.of(ref)
    worker = pickle.loads(pickle.dumps(models))
    assert worker.used_bytes == 0
    for copies in (1, 0):
        handle = pickle.loads(pickle.dumps(models.named(ref)))
        with counted_transfers() as counts:
            worker.flat(handle)
        assert counts.to_device == copies


def rounds(core: Learning, count: int, together: int = DEVICES) -> list[TransferCounts]:
    """Compute rounds of FedAvg with all devices, ``together`` at a time, and count the copies."""
    found = []
    model = core.initial()
    for number in range(count):
        with counted_transfers() as counts:
            updates = [core.train(Training(model), device, key=number) for device in range(DEVICES)]
            for begin in range(0, DEVICES, together):
                run(core.compute(updates[begin : begin + together]))
            model = core.mix([(update, 1 / DEVICES) for update in updates])
            run(core.compute([model]))
        found.append(counts)
    return found


def test_the_start_goes_up_once_for_all_stacks_of_a_round(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = rounds(learner(), 2)
    stand_in(monkeypatch)
    staying = rounds(learner(), 2)
    assert [now.to_device for now in staying]  # batches and rates of two stacks remain
    spared = 2 * WEIGHTS - WEIGHTS  # two stacks sent the start
    samples = DEVICES * 20 * (4 * 64 + 8)
    assert plain[1].to_device_bytes - staying[1].to_device_bytes == spared + samples
