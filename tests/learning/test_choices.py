"""Choices of the best model, and pure functions of models."""

from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn
from torch.nn import functional

from fedsim.clock.executors import Inline, Threads
from fedsim.common.errors import SimulationError
from fedsim.common.training import Training
from fedsim.learning.data.federated import FederatedData, Shard
from fedsim.learning.data.transforms import Augmentation
from fedsim.learning.engine import Learning
from fedsim.learning.functions import function_at, pure, weighted_sum
from fedsim.learning.learner import Learner
from fedsim.learning.models import CNN5, Logistic, ModelSpec, ModuleModel, Perceptron
from fedsim.learning.refs import Ref
from fedsim.learning.solvers.reference import kernels, load_weights, module_of
from fedsim.toolbox.models.published import MnistCNN
from tests.learning.small import Counting, Dropping, federation, learning, own, run

VECTORS: list[ModelSpec] = [
    Logistic(),
    Perceptron(hidden=[33, 5]),
    own("Dropping", features=61, classes=7),
]
IMAGES: list[ModelSpec] = [CNN5(), MnistCNN()]


def _settled(core: Learning, weights: np.ndarray) -> Ref:
    """A model with weights of our own."""
    ref = core.initial()
    ref.settle(weights.astype(np.float32))
    return ref


def _losses(core: Learning, tested: list[Ref]) -> list[Any]:
    run(core.values(tested))
    return [ref.losses for ref in tested]


def _module(model: ModelSpec, data: FederatedData) -> nn.Module:
    if isinstance(model, ModuleModel):
        return Dropping(61, 7)
    return module_of(model.architecture(data.pool.shape, data.pool.classes))  # type: ignore[union-attr]


def _objective(
    module: nn.Module, weights: np.ndarray, data: FederatedData, shard: Shard, l2: float
) -> float:
    """As anyone would write it."""
    load_weights(list(module.parameters()), weights)
    x, y = map(torch.from_numpy, data.train_samples(shard))
    with torch.no_grad():
        loss = float(functional.cross_entropy(module.eval()(x), y))
    named = dict(module.named_parameters())
    return loss + l2 * sum(
        float(named[name].detach().double().square().sum()) for name in sorted(kernels(module))
    )


@pytest.mark.parametrize("l2", [0.0, 0.03])
@pytest.mark.parametrize("model", [*VECTORS, *IMAGES], ids=lambda model: model.kind)
def test_objectives_against_plain_torch(model: ModelSpec, l2: float) -> None:
    shape = (1, 8, 8) if model in IMAGES else (61,)
    data = federation([23, 1, 130, 600], shape=shape, classes=7)
    core, _ = learning(data, model, l2=l2, weight_decay=0.5)
    start = core.initial()
    models = [
        start,
        core.initial(1),
        core.train(Training(start, 3), 2, key=0),
        core.mix([(start, 0.5), (core.initial(2), 0.5)]),
    ]
    tested = [core.best(models, device) for device in range(4)]
    module = _module(model, data)
    for device, (ref, losses) in enumerate(zip(tested, _losses(core, tested), strict=True)):
        values = [run(core.value(one)) for one in models]
        expected = [_objective(module, value, data, data.shards[device], l2) for value in values]
        assert losses.dtype == np.float64
        assert np.allclose(losses, expected, rtol=1e-5)
        assert ref.choice == int(np.argmin(expected))
        assert ref.value is models[ref.choice].value
        assert (ref.device, ref.finite) == (device, True)


def test_versions_rotations_labels_and_augmentation_are_the_devices_own() -> None:
    data = federation([40, 40], shape=(1, 8, 8), classes=4)
    data.augmentation = Augmentation()
    data._later[0, 1] = Shard(
        data.shards[1].train, data.shards[1].test, 1, np.array([2, 3, 0, 1]), augment_seed=7
    )
    core, _ = learning(data, Logistic())
    models = [core.initial(at) for at in range(3)]
    tested = [core.best(models, 0, version=version) for version in (0, 1)]
    module = _module(Logistic(), data)
    for version, losses in enumerate(_losses(core, tested)):
        expected = [
            _objective(module, run(core.value(one)), data, data.shard(0, version), 0.0)
            for one in models
        ]
        assert np.allclose(losses, expected, rtol=1e-5)
    first, second = _losses(core, tested)
    assert np.abs(first - second).min() > 1e-3


@pytest.mark.parametrize("model", [*VECTORS, CNN5()], ids=lambda model: model.kind)
def test_identical_models_have_identical_losses_wherever_they_stand_and_the_first_wins(
    model: ModelSpec,
) -> None:
    shape = (1, 12, 12) if isinstance(model, CNN5) else (61,)
    core, _ = learning(federation([1, 37, 300], shape=shape, classes=7), model, l2=0.01)
    one, other = core.initial(), core.initial(1)
    models = [
        other,
        *(_settled(core, run(core.value(one)).copy()) for _ in range(2)),
        other,
        one,
        other,
    ]
    tested = [core.best(models, device) for device in range(3)]
    for ref, losses in zip(tested, _losses(core, tested), strict=True):
        assert (len({*losses[[0, 3, 5]]}), len({*losses[[1, 2, 4]]})) == (1, 1)
        assert ref.choice == int(np.argmin(losses)) in (0, 1)


def test_what_is_not_finite_never_wins() -> None:
    core, records = learning(federation([9, 9], tests=0), Logistic(), l2=0.1)
    good = core.initial()
    nan, inf = (_settled(core, np.full(core.parameters, value)) for value in (np.nan, np.inf))
    wishes = [core.best(models, 0) for models in ([nan, inf, good], [inf, nan], [nan], [good, nan])]
    run(core.values(wishes))
    assert [ref.choice for ref in wishes] == [2, 0, 0, 0]
    assert [ref.finite for ref in wishes] == [True, False, False, True]
    mixed = core.mix([(wishes[0], 0.5), (wishes[1], 0.5)])
    assert run(core.value(mixed)).tobytes() == run(core.value(good)).tobytes()
    (record,) = records
    assert (record.kind, record.fields["device"], record.fields["ref"]) == (
        "non-finite",
        0,
        wishes[1].name,
    )


SIZES = [1, 700, 2, 60, 61, 0, 300, 59, 128, 16, 90, 513, 33, 5]


@pytest.mark.parametrize("model", [*VECTORS, CNN5()], ids=lambda model: model.kind)
def test_a_devices_losses_do_not_depend_on_who_else_is_asked_nor_on_workers_bit_for_bit(
    model: ModelSpec,
) -> None:
    """Choices between trained, mixed and chosen models, with lists of models that differ from
    device to device.
    """
    shape = (1, 12, 12) if isinstance(model, CNN5) else (61,)
    data = federation(
        [min(size, 130) for size in SIZES] if isinstance(model, CNN5) else SIZES,
        shape=shape,
        classes=7,
    )

    def play(executor: Any, apart: int) -> list[bytes]:
        core, _ = learning(data, model, executor, l2=0.01)
        starts = [core.initial(at) for at in range(3)]
        trained = [core.train(Training(start, 2), at, key=at) for at, start in enumerate(starts)]
        nested = core.best(trained, 4)
        pool = [*starts, *trained, nested, core.mix([(trained[0], 0.5), (nested, 0.5)])]
        wishes = [
            core.best(pool[device % 3 :] if device % 2 else pool, device)
            for device in range(len(SIZES))
        ]
        for part in range(apart - 1, -1, -1):
            run(core.values(wishes[part::apart]))
        executor.close()
        return [wish.losses.tobytes() for wish in wishes if wish.losses is not None]

    expected = play(Inline(), 1)
    # device 5 has no samples
    assert (len(expected), np.isnan(np.frombuffer(expected[5])).all()) == (len(SIZES), True)
    for executor, apart in (
        (Inline(), len(SIZES)),
        (Inline(), 2),
        (Threads(1), 1),
        (Threads(4), 1),
        (Threads(2), len(SIZES)),
    ):
        assert play(executor, apart) == expected


def test_a_batch_is_some_of_the_samples_and_another_with_another_key() -> None:
    """The loss on 2 of 5 samples is the mean of two of the five losses; on 5 or more it is the
    loss on all.
    """
    data = federation([5])
    core, _ = learning(data, Logistic())
    asked = [core.best([core.initial()], 0, batch=(2, key)) for key in (*range(40), 0)]
    (whole,), (more,) = _losses(
        core, [core.best([core.initial()], 0), core.best([core.initial()], 0, batch=(9, 0))]
    )
    x, y = map(torch.from_numpy, data.train_samples(data.shard(0)))
    module = module_of(Logistic().architecture((6,), 3))
    load_weights(list(module.parameters()), run(core.value(core.initial())))
    each = functional.cross_entropy(module(x), y, reduction="none").detach().numpy()
    pairs = [(each[i] + each[j]) / 2 for i in range(5) for j in range(i)]
    found = [losses.item() for losses in _losses(core, asked)]
    assert more == whole == pytest.approx(each.mean())
    assert all(min(abs(loss - pair) for pair in pairs) < 1e-6 for loss in found)
    assert len({round(loss, 5) for loss in found}) > 5
    assert found[-1] == found[0]


Models = list[NDArray[np.float32]]


@pure
def middle(models: Models) -> NDArray[np.floating]:
    return np.median(np.stack(models), axis=0)


@pure
def noisy(models: Models, scale: float, rng: np.random.Generator) -> NDArray[np.floating]:
    return models[0] + scale * rng.standard_normal(len(models[0]))


@pure
def short(models: Models) -> NDArray[np.floating]:
    return models[0][:2]


def unmarked(models: Models) -> NDArray[np.floating]:
    return models[0]


@pytest.mark.parametrize("terms", [1, 2, 3, 4, 5, 9])
def test_a_sum_is_rounded_at_every_step_in_the_order_given(terms: int) -> None:
    draw = np.random.default_rng(terms)
    models = list(draw.normal(size=(terms, 40_003)).astype(np.float32))
    coefficients = draw.normal(size=terms).tolist()
    total = np.zeros(40_003)
    for model, coefficient in zip(models, coefficients, strict=True):
        total += model.astype(np.float64) * coefficient
    assert weighted_sum(models, coefficients).tobytes() == total.astype(np.float32).tobytes()
    assert all(model.flags.writeable for model in models)


def test_many_functions_are_carried_out_in_few_requests() -> None:
    executor = Counting()
    core, _ = learning(federation([5, 30, 12]), Logistic(), executor)
    names = [core.apply(middle, _given(core, 1.0, float(at))) for at in range(40)]
    assert names[0].recipe is not None  # not yet computed
    assert [value[0] for value in run(core.values(names))] == [(1 + at) / 2 for at in range(40)]
    assert executor.asked == ["carry_out_all"] * 8


def _core() -> Learning:
    return learning(federation([5, 30, 12]), Logistic())[0]


def _given(core: Learning, *fills: float) -> list[Ref]:
    return [core.given(np.full(core.parameters, fill)) for fill in fills]


def test_an_array_becomes_a_model_and_a_function_of_models_another() -> None:
    core = _core()
    models = _given(core, 1.0, 7.0, 2.0)
    assert (run(core.value(models[1])) == 7).all()
    value = run(core.value(core.apply(middle, models)))
    assert (value == 2).all()
    assert (value.dtype, value.flags.writeable) == (np.float32, False)
    off = Learner(Logistic(), (6,), 3)
    # without learning it is a name
    assert off.apply(middle, [off.given(np.zeros(21))]).value is None
    with pytest.raises(SimulationError, match=r"shape \(3,\) is no model; allowed is \[21\]"):
        core.given(np.zeros(3))
    with pytest.raises(SimulationError, match=r"made an array of shape \(2,\)"):
        run(core.value(core.apply(short, _given(core, 1.0))))


def test_what_is_not_finite_is_left_out_or_replaced() -> None:
    core = _core()
    good, bad = _given(core, 3.0, np.nan)
    records: list[str] = []
    core._simulation.listen(lambda record: records.append(record.kind))
    assert (run(core.value(core.apply(middle, [good, bad, good], leave_out=True))) == 3).all()
    assert (run(core.value(core.apply(middle, [bad, good], otherwise=good))) == 3).all()
    assert np.isnan(run(core.value(core.apply(middle, [bad, good])))).all()
    assert (run(core.value(core.apply(middle, [bad], otherwise=good, leave_out=True))) == 3).all()
    assert records == ["non-finite"] * 4


def test_it_draws_from_a_stream_of_its_own_whatever_the_workers() -> None:
    def play(executor: Inline | Threads) -> list[bytes]:
        core = learning(federation([5, 30, 12]), Logistic(), executor=executor)[0]
        start = _given(core, 0.0)
        drawn = [core.apply(noisy, start, scale=2.0, stream=("test/noise", at)) for at in (1, 2, 1)]
        values = run(core.values(drawn))
        executor.close()
        return [value.tobytes() for value in values]

    first, second, third = play(Inline())
    assert first == third != second
    assert play(Threads(3)) == [first, second, third]


def test_only_marked_functions_are_ever_called() -> None:
    core = _core()
    with pytest.raises(SimulationError, match="unmarked cannot be applied"):
        core.apply(unmarked, _given(core, 1.0))
    inner = pure(lambda models: models[0])
    with pytest.raises(SimulationError, match="top of a module"):
        core.apply(inner, _given(core, 1.0))
    for path in (
        "os:system",
        "tests.learning.test_choices:unmarked",
        "tests.learning.test_choices:nothing",
    ):
        with pytest.raises(SimulationError, match="no function that is marked"):
            function_at(path)
