"""Functions of models: computed late, anywhere, and only if they are marked; what is not finite is treated as in a mix."""

import numpy as np
import pytest
from numpy.typing import NDArray

from fedsim.errors import SimulationError
from fedsim.executors.inline import Inline
from fedsim.executors.threads import Threads
from fedsim.learning.engine import Learning
from fedsim.learning.functions import function_at, pure, weighted_sum
from fedsim.learning.learner import Learner
from fedsim.learning.models import Logistic
from fedsim.learning.refs import Ref
from tests.learning.small import Counting, federation, learning, run

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
    assert executor.asked == ["carry_out_all"]


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
    assert off.apply(middle, [off.given(np.zeros(21))]).value is None  # without learning it is a name
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
    for path in ("os:system", "tests.learning.test_functions:unmarked", "tests.learning.test_functions:nothing"):
        with pytest.raises(SimulationError, match="no function that is marked"):
            function_at(path)
