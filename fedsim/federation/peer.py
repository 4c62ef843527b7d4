"""A device in a strategy without a server: what its half may call. It sees itself, and what other devices send it."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from fedsim.federation.contents import Contents, Header, Partial
from fedsim.federation.devices import Device
from fedsim.learning.refs import Ref
from fedsim.simulation import on_grid

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch


class Peer(Device):
    """A device that trains, sends to other devices, and has a timer. ``state`` and the rest are those of ``Device``."""

    __slots__ = ("_dispatch",)

    def __init__(self, number: int, dispatch: "Dispatch") -> None:
        super().__init__(number, dispatch.devices)
        self._dispatch = dispatch

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._dispatch.simulation.now

    @property
    def online(self) -> bool:
        """Whether it can be reached; its half acts only while it can."""
        return self._dispatch.tasks.reachable_until(self.number) > self.now

    def train(self, model: Ref, number: int) -> None:
        """Train from ``model`` in the round ``number``, as a task that moves no bytes; ``on_trained`` tells its end."""
        self._dispatch.ask(self.number, {"model": Header(model)}, "train", number, None, continues=False)

    def send(self, devices: Sequence[int], contents: Contents, number: int) -> None:
        """Send contents to other devices, all at once; models in the form that ``messages.up`` says.

        They share its link up. ``on_message`` of each of them follows, or ``on_lost`` here and there.
        """
        self._dispatch.send(self.number, devices, contents, number)

    def written(self, value: Ref | Partial) -> tuple[Ref, float]:
        """A model, or a part of one, as others read it in the form that ``messages.up`` says, and its bytes."""
        return self._dispatch.written(value)

    def timer(self, seconds: float) -> None:
        """Call ``on_timer`` so many seconds from now; a new timer replaces the one before."""
        self._dispatch.set_timer(f"device/{self.number}", on_grid(self.now + seconds))

    def cancel_timer(self) -> None:
        """Forget the timer."""
        self._dispatch.cancel_timer(f"device/{self.number}")

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator named by a purpose and counts. Devices that ask for the same have the same: a seed that all know."""
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
