"""Trial of a user's module before a run: checks its random draws, its memory, and its outputs.

Two small trainings A and B on samples of the run are carried out on new copies of the module, and
again on used copies. If a result differs, or each training changes the module's memory (all that it
keeps except trained and sent tensors), ``ScenarioError`` names the part of the module that differs.
"""

import math
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
from fedsim.common.training import Batching, LastBatch, LocalEpochs
from fedsim.learning.draws import find_draws, generators_kept, global_states
from fedsim.learning.entropy import entropy_watched
from fedsim.learning.hidden_memory import (
    Token,
    clear_caches,
    counts_of_norms,
    differences,
    read_memory,
)
from fedsim.learning.host_copies import to_device
from fedsim.learning.modules import settings_kept
from fedsim.learning.objectives import Objective
from fedsim.learning.scratch import Weights
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, draw_batches, use_one_thread
from fedsim.learning.solvers.reference import (
    Reference,
    SingleSampleError,
    flat_weights,
    repeats_message,
    same_bits,
    same_results,
)
from fedsim.learning.solvers.watched import (
    ModuleCopy,
    changed_memory_message,
    draws_message,
    entropy_message,
    run_user_code,
)

SAMPLES = 16
"""Greatest count of samples in a trial."""

_TRIES = 3  # repetitions after which draws are attributed to the module, not to another thread
_WHERE = "in a trial on samples of the data"
_DESCENT = Descent(lr=1e-3)
_MANY_BATCHES = 1 << 24  # value that a norm's counter of batches is set to, to test its effect

R = TypeVar("R")


def probe(solver: Reference, objective: Objective, x: AnyArray, y: AnyArray) -> None:
    """Try a user's module on some samples before a run, and set the checks that it needs.

    Three attributes of the solver are set: ``watch`` checks memory and draws in the run, ``keyed``
    says whether random draws are made repeatable, and ``single_sample_obstacle`` is the reason why
    the module cannot be trained on a single sample.

    Args:
        solver: solver of a user's module.
        objective: the objective of the run.
        x: samples, [n, *shape].
        y: targets of the samples, [n, ...].

    Raises:
        ScenarioError: the module fails, has invalid outputs, or has results that cannot be
            repeated.
    """
    inputs = to_device(x, solver.device), to_device(y, solver.device)
    with ThreadPoolExecutor(1) as executor:  # torch's settings of a thread end with the thread
        executor.submit(_probe, solver, objective, *inputs).result()


def _probe(solver: Reference, objective: Objective, x: Tensor, y: Tensor) -> None:
    """Carry out ``probe`` in the calling thread.

    The order of the checks decides which message a module with several faults gets.
    """
    use_one_thread()
    solver.watch.is_on = True
    solver.keyed = {"training": True, "testing": True}
    weights = flat_weights(list(solver.watch.fresh().model_tensors.values()))
    with settings_kept(_WHERE), generators_kept(), entropy_watched() as draw_places:
        _refuse_draws(lambda: _test(solver, weights, x, _fresh_copy(solver)))
        outputs = _test(solver, weights, x, _fresh_copy(solver))
        _refuse_outputs(solver, objective, weights, outputs, y)
        harmless = _replay_test(solver, weights, x)
        training_a = _training(weights, x[0::2], y[0::2], key=0)
        training_b = _training(weights, x[1::2], y[1::2], key=1)
        _refuse_draws(lambda: _train(solver, _fresh_copy(solver), training_a))
        _refuse_use_of_counts(solver, training_a)
        harmless |= _replay_trainings(solver, training_a, training_b)
        _refuse_cached_draws(solver, training_a)
        solver.single_sample_obstacle = _find_single_sample_obstacle(solver, weights, x, y)
    if draw_places:
        raise ScenarioError(entropy_message(draw_places, _WHERE))
    solver.watch.harmless = harmless
    solver.keyed = dict(solver.drawn)  # only if there are draws, as intercepting them is slow


def _training(weights: Weights, x: Tensor, y: Tensor, key: int) -> LocalSolve:
    """Return the inputs of a trial training: two epochs, each of two batches if samples suffice.

    Args:
        weights: the start, float [d].
        x: samples, [n, *shape].
        y: targets, [n, ...].
        key: seed of the batches, and key of the model's random draws.
    """
    batch_size = max(2, math.ceil(len(y) * 5 / 8))
    last_size = len(y) - batch_size
    last_batch: LastBatch = "keep"
    if last_size < 2:  # a batch norm cannot be trained on a single sample
        last_batch = "merge"
    batching = Batching(batch_size, last_batch)
    batches = draw_batches(np.random.default_rng(key), len(y), batching, LocalEpochs(2))
    return LocalSolve(weights, x, y, batches, key=key)


def _run_user_code(work: Callable[[], R]) -> R:
    return run_user_code(work, _WHERE, ScenarioError)


def _train(solver: Reference, copied_module: ModuleCopy, solve: LocalSolve) -> Solved:
    return _run_user_code(lambda: solver.train(copied_module, solve, _DESCENT))


def _test(solver: Reference, weights: Weights, x: Tensor, copied_module: ModuleCopy) -> Tensor:
    return _run_user_code(lambda: solver.test(copied_module, weights, x))


def _refuse_draws(work: Callable[[], object]) -> None:
    """Raise ``ScenarioError`` if a training or test draws from global random generators.

    The training or test is carried out up to three times. If it has no draws in one of them, the
    draws in earlier ones are attributed to another thread.

    Args:
        work: trains or tests a user's module.
    """
    for number in range(_TRIES):
        with generators_kept(number + 1):  # seeds that the module is unlikely to set itself
            states_before = global_states()
            work()
            generators = find_draws(states_before)
            if not generators:
                return
    raise ScenarioError(draws_message(generators, _WHERE))


def _refuse_outputs(
    solver: Reference, objective: Objective, weights: Weights, outputs: Tensor, y: Tensor
) -> None:
    """Raise ``ScenarioError`` if no loss or no predictions can be computed from a module's outputs.

    Args:
        solver: solver of the module.
        objective: the objective of the run.
        weights: the model, float [d].
        outputs: outputs of the module for n samples.
        y: targets of the samples, [n, ...].
    """
    shape = tuple(outputs.shape)
    if not shape or shape[0] != len(y):
        raise ScenarioError(
            f"the module of model.factory gives outputs of shape {shape} for {len(y)} samples; "
            f"allowed is [{len(y)}, ...], one "
            "entry a sample"
        )
    if outputs.is_complex():
        raise ScenarioError(
            "the module of model.factory gives complex outputs; allowed are real ones, such as "
            "outputs.real"
        )
    if bool(torch.isnan(outputs).any()):
        raise ScenarioError(
            "the module of model.factory gives NaN with its initial numbers, for samples of "
            "the data; allowed are numbers, "
            "from finite samples and weights"
        )
    copied_module = solver.watch.fresh()
    losses = _run_user_code(lambda: solver.evaluate_losses(copied_module, weights, outputs, y))
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (len(y),):
        form: object = type(losses).__name__
        if isinstance(losses, Tensor):
            form = tuple(losses.shape)
        raise ScenarioError(
            f"the loss of {len(y)} samples by the module of model.factory has the shape "
            f"{form}; allowed is [{len(y)}], one loss a sample (reduction='none')"
        )
    _run_user_code(lambda: objective.answers(outputs) == y)  # raises if they are not comparable


def _replay_test(solver: Reference, weights: Weights, x: Tensor) -> set[str]:
    """Repeat a test of a user's module on a used copy and on a new copy of it.

    Args:
        solver: solver of the module.
        weights: the model, float [d].
        x: samples, [n, *shape].

    Returns:
        Names of attributes and globals that a test changes without an effect on results.

    Raises:
        ScenarioError: the results differ, or the second test changes memory again.
    """
    used_copy = _fresh_copy(solver)
    first = _test(solver, weights, x, used_copy)
    memory = _read_memory(used_copy)
    repeated = _test(solver, weights, x, used_copy)
    separate = _test(solver, weights, x, _fresh_copy(solver))
    second_changes = differences(memory, _read_memory(used_copy))
    changes = _find_changes(used_copy)
    if second_changes:
        raise ScenarioError(changed_memory_message(second_changes, f"after a test {_WHERE}"))
    if not same_bits(first, repeated) or not same_bits(first, separate):
        raise _repetition_error(changes)
    return set(changes)


def _replay_trainings(solver: Reference, a: LocalSolve, b: LocalSolve) -> set[str]:
    """Train a user's module in the orders A, A, B and B, A, on two copies of it, and compare.

    Args:
        solver: solver of the module.
        a: training A.
        b: training B.

    Returns:
        Names of attributes and globals that trainings change without an effect on results.

    Raises:
        ScenarioError: the results differ, or a repetition changes memory again.
    """
    # ``first``, ``repeated`` and ``last`` tell when the training ran on its copy
    first_copy = _fresh_copy(solver)
    second_copy = _fresh_copy(solver)
    first_a = _train(solver, first_copy, a)
    memory = _read_memory(first_copy)
    changes = _find_changes(first_copy)
    repeated_a = _train(solver, first_copy, a)
    second_changes = differences(memory, _read_memory(first_copy))
    if second_changes:
        raise ScenarioError(changed_memory_message(second_changes, _WHERE))
    last_b = _train(solver, first_copy, b)
    clear_caches(second_copy.module)  # both copies share caches, and A has filled them
    first_b = _train(solver, second_copy, b)
    changes += _find_changes(second_copy)
    last_a = _train(solver, second_copy, a)
    is_same_a = same_results(first_a, repeated_a) and same_results(first_a, last_a)
    if not is_same_a or not same_results(last_b, first_b):
        raise _repetition_error(changes)
    return set(changes)


def _refuse_use_of_counts(solver: Reference, solve: LocalSolve) -> None:
    """Raise ``ScenarioError`` if a result depends on the count of batches that a norm has seen.

    In the buffer ``num_batches_tracked``, a copy of the module counts the batches of all devices
    that it has trained. torch's own norms do not use the count if they have a momentum. A user's
    norm may use the count, perhaps only if it is large.

    Args:
        solver: solver of the module.
        solve: a training that is tried with a small and with a large count.
    """
    names = counts_of_norms(solver.watch.fresh().module)
    if not names:
        return
    expected = _train(solver, _fresh_copy(solver), solve)
    for name in names:
        copied_module = _fresh_copy(solver)
        copied_module.module.get_buffer(name).fill_(_MANY_BATCHES)
        if not same_results(expected, _train(solver, copied_module, solve)):
            raise ScenarioError(changed_memory_message([name], _WHERE))


def _refuse_cached_draws(solver: Reference, solve: LocalSolve) -> None:
    """Raise ``ScenarioError`` if a cache (``lru_cache``) passes random draws to the next training.

    Args:
        solver: solver of the module.
        solve: a training that is carried out with empty and with filled caches.
    """
    copied_module = solver.watch.fresh()
    caches = clear_caches(copied_module.module)
    if not caches:
        return
    separate = _train(solver, copied_module, solve)
    # another key, so that other random draws fill the caches
    _train(solver, _fresh_copy(solver), replace(solve, key=solve.key + 1))
    cached = _train(solver, solver.watch.fresh(), solve)
    if not same_results(separate, cached):
        raise ScenarioError(changed_memory_message(caches, f"(the cache of a function) {_WHERE}"))


def _fresh_copy(solver: Reference) -> ModuleCopy:
    """Return a new copy of the module, after emptying the caches of its functions."""
    copied_module = solver.watch.fresh()
    clear_caches(copied_module.module)
    return copied_module


def _read_memory(copied_module: ModuleCopy) -> dict[str, Token]:
    return read_memory(copied_module.module, copied_module.model_tensors, by_value=True)


def _find_changes(copied_module: ModuleCopy) -> list[str]:
    """Return the names of attributes and globals that have changed since the module was copied."""
    memory = read_memory(copied_module.module, copied_module.model_tensors)
    return differences(copied_module.outer_memory, memory)


def _repetition_error(changes: list[str]) -> ScenarioError:
    """Return the error for a training or test whose repetition has another result.

    Args:
        changes: names of attributes and globals that the module has changed; may be empty.
    """
    if changes:
        return ScenarioError(changed_memory_message(changes, _WHERE))
    return ScenarioError(repeats_message(_WHERE))


def _find_single_sample_obstacle(solver: Reference, weights: Weights, x: Tensor, y: Tensor) -> str:
    """Train the module on a batch of a single sample, to find out whether this is possible.

    Args:
        solver: solver of the module.
        weights: the model, float [d].
        x: samples, of which the first is used.
        y: targets of the samples.

    Returns:
        The reason why the training fails, such as the name of a batch norm; "" if it succeeds.
    """
    batches = draw_batches(np.random.default_rng(0), 1, Batching(1), LocalEpochs(1))
    solve = LocalSolve(weights, x[:1], y[:1], batches)
    try:
        solver.train(solver.watch.fresh(), solve, _DESCENT)
    except SingleSampleError as error:
        return error.part
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
