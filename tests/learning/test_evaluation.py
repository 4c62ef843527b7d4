"""Tests of models against a naive loop over devices."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim.data.federated import FederatedData, Shard
from fedsim.executors.threads import Threads
from fedsim.learning import testsets
from fedsim.learning.engine import Learning
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.models import CNN5, Logistic, ModelSpec, Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.solvers.reference import load_weights, module_of
from tests.learning.small import federation, learning, run

MODELS: list[ModelSpec] = [Logistic(), Perceptron(hidden=[9]), CNN5()]


def _naive(core: Learning, model: ModelSpec, data: FederatedData, ref: Ref, shard: Shard) -> tuple[int, float]:
    module: nn.Module = module_of(model.architecture(data.pool.shape, data.pool.classes))  # type: ignore[union-attr]
    load_weights(list(module.parameters()), run(core.value(ref)))
    x, y = map(torch.from_numpy, data.test_samples(shard))
    with torch.no_grad():
        outputs = module(x)
    return int((outputs.argmax(1) == y).sum()), float(functional.cross_entropy(outputs, y, reduction="sum"))


def _data() -> FederatedData:
    """Devices that share test images, turn them, and rename their labels."""
    data = federation([5] * 6, tests=11, shape=(1, 8, 8), classes=4)
    shards = data.shards
    data.shards[1] = Shard(shards[1].train, shards[0].test)
    data.shards[2] = Shard(shards[2].train, shards[0].test, quarter_turns=1)
    data.shards[3] = Shard(shards[3].train, shards[3].test, label_map=np.array([2, 3, 0, 1]))
    data.shards[4] = Shard(shards[4].train, shards[4].test[:0])
    data._later[5, 1] = Shard(shards[5].train, shards[2].test, quarter_turns=3)
    return data


def _check(found: Evaluation, expected: list[tuple[int, float]]) -> None:
    assert found.correct.tolist() == [correct for correct, _ in expected]
    assert np.allclose(found.loss_sum, [loss for _, loss in expected], rtol=1e-4)


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_one_model_on_all_devices_a_model_a_device_and_a_model_a_group(model: ModelSpec) -> None:
    data = _data()
    core, _ = learning(data, model)
    refs = [core.initial(at) for at in range(6)]
    one = run(core.evaluate({"global": (refs[0], None)}))
    right = [_naive(core, model, data, refs[0], data.shard(device)) for device in range(6)]
    _check(one, right)
    assert one.count.tolist() == [11, 11, 11, 11, 0, 11]
    assert one.accuracy == one["global"].accuracy == sum(correct for correct, _ in right) / 55
    assert one.loss == pytest.approx(sum(loss for _, loss in right) / 55, rel=1e-4)
    expected = [_naive(core, model, data, ref, data.shard(device)) for device, ref in enumerate(refs)]
    _check(run(core.evaluate_each([(ref, device) for device, ref in enumerate(refs)])), expected)
    _check(run(core.evaluate({f"device/{device}": (ref, [device]) for device, ref in enumerate(refs)})), expected)
    groups = run(core.evaluate({"a": (refs[0], [3, 0]), "b": (refs[1], [1]), "c": (refs[2], [])}))
    assert groups.devices == [3, 0, 1]
    _check(groups["a"], [right[3], right[0]])
    _check(groups["b"], [expected[1]])
    assert groups["c"].count.sum() == 0


def _turned(count: int, tests: int) -> FederatedData:
    """Images in all four orientations, each held by two devices, some under other labels."""
    data = federation([5] * count, tests=tests, shape=(1, 7, 7), classes=4)
    shards = list(data.shards)
    for device, shard in enumerate(shards):
        labels = np.roll(np.arange(4), device) if device % 3 == 0 else None
        data.shards[device] = Shard(shard.train, shards[device // 2].test, device // 2 % 4, labels)
        data._later[device, 1] = Shard(shard.train, shard.test, (device + 1) % 4)
    return data


@pytest.mark.parametrize("room", [1 << 30, 200_000, 100_000, 0], ids=["all", "two groups", "a group", "none"])
@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_groups_that_change_every_round_bit_for_bit_as_if_tested_first(
    model: ModelSpec, room: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = _turned(60, 13)
    monkeypatch.setattr(testsets, "_BLOCK_NUMBERS", 7 * 7 * 50)  # so that there are many
    fresh = [learning(data, model)[0] for _ in range(4)]
    expected = []
    for number, core in enumerate(fresh):
        for device in range(number):
            core.shift(device, 1)
        expected.append(run(core.evaluate(_served(core, number))))
    monkeypatch.setattr(testsets, "_KEPT_BYTES", room)
    used, _ = learning(data, model, Threads(2))
    for number in range(4):
        if number:
            used.shift(number - 1, 1)
        found = run(used.evaluate(_served(used, number)))
        assert found.loss_sum.tobytes() == expected[number].loss_sum.tobytes()
        assert found.correct.tolist() == expected[number].correct.tolist()
        lists = used._tests._lists
        assert len(lists) <= 1 or sum(each.bytes for each in lists.values()) <= room
    used._simulation.executor.close()
    refs = {name: (ref, served) for name, (ref, served) in _served(used, 3).items()}
    for name, (ref, served) in refs.items():
        versions = [data.shard(device, int(device < 3)) for device in (range(60) if served is None else served)]
        _check(found[name], [_naive(used, model, data, ref, shard) for shard in versions])


def _served(core: Learning, number: int) -> dict[str, tuple[Ref, list[int] | None]]:
    """Devices dealt to three groups, some to none and some to two; and all."""
    draw = np.random.default_rng(number)
    groups = [np.flatnonzero(draw.random(60) < 0.4).tolist() for _ in range(3)]
    return {str(at): (core.initial(at), group) for at, group in enumerate(groups)} | {"all": (core.initial(), None)}


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_nobody_to_test_and_devices_in_several_lists(model: ModelSpec) -> None:
    data = _data()
    core, _ = learning(data, model)
    refs = [core.initial(at) for at in range(2)]
    nothing = run(core.evaluate({"a": (refs[0], []), "b": (refs[1], [])}))
    assert (nothing.devices, nothing.count.sum(), nothing.score("pooled")) == ([], 0, (None, None))
    assert run(core.evaluate({})).devices == run(core.evaluate_each([])).devices == []
    untested = run(core.evaluate({"a": (refs[0], [4]), "b": (refs[0], [4, 4])}))
    assert (untested.devices, untested.count.tolist()) == ([4, 4, 4], [0, 0, 0])
    found = run(core.evaluate({"a": (refs[0], [0, 3, 5]), "b": (refs[1], [3, 0, 3]), "c": (refs[1], [])}))
    assert found.devices == [0, 3, 5, 3, 0, 3]
    for name, ref in (("a", refs[0]), ("b", refs[1])):
        _check(found[name], [_naive(core, model, data, ref, data.shards[device]) for device in found[name].devices])
    assert found["c"].count.sum() == 0


def test_scores() -> None:
    evaluation = Evaluation([3, 5, 8], np.array([1, 6, 0]), np.array([2, 8, 0]), np.array([1.0, 2.0, 0.0]))
    assert evaluation.score("pooled") == (0.7, 0.3)
    assert evaluation.score("device-mean") == (0.625, 0.375)
    assert evaluation.device_accuracy() == {3: 0.5, 5: 0.75, 8: None}
    nothing = Evaluation([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    assert nothing.score("pooled") == nothing.score("device-mean") == (None, None)
    diverged = Evaluation([1], np.array([1]), np.array([2]), np.array([np.inf]))
    assert diverged.score("pooled") == (0.5, None)
