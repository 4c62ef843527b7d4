"""The door to the solvers: whichever way is picked, the models are those of the plain reference."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.learning.engine import pick
from fedsim.learning.models import MODELS, Layered, Logistic, Perceptron
from fedsim.learning.solvers.base import batch_width, shuffled
from fedsim.learning.solvers.dense import Dense
from fedsim.learning.solvers.reference import Reference
from fedsim.learning.spec import TrainingSpec
from fedsim.training import Contrast, Training
from tests.learning.small import Dropping, federation, learning, run

CPU = torch.device("cpu")
BUILT_IN: list[Any] = [found for found in map(MODELS.find, MODELS) if issubclass(found, Layered)]


@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_dense_models_have_a_solver_of_their_own_all_others_the_reference(kind: Any) -> None:
    architecture = kind().architecture((1, 28, 28), 10)
    assert type(pick(architecture, CPU, "fast")) is (Dense if architecture.is_dense else Reference)
    assert architecture.is_dense == (kind.__name__ in ("Logistic", "Perceptron", "FemnistPerceptron"))


def test_the_reference_is_picked_where_a_scenario_says_so_and_models_of_ones_own_have_no_other_on_a_cpu() -> None:
    architecture = BUILT_IN[0]().architecture((1, 8, 8), 10)
    assert type(pick(architecture, CPU, "reference")) is type(pick(Dropping(6, 3), CPU, "fast")) is Reference
    assert type(pick(architecture, torch.device("meta"), "fast")) is Reference  # on what is no CPU
    with pytest.raises(ValidationError, match="'fast' or 'reference'"):
        TrainingSpec(solver="fats")  # type: ignore[arg-type]
    core, _ = learning(federation([9, 5]), BUILT_IN[0](), solver="reference")
    assert isinstance(core._solver, Reference)


@given(st.integers(0, 200), st.integers(1, 150), st.integers(0, 4), st.integers(0, 99))
def test_each_epoch_is_a_permutation_with_its_last_partial_batch(n: int, batch_size: int, epochs: int, seed: int) -> None:
    batches = shuffled(np.random.default_rng(seed), n, batch_size, epochs)
    assert batches.steps == epochs * -(-n // batch_size)
    assert batches.rows.shape == (batches.steps, batch_width(n, batch_size))
    for epoch in np.split(np.arange(batches.steps), epochs) if batches.steps else []:
        rows = [batches.rows[step, : batches.counts[step]] for step in epoch]
        assert sorted(np.concatenate(rows)) == list(range(n))
        assert all(len(row) == batch_size for row in rows[:-1])
        assert all((batches.rows[step, batches.counts[step] :] == n).all() for step in epoch)
    assert batches.last_epoch == max(0, batches.steps - -(-n // batch_size))


def test_iterations_cut_the_last_epoch_short_and_a_full_batch_is_no_wider_than_it_must_be() -> None:
    assert (batch_width(6, 10), batch_width(6, 10**6), batch_width(70, 10**6), batch_width(100, 100)) == (10, 64, 128, 100)
    batches = shuffled(np.random.default_rng(1), 25, 10, epochs=1, iterations=8)
    assert (batches.rows[0] != batches.rows[3]).any()  # epochs are shuffled anew
    assert batches.counts.tolist() == [10, 10, 5, 10, 10, 5, 10, 10]
    assert batches.last_epoch == 6
    assert shuffled(np.random.default_rng(1), 25, 10, epochs=1, iterations=2).counts.tolist() == [10, 10]


@pytest.mark.parametrize(
    ("spec", "terms"),
    [
        ({"l2": 0.05}, ()),
        ({"l2": 0.05, "l2_on": "dense", "weight_decay": 0.1, "momentum": 0.9}, ()),
        ({"clip": 0.3}, ()),
        ({"clip": 0.3, "momentum": 0.5, "l2": 0.05}, ("mu", "anchor", "linear")),
        ({}, ("mu",)),
        ({"momentum": 0.5}, ("mu", "anchor", "linear")),
        ({}, ("contrast",)),
        ({}, ("held",)),
        ({"momentum": 0.5, "weight_decay": 0.1}, ("held", "linear")),
    ],
    ids=str,
)
@pytest.mark.parametrize("model", [Logistic(), Perceptron(hidden=[9])], ids=lambda model: model.kind)
def test_both_solvers_train_alike_whatever_a_training_asks_for(
    model: Layered, spec: dict[str, Any], terms: tuple[str, ...]
) -> None:
    if "contrast" in terms and isinstance(model, Logistic):
        pytest.skip("it has no representation")
    found, plain = [], []
    for solver in ("fast", "reference"):
        core, _ = learning(federation([4, 37, 90]), model, solver=solver, lr=0.1, **spec)
        other, linear = core.initial(1), core.given(np.linspace(-0.1, 0.1, core.parameters))
        first = core.tensors(np.zeros(core.parameters, np.float32))["0.weight"].size
        asked = {"mu": 0.7, "anchor": other, "linear": linear, "contrast": Contrast(other, 1.0, 0.5), "held": ((0, first),)}
        how = {name: asked[name] for name in terms}
        for values, more in ((found, how), (plain, {})):
            refs = [core.train(Training(core.initial(), epochs=3, **more), device, key=device) for device in range(3)]
            values.append(np.concatenate([*run(core.values(refs)), [ref.train_loss for ref in refs]]))
    assert found[0] == pytest.approx(found[1], abs=2e-5)
    if terms:
        assert np.abs(found[0] - plain[0]).max() > 1e-2  # they do something
