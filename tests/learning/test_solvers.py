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
from fedsim.learning.solvers.base import batch_width, shuffled
from fedsim.learning.solvers.dense import Dense
from fedsim.learning.solvers.reference import Reference
from fedsim.learning.spec import TrainingSpec
from tests.learning.small import Dropping, federation, learning

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
