"""Generators that change hands, and functions that are carried out in another thread."""

import random
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from fedsim.errors import SimulationError
from fedsim.flower.turns import Generators, carried_out, seeded


def drawn() -> tuple[float, float, float]:
    """From each global generator; a normal one, of which numpy draws two and keeps the other."""
    return random.random(), float(np.random.standard_normal()), float(torch.rand(()))  # noqa: NPY002


@pytest.mark.parametrize("made", [seeded, lambda seed: Generators(seed).in_use()], ids=["seeded", "in_use"])
def test_generators_begin_with_their_seed_and_are_put_back(made: type) -> None:
    random.seed(7)
    np.random.seed(7)  # noqa: NPY002
    torch.manual_seed(7)
    outside = [drawn(), drawn(), drawn()]
    for seed in (7, 8):
        random.seed(7)
        np.random.seed(7)  # noqa: NPY002
        torch.manual_seed(7)
        found = [drawn()]
        with made(seed):
            assert (drawn() == outside[0]) == (seed == 7)
        found += [drawn(), drawn()]
        assert found == outside


def test_a_function_s_value_its_error_and_its_never_ending() -> None:
    here = Path(__file__).parent
    assert carried_out(lambda: 3, 60.0, here, "it") == 3
    with pytest.raises(ZeroDivisionError):
        carried_out(lambda: 1 / 0, 60.0, here, "it")
    waits = threading.Event()

    def stuck() -> None:
        waits.wait()

    with pytest.raises(SimulationError, match=r"^it has computed for 0\.01 s of real time, in test_turns\.py, line \d+; "):
        carried_out(stuck, 0.01, here, "it")
    assert carried_out(lambda: 4, 60.0, here, "it") == 4  # another thread's, for that one is still at it
    waits.set()
