"""Answers of worker processes: what is sent, and what is not copied."""

from io import BytesIO

import numpy as np
import pytest

from fedsim.clock.answers import answer, read_answer


def test_answers_come_back_with_the_memory_of_arrays_apart() -> None:
    weights = np.arange(50_000, dtype=np.float32)
    weights.setflags(write=False)
    found = answer(lambda: {"weights": weights, "name": "a", "empty": np.zeros(0)})
    assert len(found.content) < 1_000
    stream = BytesIO()
    found.write(stream)
    answer(_failing).write(stream)
    stream.seek(0)
    succeeded, value = read_answer(stream).outcome()
    assert succeeded
    assert value["weights"].tobytes() == weights.tobytes()
    assert value["empty"].shape == (0,)
    succeeded, error = read_answer(stream).outcome()
    assert not succeeded
    assert "no such" in str(error)


def test_an_answer_that_is_cut_off_ends_the_call() -> None:
    stream = BytesIO()
    answer(lambda: np.ones(1000)).write(stream)
    with pytest.raises(EOFError):
        read_answer(BytesIO(stream.getvalue()[:-1]))


def _failing() -> None:
    raise ValueError("no such")
