"""A trial of a user's module before a run: what it draws, what it leaves behind, what it gives.

Two small trainings A and B on real samples are carried out on fresh copies and again on used ones.
If a result differs, or the module's memory changes with each training, the module is refused by the
name of the part that differs.
"""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from fedsim.common.errors import FedsimError, ScenarioError, place_of
from fedsim.learning.draws import generators_kept, global_states, moved_since
from fedsim.learning.modules import settings_kept
from fedsim.learning.objectives import Objective
from fedsim.learning.refs import Weights
from fedsim.learning.remains import Token, clear_caches, differences, remains
from fedsim.learning.solvers.base import Descent, LocalSolve, Solved, one_thread, shuffled
from fedsim.learning.solvers.reference import (
    Reference,
    SingleSampleError,
    flat_weights,
    repeats_message,
    same_bits,
    same_results,
)
from fedsim.learning.solvers.watched import ModuleCopy, draws_message, left_message

SAMPLES = 16
"""Samples of a trial, at most."""

_TRIES = 3  # after which a moved global generator is not somebody else's doing
_WHERE = "in a trial on samples of the data"
_RULE = Descent(lr=1e-3)


def probe(solver: Reference, objective: Objective, x: NDArray[Any], y: NDArray[Any]) -> None:
    """Try a solver's module on some samples, [n, *shape] with targets [n, ...], and set what the
    solver is to watch.

    Raises:
        ScenarioError: the module cannot be used, by the name of what is wrong.
    """
    with ThreadPoolExecutor(1) as alone:  # whose settings of torch are its own
        alone.submit(_probed, solver, objective, torch.tensor(x), torch.tensor(y)).result()


def _probed(solver: Reference, objective: Objective, x: Tensor, y: Tensor) -> None:
    one_thread()
    solver.watch.is_on = True
    solver.keyed = {"training": True, "testing": True}
    weights = flat_weights(list(solver.watch.fresh().flat.values()))
    with settings_kept(_WHERE), generators_kept():
        _refuse_draws(lambda: _tested(solver, weights, x))
        _refuse_outputs(solver, objective, weights, _tested(solver, weights, x), y)
        harmless = _replayed_test(solver, weights, x)
        work = [_work(weights, x[half::2], y[half::2], key=half) for half in (0, 1)]
        _refuse_draws(lambda: _trained(solver, _fresh(solver), work[0]))
        harmless |= _replayed(solver, *work)
        _refuse_cached_draws(solver, work[0])
        solver.fails_on_one = _failure_on_one(solver, weights, x, y)
    solver.watch.harmless = harmless
    solver.keyed = dict(solver.drawn)


def _work(weights: Weights, x: Tensor, y: Tensor, key: int) -> LocalSolve:
    """A training in two batches, of which the second is smaller if it can be, twice."""
    size = max(2, -(-len(y) * 5 // 8))
    batches = shuffled(
        np.random.default_rng(key), len(y), size, 2, last="merge" if len(y) - size < 2 else "keep"
    )
    return LocalSolve(weights, x, y, batches, key=key)


def _plainly(work: Callable[[], Any]) -> Any:
    try:
        return work()
    except FedsimError:
        raise
    except Exception as error:
        message = f"{type(error).__name__}: {error}{place_of(error)}"
        raise ScenarioError(f"the module of model.factory failed {_WHERE}: {message}") from error


def _trained(solver: Reference, module: ModuleCopy, solve: LocalSolve) -> Solved:
    found: Solved = _plainly(lambda: solver.trained(module, solve, _RULE))
    return found


def _tested(
    solver: Reference, weights: Weights, x: Tensor, module: ModuleCopy | None = None
) -> Tensor:
    found: Tensor = _plainly(lambda: solver.tested(module or _fresh(solver), weights, x))
    return found


def _refuse_draws(work: Callable[[], object]) -> None:
    """Raise if some work draws from global generators; other threads of the process may, too."""
    for number in range(_TRIES):
        with generators_kept(number + 1):  # of any seed but one that the module may set
            before = global_states()
            work()
            if not (drawn := moved_since(before)):
                return
    raise ScenarioError(draws_message(drawn, _WHERE))


def _refuse_outputs(
    solver: Reference, objective: Objective, weights: Weights, outputs: Tensor, y: Tensor
) -> None:
    """Raise for outputs from which no loss or test follows."""
    shape = tuple(outputs.shape)
    targets = y.to(outputs.device)
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
    fresh = solver.watch.fresh()
    losses = _plainly(lambda: solver.judged(fresh, weights, outputs, targets))
    if not isinstance(losses, Tensor) or tuple(losses.shape) != (len(y),):
        found = tuple(losses.shape) if isinstance(losses, Tensor) else type(losses).__name__
        raise ScenarioError(
            f"the loss of {len(y)} samples by the module of model.factory has the shape "
            f"{found}; allowed is [{len(y)}], one "
            "loss a sample (reduction='none')"
        )
    _plainly(lambda: objective.answers(outputs) == targets)


def _replayed_test(solver: Reference, weights: Weights, x: Tensor) -> set[str]:
    """Names of memory that a test changes without effect; ``ScenarioError`` if there is an
    effect.
    """
    module = _fresh(solver)
    first = _tested(solver, weights, x, module)
    once = _memory(module)
    same = [_tested(solver, weights, x, each) for each in (module, _fresh(solver))]
    left = differences(once, _memory(module))
    changed = differences(module.memory, remains(module.module, module.flat))
    if left:
        raise ScenarioError(left_message(left, f"after a test {_WHERE}"))
    if not all(same_bits(first, each) for each in same):
        raise ScenarioError(left_message(changed, _WHERE) if changed else repeats_message(_WHERE))
    return set(changed)


def _replayed(solver: Reference, a: LocalSolve, b: LocalSolve) -> set[str]:
    """Names of memory that trainings change without effect; ``ScenarioError`` if there is an
    effect.
    """
    used = _fresh(solver)
    other = _fresh(solver)
    results_a = [_trained(solver, used, a)]
    once = _memory(used)
    changed = differences(used.memory, remains(used.module, used.flat))
    results_a.append(_trained(solver, used, a))
    if left := differences(once, _memory(used)):
        raise ScenarioError(left_message(left, _WHERE))
    results_b = [_trained(solver, used, b)]
    clear_caches(other.module)
    results_b.append(_trained(solver, other, b))
    changed += differences(other.memory, remains(other.module, other.flat))
    results_a.append(_trained(solver, other, a))
    alike = [
        same_results(results[0], each) for results in (results_a, results_b) for each in results[1:]
    ]
    if not all(alike):
        raise ScenarioError(left_message(changed, _WHERE) if changed else repeats_message(_WHERE))
    return set(changed)


def _refuse_cached_draws(solver: Reference, solve: LocalSolve) -> None:
    """Raise if a cache of a function (``functools.lru_cache``) keeps what another training has
    drawn.
    """
    module = solver.watch.fresh()
    caches = clear_caches(module.module)
    if not caches:
        return
    alone = _trained(solver, module, solve)
    module = _fresh(solver)
    _trained(solver, module, replace(solve, key=solve.key + 1))
    if not same_results(alone, _trained(solver, solver.watch.fresh(), solve)):
        raise ScenarioError(left_message(caches, f"(the cache of a function) {_WHERE}"))


def _fresh(solver: Reference) -> ModuleCopy:
    """A copy that nobody has used, while the caches of functions are empty."""
    module = solver.watch.fresh()
    clear_caches(module.module)
    return module


def _memory(module: ModuleCopy) -> dict[str, Token]:
    return remains(module.module, module.flat, whole=True)


def _failure_on_one(solver: Reference, weights: Weights, x: Tensor, y: Tensor) -> str:
    """Why the module cannot be trained on a batch of one sample; "" if it can."""
    one = LocalSolve(weights, x[:1], y[:1], shuffled(np.random.default_rng(0), 1, 1, 1))
    try:
        solver.trained(solver.watch.fresh(), one, _RULE)
    except SingleSampleError as error:
        return error.part
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return ""
