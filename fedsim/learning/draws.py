"""Random numbers of users' modules: torch's draws are made repeatable, other draws are detected.

``KeyedDraws`` intercepts torch's operations that draw random numbers, including operations within
compiled layers such as the dropout of ``torch.nn.LSTM``. Each operation then draws from a generator
of the calling thread, which is seeded with a key of the device's training and step.
"""

import random
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch._ops import OpOverload
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.common.errors import ScenarioError
from fedsim.common.streams import generator_states, shared_generators

_LOWER_63_BITS = (1 << 63) - 1

Operation = OpOverload[..., Any]
"""Operation of torch, as a dispatch mode receives it."""


class KeyedDraws(TorchDispatchMode):
    """Context in which torch's random draws depend only on a key, set by ``seed``.

    It is a dispatch mode of torch, which intercepts every operation. A draw in a backward pass
    raises ``ScenarioError``, because gradient checkpointing repeats the forward pass there and
    would draw other random numbers than at first.

    Attributes:
        drawn: whether any operation has drawn random numbers.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = False
        self._key = 0
        # torch device -> generator that ``seed`` seeds; made at the device's first draw
        self._generators: dict[torch.device, torch.Generator] = {}

    def seed(self, key: int) -> None:
        """Set the key of all later draws, so that equal keys give equal draws.

        Args:
            key: integer, of which the lower 63 bits are used.
        """
        self._key = key & _LOWER_63_BITS
        for generator in self._generators.values():
            generator.manual_seed(self._key)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # no operation is compiled in this mode, and a check for it would slow down each operation
        return False

    def __torch_dispatch__(
        self,
        func: Operation,
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> object:
        """Carry out an operation; within this context torch calls this method for each of them.

        An operation that draws random numbers gets the keyed generator, unless the module passes
        its own generator.

        Args:
            func: the operation.
            types: not used.
            args: positional arguments of the operation.
            kwargs: keyword arguments of the operation.
        """
        kwargs = kwargs or {}
        if not _draws_numbers(func):
            return func(*args, **kwargs)
        names = [argument.name for argument in func._schema.arguments]
        if "generator" in names:
            variant: Operation | None = func
            position = names.index("generator")
            generator = args[position] if position < len(args) else kwargs.get("generator")
            if generator is not None:  # a generator that the module has passed
                return func(*args, **kwargs)
            args = args[:position]  # drops a None for the generator, which is passed by name
        else:
            variant = _with_generator(func)
        if variant is None:
            return self._call_without_generator(func, args, kwargs)
        keyed_kwargs = dict(kwargs)
        keyed_kwargs["generator"] = self._generator(_device_of(args, kwargs))
        return variant(*args, **keyed_kwargs)

    def _call_without_generator(
        self, func: Operation, args: Sequence[object], kwargs: Mapping[str, object]
    ) -> object:
        """Call an operation that draws random numbers, but has no variant that takes a generator.

        The operation is divided into simpler ones, or torch's global generators are seeded during
        the call and restored after it.

        Args:
            func: the operation.
            args: its positional arguments.
            kwargs: its keyword arguments.
        """
        with self:  # the simpler operations are intercepted in turn
            result: object = func.decompose(*args, **kwargs)
        if result is not NotImplemented:
            return result
        # the global generators get a seed that is itself a keyed draw
        device = self._generator(_device_of(args, kwargs)).device
        gpus = [] if device.type == "cpu" else [device]
        cpu_generator = self._generator(torch.device("cpu"))
        seed = int(torch.empty((), dtype=torch.int64).random_(generator=cpu_generator))
        with shared_generators, torch.random.fork_rng(devices=gpus):
            torch.manual_seed(seed)
            return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        """Return the seeded generator for a draw on a torch device, and set ``drawn`` to True.

        Raises:
            ScenarioError: the draw is in a backward pass.
        """
        if torch._C._current_graph_task_id() != -1:  # -1 outside of a backward pass
            raise ScenarioError(
                "the module of model.factory draws random numbers in its backward pass, as "
                "gradient checkpointing makes it; "
                "they would differ from those of the forward pass; allowed are "
                "torch.nn.Dropout, whose masks are keyed, or no "
                "checkpointing"
            )
        self.drawn = True
        if device not in self._generators:
            generator = torch.Generator(device if device.type == "cuda" else "cpu")
            self._generators[device] = generator.manual_seed(self._key)
        return self._generators[device]


@cache
def _draws_numbers(func: Operation) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _with_generator(func: Operation) -> Operation | None:
    """Return the variant of a torch operation that takes a generator; None if there is none."""
    name = "generator"
    if func._overloadname != "default":
        name = f"{func._overloadname}_generator"
    packet = func._overloadpacket
    if name not in packet.overloads():
        return None
    overload: Operation = getattr(packet, name)
    return overload


def _device_of(args: Sequence[object], kwargs: Mapping[str, object]) -> torch.device:
    """Return the torch device on which an operation is carried out.

    It is the device of the first argument that is a device or a tensor; the CPU if none is.
    """
    for value in (*args, *kwargs.values()):
        if isinstance(value, torch.device):
            return value
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def global_states(device: torch.device | None = None) -> dict[str, object]:
    """Return the states of the process's global random generators, to detect draws.

    Args:
        device: torch device, whose generator is included if it is a CUDA device.

    Returns:
        Name of a generator -> its state, to compare with a later one.
    """
    states: dict[str, object] = generator_states()
    if device is not None and device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def find_draws(
    states_before: Mapping[str, object], device: torch.device | None = None
) -> list[str]:
    """Return which of the process's global random generators were used since an earlier time.

    Args:
        states_before: the result of ``global_states`` at the earlier time.
        device: the device that was given to ``global_states``.

    Returns:
        The names of the generators.
    """
    states = global_states(device)
    return [name for name, state in states.items() if state != states_before[name]]


@contextmanager
def generators_kept(seed: int | None = None) -> Iterator[None]:
    """Return a context that restores the process's global random generators at its end.

    These are the generators of Python, numpy, and torch on the CPU.

    Args:
        seed: seed of the generators within the context; None to leave their states.
    """
    python_state = random.getstate()
    numpy_state = np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002  (its seeds have 32 bits)
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(python_state)
            np.random.set_state(numpy_state)  # noqa: NPY002
