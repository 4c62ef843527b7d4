"""A worker process of this machine, and its main loop ``serve``.

Calls and answers are pickles on pipes. An object that many calls take as an argument is sent once
(see ``WorkerProcess.call``). The output of a worker goes to the stderr of the process that started
it.
"""

import io
import os
import pickle
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from fedsim.clock.answers import Answer, Pickled, answer, read_answer, read_pickled
from fedsim.common.errors import SimulationError
from fedsim.common.imports import adopt_module_locations, module_locations
from fedsim.common.machine import GpuShares

_CODE = """import sys
sys.path[:] = {path!r}
from fedsim.common.imports import adopt_module_locations
adopt_module_locations({locations!r})
from {module} import {name}
{name}()"""


def start(
    module: str,
    name: str,
    *words: str,
    variables: Mapping[str, str] | None = None,
    **options: Any,
) -> "subprocess.Popen[Any]":
    """Start a new Python process that calls a function of fedsim, in a new session.

    The new process has the search path of this process without the working directory, and can
    import the users' code that this process was allowed to import. Unlike a process of
    ``multiprocessing`` it does not run the user's program again.

    Args:
        module: the function's module.
        name: name of the function.
        words: command-line arguments of the process, which the function finds in ``sys.argv[1:]``.
        variables: environment variables, in addition to the variables of this process.
        options: other arguments of ``subprocess.Popen``.

    Returns:
        The started process.
    """
    working_directory = Path.cwd().resolve()
    fedsim_folder = str(Path(__file__).absolute().parents[2])  # the folder that holds the package
    # ``sys.path`` is copied, as another thread, such as a Flower app's, may change it meanwhile
    absolute = [place for place in list(sys.path) if Path(place).is_absolute()]
    path = [place for place in absolute if Path(place).resolve() != working_directory]
    # text of the program that the new process runs
    code = _CODE.format(
        path=[*path, fedsim_folder], locations=module_locations(), module=module, name=name
    )
    environment = {**os.environ, **(variables or {})}
    environment.pop("PYTHONPATH", None)  # ``path`` already has the folders of this variable
    # -P: the working directory is not put in front of the search path
    command = [sys.executable, "-P", "-c", code, *words]
    return subprocess.Popen(command, env=environment, start_new_session=True, **options)


class WorkerProcess:
    """Python process of this machine that carries out one call at a time for ``WorkerProcesses``.

    Args:
        gpu: name of the only GPU that the process sees; None if it sees the GPUs that this process
            sees.

    Attributes:
        gpu: the argument of this name.
        process: the started process.
    """

    def __init__(self, gpu: str | None) -> None:
        self.gpu = gpu
        self.process: subprocess.Popen[bytes] = start(
            __name__,
            "serve",
            variables=GpuShares.variables(gpu),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        self._received = 0  # count of placed objects that were sent to the process

    def call(
        self, placed: Sequence[object], function: Callable[..., object], args: tuple[object, ...]
    ) -> "Answer":
        """Call a function in the process, and wait for its outcome.

        The process first receives the objects of ``placed`` that it does not have yet.

        Args:
            placed: all objects that are sent to a process only once, in the order in which they were
                given to ``Executor.place``. An object may refer to earlier objects.
            function: the function.
            args: its arguments.

        Returns:
            The pickled value, or the exception that the function raised.

        Raises:
            EOFError, BrokenPipeError: the process has ended.
            SimulationError: the call cannot be pickled.
        """
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        # ``_received`` counts the placed objects that the process has
        for position in range(self._received, len(placed)):
            self._send(placed[position], placed[:position])
            self._received += 1
        self._send(_WorkerCall(function, args), placed)
        self.process.stdin.flush()
        return read_answer(self.process.stdout)

    def _send(self, thing: object, placed: Sequence[object]) -> None:
        """Pickle an object into the process's pipe.

        Args:
            thing: the object.
            placed: objects that the process already has. If ``thing`` refers to one, the pickle has
                its index instead of the object.
        """
        assert self.process.stdin is not None
        buffers: list[pickle.PickleBuffer] = []
        memory = io.BytesIO()
        try:
            _PlacedPickler(memory, placed, buffers.append).dump(thing)
        except Exception as error:  # pickling a user's class may raise any kind of error
            raise SimulationError(
                f"work cannot be sent to another process: {type(error).__name__}: {error}; "
                "--executor threads sends none"
            ) from error
        # The process needs the present locations, because the pickle may refer to modules that were
        # allowed after the process began.
        is_call = isinstance(thing, _WorkerCall)
        pickle.dump((module_locations(), is_call), self.process.stdin)
        Pickled(memory.getvalue(), buffers).write(self.process.stdin)


class _WorkerCall(NamedTuple):
    """Call of a function with its arguments, as it is sent to a worker process."""

    function: Callable[..., object]
    args: tuple[object, ...]


class _PlacedPickler(pickle.Pickler):
    """Pickler for a process that already has some objects: it writes their indices instead.

    Args:
        stream: the stream to write to.
        placed: the objects that the process has.
        take_buffer: called with the memory of each array, which is not copied into the pickle.
    """

    def __init__(
        self,
        stream: BinaryIO,
        placed: Sequence[object],
        take_buffer: Callable[[pickle.PickleBuffer], object],
    ) -> None:
        super().__init__(stream, protocol=5, buffer_callback=take_buffer)
        self._indices = {id(thing): index for index, thing in enumerate(placed)}

    def persistent_id(self, thing: object) -> int | None:
        return self._indices.get(id(thing))


class _PlacedUnpickler(pickle.Unpickler):
    """Unpickler of ``_PlacedPickler``, which replaces indices by objects that were sent before.

    Args:
        pickled: the pickle.
        placed: the objects that this process has received. An object that was not needed yet is
            still a pickle.
    """

    def __init__(self, pickled: "Pickled", placed: list[object]) -> None:
        super().__init__(io.BytesIO(pickled.content), buffers=pickled.buffers)
        self._placed = placed

    def persistent_load(self, index: int) -> object:
        thing = self._placed[index]
        if isinstance(thing, Pickled):
            thing = _PlacedUnpickler(thing, self._placed).load()
            self._placed[index] = thing
        return thing


def serve() -> None:
    """Main loop of a worker process: it carries out calls until its pipe is closed."""
    calls = sys.stdin.buffer
    # Results are written to the process's original stdout. Descriptor 1 then becomes stderr, so
    # that output of the called functions does not get among the results.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    placed: list[object] = []  # objects to which pickles of later calls refer by index
    while True:
        try:
            locations, is_call = pickle.load(calls)
            pickled = read_pickled(calls)
        except EOFError:
            return
        adopt_module_locations(locations)
        if is_call:
            answer(partial(_carry_out, pickled, placed)).write(answers)
            answers.flush()
        else:
            placed.append(pickled)


def _carry_out(pickled: "Pickled", placed: list[object]) -> object:
    """Unpickle a ``_WorkerCall``, and return the value of its function."""
    call = _PlacedUnpickler(pickled, placed).load()
    return call.function(*call.args)


def describe_end(status: int, function: Callable[..., object]) -> str:
    """Return an error message on a worker process that has ended.

    Args:
        status: exit status of the process; negative if a signal has ended it.
        function: the function that the process was carrying out.
    """
    reason = f"exit status {status}"
    advice = ""
    if status < 0:
        number = -status
        name = signal.Signals(number).name if number in set(signal.Signals) else str(number)
        reason = f"signal {name}"
        if number == signal.SIGKILL:
            advice = "; the system may have run out of memory: use fewer --workers"
        else:
            advice = (
                "; the code of a library has crashed: a run with --executor inline and "
                "PYTHONFAULTHANDLER=1 shows where"
            )
    work = getattr(function, "__qualname__", str(function))
    return f"a worker process ended in {work} ({reason}){advice}"
