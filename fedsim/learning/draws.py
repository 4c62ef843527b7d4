"""Random numbers of users' modules: torch's are keyed by task and step, all others are noticed.

torch's operations that draw, also within compiled layers (the dropout of ``torch.nn.LSTM``), are
dispatched through ``KeyedDraws``, which gives them a generator of its own. It belongs to the
calling thread.
"""

import random
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from fedsim.common.errors import ScenarioError

_WORD = (1 << 63) - 1
# held while an operation without a generator of its own uses a global one
_alone = threading.Lock()


class KeyedDraws(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, draws of torch come from a generator that ``seed`` sets; ``drawn``:
    whether there were any.

    A draw in a backward pass raises ``ScenarioError``: a forward pass that is computed again
    there (gradient checkpointing) would have other random numbers than at first.
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.drawn = False
        self._key = 0
        self._generators: dict[torch.device, torch.Generator] = {}

    def seed(self, key: int) -> None:
        """Begin anew, by any 64 bits."""
        self._key = key & _WORD
        for generator in self._generators.values():
            generator.manual_seed(self._key)

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        # nothing here is compiled, and a guard against it would make each operation slower
        return False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        given = kwargs or {}
        if not _draws(func):
            return func(*args, **given)
        names = [argument.name for argument in func._schema.arguments]
        keyed = func if "generator" in names else _with_generator(func)
        if keyed is None:
            return self._without_generator(func, args, given)
        if "generator" in names:
            place = names.index("generator")
            chosen = args[place] if place < len(args) else given.get("generator")
            if chosen is not None:  # the module's own generator
                return func(*args, **given)
            args = args[:place]
        return keyed(*args, **given | {"generator": self._of(_device(args, given))})

    def _without_generator(self, func: Any, args: Any, given: Any) -> Any:
        """A draw of an operation that is made of others, or that takes no generator."""
        with self:
            result = func.decompose(*args, **given)
        if result is not NotImplemented:
            return result
        generator = self._of(_device(args, given))
        word = int(
            torch.empty((), dtype=torch.int64).random_(generator=self._of(torch.device("cpu")))
        )
        with (
            _alone,
            torch.random.fork_rng(
                devices=[] if generator.device.type == "cpu" else [generator.device]
            ),
        ):
            torch.manual_seed(word)
            return func(*args, **given)

    def _of(self, device: torch.device) -> torch.Generator:
        if torch._C._current_graph_task_id() != -1:
            raise ScenarioError(
                "the module of model.factory draws random numbers in its backward pass, as "
                "gradient checkpointing makes it; "
                "they would differ from those of the forward pass; allowed are "
                "torch.nn.Dropout, whose masks are keyed, or no "
                "checkpointing"
            )
        self.drawn = True
        if device not in self._generators:
            self._generators[device] = torch.Generator(
                device if device.type == "cuda" else "cpu"
            ).manual_seed(self._key)
        return self._generators[device]


@cache
def _draws(func: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in func.tags


def _with_generator(func: Any) -> Any:
    """The overload of an operation that takes a generator, if there is one."""
    name = "generator" if func._overloadname == "default" else f"{func._overloadname}_generator"
    packet = func._overloadpacket
    return getattr(packet, name) if name in packet.overloads() else None


def _device(args: Any, given: Any) -> torch.device:
    """The device of an operation's result."""
    for value in (*args, *given.values()):
        if isinstance(value, torch.device):
            return value
        if isinstance(value, torch.Tensor):
            return value.device
    return torch.device("cpu")


def global_states(device: torch.device | None = None) -> dict[str, Any]:
    """States of the process's own generators, by name, as values that compare; of CUDA's with a
    CUDA device.
    """
    kind, words, *counts = np.random.get_state()  # noqa: NPY002
    states: dict[str, Any] = {
        "Python's random": random.getstate(),
        "numpy.random": (kind, np.asarray(words).tobytes(), *counts),
        "torch": torch.get_rng_state().numpy().tobytes(),
    }
    if device is not None and device.type == "cuda":
        states["torch.cuda"] = torch.cuda.get_rng_state(device).numpy().tobytes()
    return states


def moved_since(before: dict[str, Any], device: torch.device | None = None) -> list[str]:
    """Names of the global generators from which somebody has drawn since ``before``."""
    return [name for name, state in global_states(device).items() if state != before[name]]


@contextmanager
def generators_kept(seed: int | None = None) -> Iterator[None]:
    """Leave the process's generators as they were; within, they begin with a ``seed`` if it is
    given.
    """
    states = random.getstate(), np.random.get_state()  # noqa: NPY002
    with torch.random.fork_rng(devices=[]):
        if seed is not None:
            random.seed(seed)
            np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002
            torch.default_generator.manual_seed(seed)
        try:
            yield
        finally:
            random.setstate(states[0])
            np.random.set_state(states[1])  # noqa: NPY002
