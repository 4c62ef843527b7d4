"""Tests of models against a naive loop over devices."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from fedsim.data.federated import FederatedData, Shard
from fedsim.learning.engine import Learning
from fedsim.learning.evaluation import Evaluation
from fedsim.learning.models import CNN5, Logistic, ModelSpec, Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.solvers.modules import load_weights, module_of
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
def test_one_model_on_all_devices(model: ModelSpec) -> None:
    data = _data()
    core, _ = learning(data, model)
    ref = core.initial()
    found = run(core.evaluate({"global": (ref, None)}))
    expected = [_naive(core, model, data, ref, data.shard(device)) for device in range(6)]
    _check(found, expected)
    assert found.count.tolist() == [11, 11, 11, 11, 0, 11]
    assert found.accuracy == sum(correct for correct, _ in expected) / 55
    assert found.loss == pytest.approx(sum(loss for _, loss in expected) / 55, rel=1e-4)
    assert found["global"].accuracy == found.accuracy


@pytest.mark.parametrize("model", MODELS, ids=lambda model: model.kind)
def test_a_model_a_device_and_a_model_a_group(model: ModelSpec) -> None:
    data = _data()
    core, _ = learning(data, model)
    refs = [core.initial(at) for at in range(6)]
    expected = [_naive(core, model, data, ref, data.shard(device)) for device, ref in enumerate(refs)]
    _check(run(core.evaluate_each([(ref, device) for device, ref in enumerate(refs)])), expected)
    _check(run(core.evaluate({f"device/{device}": (ref, [device]) for device, ref in enumerate(refs)})), expected)
    groups = run(core.evaluate({"a": (refs[0], [3, 0]), "b": (refs[1], [1]), "c": (refs[2], [])}))
    assert groups.devices == [3, 0, 1]
    _check(groups["a"], [_naive(core, model, data, refs[0], data.shard(device)) for device in (3, 0)])
    _check(groups["b"], [expected[1]])
    assert groups["c"].count.sum() == 0


def test_the_current_version_is_tested() -> None:
    data = _data()
    core, _ = learning(data, Logistic())
    ref = core.initial()
    run(core.evaluate({"global": (ref, None), "some": (ref, [4, 5])}))
    core.shift(5, 1)
    found = run(core.evaluate({"global": (ref, None), "some": (ref, [4, 5])}))
    expected = [_naive(core, Logistic(), data, ref, data.shard(device, int(device == 5))) for device in range(6)]
    _check(found["global"], expected)
    _check(found["some"], expected[4:])


def test_a_test_does_not_depend_on_what_was_tested_before() -> None:
    data = federation([5] * 40, tests=23, shape=(61,), classes=7)
    fresh, used = (learning(data, Logistic())[0] for _ in range(2))
    run(used.evaluate({"global": (used.initial(3), None), "odd": (used.initial(), [7, 3])}))
    some = [4, 30, 17, 9]
    one, other = (run(core.evaluate({"some": (core.initial(), some)})) for core in (fresh, used))
    assert one.loss_sum.tobytes() == other.loss_sum.tobytes()


def test_scores() -> None:
    evaluation = Evaluation([3, 5, 8], np.array([1, 6, 0]), np.array([2, 8, 0]), np.array([1.0, 2.0, 0.0]))
    assert evaluation.score("pooled") == (0.7, 0.3)
    assert evaluation.score("device-mean") == (0.625, 0.375)
    assert evaluation.device_accuracy() == {3: 0.5, 5: 0.75, 8: None}
    assert evaluation.device_loss() == {3: 0.5, 5: 0.25, 8: None}
    nothing = Evaluation([], np.empty(0, np.int64), np.empty(0, np.int64), np.empty(0))
    assert nothing.score("pooled") == nothing.score("device-mean") == (None, None)
    diverged = Evaluation([1], np.array([1]), np.array([2]), np.array([np.inf]))
    assert diverged.score("pooled") == (0.5, None)
