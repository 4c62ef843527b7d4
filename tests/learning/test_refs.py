import gc
import weakref

import numpy as np

from fedsim.learning.refs import Initial, Mixed, Ref, Trained, Waves


def _training(base: Ref, serial: int) -> Ref:
    return Ref(f"update-{serial}", serial, Trained(base, 0, 0, 1, None, 0, 0.1, 0.0, None), 0)


def _play(wanted: list[Ref]) -> list[list[str]]:
    """Compute everything with zeros; returns the cohorts."""
    waves, cohorts = Waves(wanted), []
    while waves:
        for ref in waves.combined():
            ref.settle(np.zeros(2, np.float32))
            waves.done(ref)
        cohort = waves.trainings()
        for ref in cohort:
            ref.settle(np.zeros(2, np.float32))
            waves.done(ref)
        if cohort:
            cohorts.append([ref.name for ref in cohort])
    return cohorts


def test_trainings_with_known_bases_are_one_cohort() -> None:
    start = Ref("model-0", 0, Initial(0))
    updates = [_training(start, at) for at in (1, 2, 3)]
    mixed = Ref("model-4", 4, Mixed(tuple((update, 1 / 3) for update in updates), None, True))
    later = [_training(mixed, 5), _training(start, 6)]
    assert _play(later[::-1]) == [["update-1", "update-2", "update-3", "update-6"], ["update-5"]]


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
