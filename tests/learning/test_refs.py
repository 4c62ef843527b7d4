import gc
import weakref

import numpy as np
import pytest

from fedsim.learning.refs import Best, Initial, Mixed, Ref, Trained, waves
from fedsim.training import Training


def _training(base: Ref, serial: int) -> Ref:
    return Ref(f"update-{serial}", serial, Trained(Training(base), 0, 0, 0, 0), 0)


def _play(wanted: list[Ref]) -> list[list[str]]:
    """Compute everything with zeros, and choose the last; returns the waves of choices and the cohorts."""
    cohorts = []
    for wave in waves(wanted):
        for ref in wave:
            if isinstance(ref.recipe, Best):
                ref.choose(np.arange(len(ref.recipe.models), 0.0, -1.0))
            else:
                ref.settle(np.zeros(2, np.float32))
        if wave[0].device is not None:
            cohorts.append([ref.name for ref in wave])
    return cohorts


def _choice(models: list[Ref], serial: int) -> Ref:
    return Ref(f"choice-{serial}", serial, Best(tuple(models), 0, 0), 0)


def test_choices_are_a_wave_of_their_own_before_the_trainings_that_need_them() -> None:
    start = Ref("model-0", 0, Initial(0))
    updates = [_training(start, at) for at in (1, 2)]
    mixed = Ref("model-3", 3, Mixed(tuple((update, 0.5) for update in updates), None, True))
    late = [_choice([start, mixed], at) for at in (4, 5)]  # between models of which one must be trained first
    early = [_choice([start, start], 6)]  # ready at once: made before any training
    after = [_training(choice, serial) for serial, choice in enumerate([*late, *early], 7)]
    last = _choice([*after, early[0]], 10)
    assert _play([last, *after[::-1], *late]) == [
        ["choice-6"],
        ["update-1", "update-2", "update-9"],
        ["choice-4", "choice-5"],
        ["update-7", "update-8"],
        ["choice-10"],
    ]
    assert late[0].value is mixed.value
    assert last.value is early[0].value is start.value


NONE, MOST = np.nan, np.finfo(np.float64).max
CHOICES = [([3.0, 1.0, 2.0], 1), ([2.0, 1.0, 1.0], 1), ([1.0, 1.0], 0), ([NONE, 7.0, np.inf], 1), ([-np.inf, 5.0, 4.0], 2)]
CHOICES += [([np.inf, NONE], 0), ([NONE, NONE], 0), ([NONE, MOST], 1)]


@pytest.mark.parametrize(("losses", "choice"), CHOICES, ids=str)
def test_the_smallest_finite_loss_wins_and_the_first_of_equals(losses: list[float], choice: int) -> None:
    models = [Ref(f"model-{at}", at, None) for at in range(len(losses))]
    for at, model in enumerate(models):
        model.settle(np.full(2, at, np.float32) if at != 1 else np.full(2, np.inf, np.float32))
    ref = _choice(models, 9)
    ref.choose(np.array(losses))
    assert (ref.choice, ref.recipe) == (choice, None)
    assert ref.value is models[choice].value
    assert ref.finite == models[choice].finite
    assert ref.losses is not None
    assert not ref.losses.flags.writeable


def test_a_choice_needs_models_and_is_made_once() -> None:
    with pytest.raises(ValueError, match=r"device 7 .* at least one"):
        Best((), 7, 0)
    settled = Ref("model-0", 0, None)
    with pytest.raises(ValueError, match="model-0 is no choice"):
        settled.choose(np.zeros(1))


def test_a_chain_of_thousands_needs_no_recursion_and_frees_what_nobody_holds() -> None:
    ref = start = Ref("model-0", 0, Initial(0))
    middle: weakref.ref[Ref] | None = None
    for at in range(1, 20_001):
        ref = _training(ref, at) if at % 2 else Ref(f"model-{at}", at, Mixed(((ref, 1.0),), start, True))
        if at == 10_000:
            middle = weakref.ref(ref)
    assert len(_play([ref])) == 10_000
    assert middle is not None
    assert middle() is None
    assert ref.recipe is None


def test_a_long_chain_that_is_never_computed_is_dropped_quietly() -> None:
    ref = Ref("model-0", 0, Initial(0))
    start = weakref.ref(ref)
    for at in range(1, 100_000):
        ref = _training(ref, at)
    del ref
    gc.collect()
    assert start() is None
