"""Functions that are carried out in another thread."""

import threading
from pathlib import Path

import pytest

from fedsim.errors import SimulationError
from fedsim.flower.turns import carried_out


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
