"""Copies of a module for the threads that compute with it, and a watch over state that one use
would leave for the next.

A copy serves many devices in turn. Its flat model is loaded before each use; nothing else may pass
from device to device. A use that changes the module's memory otherwise (``remains``) costs the
copy, and is refused unless a second use with the same inputs gives the same result and leaves the
same memory: then it was a cache, or a record of the last pass.
"""

import threading
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from fedsim.common.errors import FedsimError, ScenarioError, SimulationError, place_of
from fedsim.learning.draws import global_states, moved_since
from fedsim.learning.modules import copied, numbers
from fedsim.learning.remains import Token, differences, remains

R = TypeVar("R")
_EVERY = 8  # trainings
_TRIES = 3  # after which a moved global generator is not somebody else's doing


class ModuleCopy:
    """A copy of a module, its flat model's buffers at their places, and its memory when it was
    made.
    """

    def __init__(self, template: nn.Module, *, is_watched: bool = False) -> None:
        self.module = copied(template)
        flat = numbers(self.module)
        self.flat = flat
        self._buffers: list[tuple[nn.Module, str, Tensor]] = []
        for name, tensor in flat.items():
            holder, _, key = name.rpartition(".")
            part = self.module.get_submodule(holder)
            if key in part._buffers:
                self._buffers.append((part, key, tensor))
        self.memory: dict[str, Token] = remains(self.module, flat) if is_watched else {}
        self.uses = 0

    def restore(self) -> dict[str, Tensor]:
        """The tensors of the flat model, by name; buffers that a pass has replaced are back at
        their places.
        """
        for part, key, tensor in self._buffers:
            part._buffers[key] = tensor
        return self.flat

    def is_replaced(self, name: str) -> bool:
        """Whether another tensor is at the place of a buffer of the flat model."""
        return any(
            part._buffers.get(key) is not tensor
            for part, key, tensor in self._buffers
            if tensor is self.flat[name]
        )

    def moved(self) -> dict[str, Tensor]:
        """The flat model's tensors after a training; ``ScenarioError`` if they are not those of
        before.
        """
        for name, tensor in self.flat.items():
            holder, _, key = name.rpartition(".")
            part = self.module.get_submodule(holder)
            held: dict[str, Tensor | None] = {**part._parameters, **part._buffers}
            now = held.get(key)
            if (
                now is None
                or now.shape != tensor.shape
                or (isinstance(tensor, nn.Parameter) and now is not tensor)
            ):
                shape = "nothing" if now is None else f"another of shape {tuple(now.shape)}"
                raise ScenarioError(
                    f"the module of model.factory replaces its tensor {name!r} of shape "
                    f"{tuple(tensor.shape)} by {shape} in a "
                    "training; allowed are changes of a buffer's numbers alone"
                )
        return {name: _at(self.module, name) for name in self.flat}


def _at(module: nn.Module, name: str) -> Tensor:
    holder, _, key = name.rpartition(".")
    found: Tensor = getattr(module.get_submodule(holder), key)
    return found.detach()


class Watch:
    """Uses of a module by any number of threads, each with copies of its own.

    Attributes:
        is_on: whether uses are watched; fedsim's own modules need none.
        harmless: names of memory that uses change, and that makes no difference.
    """

    def __init__(self, template: nn.Module, device: torch.device) -> None:
        self._template = template
        self._device = device
        self._threads = threading.local()
        self.is_on = False
        self.harmless: set[str] = set()

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_threads": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state, _threads=threading.local())

    def fresh(self) -> ModuleCopy:
        """A copy that nobody has used."""
        return ModuleCopy(self._template, is_watched=self.is_on)

    @property
    def is_first(self) -> bool:
        """Whether this thread has not trained yet; asked once."""
        is_first = not getattr(self._threads, "has_trained", False)
        self._threads.has_trained = True
        return is_first

    def use(
        self,
        work: Callable[[ModuleCopy], R],
        same: Callable[[R, R], bool],
        where: str,
        *,
        trains: bool,
    ) -> R:
        """The result of ``work`` on this thread's copy.

        Args:
            work: loads the copy's flat model, and computes.
            same: whether two results are the same to the bit.
            where: the use in words, for messages.
            trains: whether it is a training, in which draws are looked for each time, and changed
                memory at first, and then in every eighth; tests are watched ever more seldom. A
                change lasts until it is seen.

        Raises:
            SimulationError: the module fails, leaves something behind, or draws from a global
                generator.
        """
        module = getattr(self._threads, "copy", None) or self.fresh()
        self._threads.copy = module
        module.uses += 1
        uses = module.uses
        is_due = uses & (uses - 1) == 0 or (trains and (uses < _EVERY or uses % _EVERY == 0))
        looks_at_memory = self.is_on and (is_due or bool(self.harmless))
        looks_at_draws = self.is_on and (is_due or trains)
        before = global_states(self._device) if looks_at_draws else {}
        result = plainly(lambda: work(module), where)
        if looks_at_draws and moved_since(before, self._device):
            self._refuse_draws(work, where)
        if looks_at_memory:
            self._look_at(module, work, result, same, where)
        return result

    def _refuse_draws(self, work: Callable[[ModuleCopy], R], where: str) -> None:
        """Raise if it is the module that moves global generators, and not another thread's code."""
        for _ in range(_TRIES):
            before = global_states(self._device)
            plainly(lambda: work(self.fresh()), where)
            if not (drawn := moved_since(before, self._device)):
                return
        raise SimulationError(draws_message(drawn, where))

    def _look_at(
        self,
        module: ModuleCopy,
        work: Callable[[ModuleCopy], R],
        result: R,
        same: Callable[[R, R], bool],
        where: str,
    ) -> None:
        changed = differences(module.memory, remains(module.module, module.flat))
        if not changed:
            return
        self._threads.copy = None
        unknown = [name for name in changed if name not in self.harmless]
        if not unknown:
            return
        after = remains(module.module, module.flat, whole=True)
        again = plainly(lambda: work(module), where)
        left = differences(after, remains(module.module, module.flat, whole=True))
        if left or not same(result, again):
            raise SimulationError(left_message(left or unknown, where))
        self.harmless.update(unknown)


def plainly(work: Callable[[], R], where: str) -> R:
    """The result of code of a user's module; an error of it becomes one of fedsim's, which says
    where it was.
    """
    try:
        return work()
    except FedsimError:
        raise
    except Exception as error:
        raise SimulationError(
            f"the module of model.factory failed {where}: {type(error).__name__}: "
            f"{error}{place_of(error)}"
        ) from error


def left_message(names: list[str], where: str) -> str:
    """The message for state that a use leaves behind."""
    return (
        f"the module of model.factory leaves {', '.join(map(repr, names[:5]))} changed "
        f"{where}; the next device on the same "
        "worker would find it so; allowed is state in persistent buffers of floats, which are "
        "part of the model "
        "(register_buffer), or none"
    )


def draws_message(names: list[str], where: str) -> str:
    """The message for draws that cannot be keyed."""
    return (
        "the module of model.factory draws from the global generator of "
        f"{' and of '.join(names)} {where}, so that results "
        "would depend on the order of the work; allowed are torch's draws in forward, which "
        "are keyed by device and step: "
        "torch.nn.functional.dropout, torch.rand and others"
    )
