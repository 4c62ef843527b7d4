"""Answers of worker processes: pickled values and exceptions of calls, on pipes.

The memory of arrays is written beside the pickle, so that it is not copied.
"""

import pickle
import traceback
from collections.abc import Callable, Sequence
from typing import IO, Any, NamedTuple

from fedsim.common.errors import SimulationError


class Pickled(NamedTuple):
    """Pickle of an object, with the memory of its arrays kept separately, so that it is not copied.

    Attributes:
        content: the pickle without the memory of arrays.
        buffers: the memory of each array.
    """

    content: bytes
    buffers: Sequence[Any] = ()

    def write(self, stream: IO[bytes]) -> None:
        """Write pickle and arrays to a stream, from which ``read_pickled`` reads them."""
        views = [pickle.PickleBuffer(buffer).raw() for buffer in self.buffers]
        sizes = [(view.nbytes, view.readonly) for view in views]
        pickle.dump((self.content, sizes), stream, protocol=5)
        for view in views:
            stream.write(view)


def read_pickled(stream: IO[bytes]) -> Pickled:
    """Read a pickle and its arrays' memory, as ``Pickled.write`` has written them.

    The arrays get new memory. Arrays that were read-only in the sender are read-only again.

    Raises:
        EOFError: the stream ends before the pickle does.
    """
    content, sizes = pickle.load(stream)
    buffers: list[bytearray | memoryview] = []
    for size, is_readonly in sizes:
        buffer = bytearray(size)
        if stream.readinto(buffer) < size:  # type: ignore[attr-defined]
            raise EOFError
        buffers.append(memoryview(buffer).toreadonly() if is_readonly else buffer)
    return Pickled(content, buffers)


class Answer(Pickled):
    """Pickled result of a call in a worker process: (True, value) or (False, exception)."""

    def outcome(self) -> tuple[bool, Any]:
        """Return (True, the call's value) or (False, the exception that it raised)."""
        succeeded, value = pickle.loads(self.content, buffers=self.buffers)
        return succeeded, value


def read_answer(stream: IO[bytes]) -> Answer:
    """Read the result of a call from the pipe of the worker process that made the call.

    Args:
        stream: output of the worker, which has written the result by ``Answer.write``.

    Returns:
        The pickled result: the call's value, or the exception that it raised.

    Raises:
        EOFError: the worker has ended before the whole result was written.
    """
    return Answer(*read_pickled(stream))


def answer(work: Callable[[], object]) -> Answer:
    """Call a function, and pickle its value or its exception.

    Args:
        work: the function, without arguments.

    Returns:
        The pickled value or error. If the value or the error cannot be pickled, it is replaced by a
        ``SimulationError`` with the message.
    """
    is_done = True
    result: object
    try:
        result = work()
    except Exception as error:
        # a pickled error has no traceback, so the traceback is added to it as text
        error.add_note("".join(traceback.format_exception(error)))
        is_done = False
        result = error
    buffers: list[pickle.PickleBuffer] = []  # memory of arrays, which is not copied into the pickle
    try:
        outcome = (is_done, result)
        content = pickle.dumps(outcome, protocol=5, buffer_callback=buffers.append)
        if not is_done:
            # unpickled as a test: many classes of errors can be pickled, but not unpickled
            pickle.loads(content, buffers=buffers)
        return Answer(content, buffers)
    except Exception as error:
        # the message names the error of ``work``, if there was one, or else the failure of pickling
        cause = error if is_done else result
        failure = SimulationError(f"{type(cause).__name__}: {cause}")
        return Answer(pickle.dumps((False, failure), protocol=5))
