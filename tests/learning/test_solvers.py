"""The door to the solvers: whichever way is picked, the models are those of the plain reference."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from fedsim.learning.engine import pick
from fedsim.learning.models import MODELS, Layered
from fedsim.learning.solvers.base import Descent, batch_width, compute_with_one_thread, shuffled
from fedsim.learning.solvers.dense import Dense
from fedsim.learning.solvers.reference import Reference, module_of
from fedsim.learning.spec import TrainingSpec
from tests.learning.small import Dropping, federation, learning, solve_of

CPU = torch.device("cpu")
BUILT_IN: list[Any] = [found for found in map(MODELS.find, MODELS) if issubclass(found, Layered)]
RULE = Descent(0.03, momentum=0.5, weight_decay=0.01, l2=0.001, mu=0.3)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float32, 2e-4), (torch.float64, 1e-12)], ids=["float32", "float64"])
@pytest.mark.parametrize("kind", BUILT_IN, ids=lambda kind: kind.__name__)
def test_dense_models_are_trained_as_by_the_reference_all_others_by_it(kind: Any, dtype: torch.dtype, tolerance: float) -> None:
    compute_with_one_thread()
    architecture = kind().architecture((1, 28, 28), 10)
    assert isinstance(pick(architecture, CPU, "fast"), Dense if architecture.is_dense else Reference)
    if not architecture.is_dense:
        return
    draw = np.random.default_rng(2)  # in float32 rounding, which processors differ in, may decide whether ReLU lets a unit pass
    parts = [draw.normal(0, np.prod(shape[1:]) ** -0.5 if len(shape) > 1 else 0.1, shape) for _, shape in architecture.tensors]
    start = np.concatenate([part.ravel() for part in parts]).astype(torch.empty(0, dtype=dtype).numpy().dtype)
    solve = solve_of(start, 7, (1, 28, 28), 10, seed=2, batch_size=4, epochs=1)
    fast = Dense(architecture, dtype).solve(solve, RULE)
    plain = Reference(module_of(architecture), CPU, dtype).solve(solve, RULE)
    assert fast.weights.dtype == plain.weights.dtype == start.dtype
    assert np.linalg.norm(fast.weights - plain.weights) <= tolerance * np.linalg.norm(plain.weights)
    assert fast.train_loss == pytest.approx(plain.train_loss, rel=max(tolerance, 1e-5))


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
