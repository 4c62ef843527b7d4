"""Copies between host and torch device: how many there are, and samples that stay there."""

import ast
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

import fedsim
from fedsim.clock.executors import Inline, Threads
from fedsim.common.training import Batching, LocalEpochs, Training
from fedsim.learning import resident
from fedsim.learning.data.federated import Dataset, FederatedData, Pool, Shard, pooled
from fedsim.learning.data.transforms import Augmentation
from fedsim.learning.host_copies import CopyCounts, counted_copies
from fedsim.learning.models import Perceptron
from fedsim.learning.resident import ResidentSamples
from fedsim.learning.solvers.base import Descent, LocalSolve, draw_batches
from fedsim.learning.solvers.cohort import Cohort, kind_of
from fedsim.learning.solvers.reference import Reference
from fedsim.running.runner import Job
from tests.learning.conftest import grey_images
from tests.learning.small import learning, run
from tests.learning.stand_ins import CPU, META, ROOM, Crossings

LABEL_MAP = np.array([3, 1, 2, 0, 4, 5, 6, 7, 8, 9])
TRAIN = np.array([5, 2, 2, 9], dtype=np.int32)
TEST = np.array([1, 7, 11], dtype=np.int32)
SHARDS = {
    "plain": Shard(TRAIN, TEST),
    "turned": Shard(TRAIN, TEST, quarter_turns=3),
    "relabelled": Shard(TRAIN, TEST, label_map=LABEL_MAP),
    "flipped": Shard(TRAIN, TEST, flips=True),
    "augmented": Shard(TRAIN, TEST, quarter_turns=1, augment_seed=8),
    "empty": Shard(TRAIN[:0], TEST[:0]),
}
TOKENS = Pool(np.arange(60).reshape(12, 5), np.arange(12) % 3, 3, vocabulary=60)


def same(found: torch.Tensor, expected: np.ndarray[Any, Any]) -> bool:
    """Whether a tensor has the dtype, the shape and the bits of an array."""
    values = found.numpy()
    equal = values.dtype == expected.dtype and values.shape == expected.shape
    return equal and values.tobytes() == expected.tobytes()


@pytest.mark.parametrize("normalize", ["pixel", "standardize", "none"])
@pytest.mark.parametrize("shard", SHARDS.values(), ids=SHARDS)
def test_samples_that_stay_have_the_bits_of_samples_that_are_sent(
    shard: Shard, normalize: Any
) -> None:
    data = FederatedData(pooled(grey_images(2, 1), normalize).pool, [], Augmentation())
    staying = ResidentSamples(data, CPU, ROOM)
    for _ in range(2):
        for found, expected in zip(staying.train(shard), data.train_samples(shard), strict=True):
            assert same(found, expected)
        for found, expected in zip(staying.test(shard), data.test_samples(shard), strict=True):
            assert same(found, expected)
    chosen = np.arange(len(shard.train))[::-2].copy()
    for found, expected in zip(
        staying.train(shard, chosen), data.train_samples(shard), strict=True
    ):
        assert same(found, expected[chosen])


def test_tokens_and_targets_stay_as_they_are() -> None:
    targets = np.linspace(0.0, 1.0, 24, dtype=np.float32).reshape(12, 2)
    data = FederatedData(Pool(TOKENS.x, TOKENS.y, 3, targets=targets, vocabulary=60), [])
    x, y = ResidentSamples(data, CPU, ROOM).train(SHARDS["plain"])
    assert same(x, TOKENS.x[TRAIN])
    assert same(y, targets[TRAIN])


def test_bytes_are_copied_once_and_stay_bytes(small: Dataset) -> None:
    data = FederatedData(small.pool, [])
    staying = ResidentSamples(data, CPU, ROOM)
    pixels = len(TRAIN) * 64
    labels = len(TRAIN) * 8
    rule = 3 * 4  # scale, mean and standard deviation
    with counted_copies() as counts:
        for _ in range(5):
            staying.train(SHARDS["plain"])
    assert counts == CopyCounts(5, 0, pixels + labels + rule, 0)
    assert staying.used_bytes == pixels + labels + rule
    with counted_copies() as counts:
        for _ in range(5):
            ResidentSamples(data, CPU, 0).train(SHARDS["plain"])
    assert counts == CopyCounts(10, 0, 5 * (4 * pixels + labels), 0)


def test_without_room_the_shard_that_was_used_longest_ago_is_freed(small: Dataset) -> None:
    staying = ResidentSamples(FederatedData(small.pool, []), CPU, 2.5 * 4 * 72)
    one, two, three = (Shard(TRAIN + np.int32(n), TEST) for n in range(3))

    def copies(shard: Shard) -> int:
        with counted_copies() as counts:
            x, _ = staying.train(shard)
        assert same(x, staying.data.train_samples(shard)[0])
        assert staying.used_bytes <= 2.5 * 4 * 72
        return counts.to_device

    assert copies(one) == 2 + 3  # with scale, mean and standard deviation
    assert copies(two) == 2
    assert copies(one) == 0
    assert copies(three) == 2  # frees the second one
    assert copies(one) == 0
    assert copies(two) == 2


@pytest.mark.parametrize("solver", ["reference", "cohort"])
def test_all_that_steps_need_crosses_by_counted_copies(solver: str, small: Dataset) -> None:
    """On ``meta`` a copy to the host raises: the first one is that of the trained weights."""
    module = nn.Sequential(nn.Conv2d(1, 4, 3), nn.Flatten(), nn.Dropout(0.1), nn.Linear(144, 10))
    cohort = Cohort(module, META, lanes=4)
    staying = ResidentSamples(FederatedData(small.pool, []), META, ROOM)
    weights = np.zeros(40 + 1450, dtype=np.float32)
    work = []

    def train() -> None:
        if solver == "cohort":
            cohort.train_stack(cohort.watch.fresh(), kind_of(*work[0]), work)
        else:
            Reference.train(cohort, cohort.watch.fresh(), *work[0])

    with counted_copies() as counts, Crossings() as crossings:
        for shard in (SHARDS["plain"], SHARDS["turned"]):
            batches = draw_batches(
                np.random.default_rng(0), len(TRAIN), Batching(3), LocalEpochs(2)
            )
            solve = LocalSolve(weights, *staying.train(shard), batches)
            work.append((solve, Descent(0.1, mu=0.5, momentum=0.9)))
        with pytest.raises(NotImplementedError, match="meta"):
            train()
    samples = 2 * 2 + 3
    others = 6 + 2 if solver == "cohort" else 2  # batches, the start, and rates of lanes
    assert counts.to_device == samples + others
    assert crossings.operations == ["aten._to_copy.default"] * counts.to_device
    assert counts.to_host == 1


def bytes_sent(solver: str, rounds: int) -> tuple[list[int], list[int]]:
    """Bytes that trainings of three devices send to the torch device and read, by round."""
    pool = pooled(grey_images(10, 1), "pixel").pool
    index = np.arange(90, dtype=np.int32).reshape(3, 30)
    data = FederatedData(pool, [Shard(part, TEST) for part in index])
    core, _ = learning(data, Perceptron(hidden=[16]), solver=solver, lanes=4, batch_size=16)
    sent = []
    read = []
    model = core.initial()
    for number in range(rounds):
        with counted_copies() as counts:
            updates = [core.train(Training(model), device, key=number) for device in range(3)]
            run(core.values(updates))
        model = core.mix([(update, 1 / 3) for update in updates])
        run(core.value(model))
        sent.append(counts.to_device_bytes)
        read.append(counts.to_host_bytes)
    return sent, read


@pytest.mark.parametrize("solver", ["reference", "cohort"])
def test_samples_go_to_the_device_in_the_first_round_alone(
    solver: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resident, "memory_for_samples", lambda _: ROOM)
    sent, read = bytes_sent(solver, 4)
    assert sent[0] - sent[1] == 90 * (64 + 8) + 12
    assert sent[1] == sent[2] == sent[3]
    weights = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    lanes = 4 if solver == "cohort" else 3
    assert read == [lanes * (weights + 8)] * 4  # with the training loss


def test_a_stack_sends_a_common_start_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resident, "memory_for_samples", lambda _: ROOM)
    weights = 4 * (64 * 16 + 16 + 16 * 10 + 10)
    alone, _ = bytes_sent("reference", 2)
    stacked, _ = bytes_sent("cohort", 2)
    assert 3 * weights <= alone[1] < 4 * weights
    assert weights <= stacked[1] < 2 * weights


@pytest.mark.parametrize("room", [3_000, ROOM])
@pytest.mark.parametrize(
    "strategy",
    [{"kind": "fedavg"}, {"kind": "ditto"}, {"kind": "ifca", "groups": 2}],
    ids=lambda keys: keys["kind"],
)
def test_a_run_has_the_same_hashes_with_samples_that_stay(
    strategy: dict[str, Any], room: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = fedsim.Scenario(
        seed=3,
        data={"source": {"kind": "synthetic", "features": 16, "classes": 4}},
        model={"kind": "mlp", "hidden": [8]},
        training={"solver": "reference"},
        population={"devices": 6, "speed": "100 samples/s"},
        strategy={**strategy, "clients_per_round": 4, "local_epochs": 2},
        stop={"rounds": 2},
    )

    def hashes(executor: Any) -> tuple[str, str]:
        summary = run(Job(scenario, None, executor).execute()).summary
        return summary["events_sha256"], summary["models_sha256"]

    expected = hashes(Inline())
    monkeypatch.setattr(resident, "memory_for_samples", lambda _: room)
    assert hashes(Inline()) == expected
    assert hashes(Threads(2)) == expected


COPYING = {"cpu", "cuda", "from_numpy", "as_tensor", "tensor", "numpy"}
"""Names of torch's functions that copy between host and device."""
ELSEWHERE = {
    "host_copies.py": "it is where copies are made",
    "dense.py": "closed forms compute on the host",
    "hidden_memory.py": "the memory of a user's module is compared on the host",
    "reference.py": "the module is copied once, when the solver is made",
    "draws.py": "states of generators lie on the host",
    "modules.py": "a step's FLOPs are counted on no device",
}


def test_no_other_module_of_learning_copies_between_host_and_device() -> None:
    folder = Path(fedsim.__file__).parent / "learning"
    found = []
    for path in sorted(folder.rglob("*.py")):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        for node in ast.walk(tree):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            moves = node.func.attr == "to" and "device" in ast.unparse(node)
            if moves or node.func.attr in COPYING:
                found.append((path.name, node.func.attr))
    assert {name for name, _ in found} == {*ELSEWHERE}
