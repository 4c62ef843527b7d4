"""A device as its own code sees it in a strategy without a server."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple, cast

import numpy as np

from fedsim.common.arguments import (
    COUNT,
    INDEX,
    STREAM_ID,
    TEXT,
    instance,
    number,
    optional,
    takes,
)
from fedsim.common.former_names import warn_renamed
from fedsim.federation.argument_rules import CONTENTS, MODEL, devices_of
from fedsim.federation.contents import Contents, Header, Partial, payloads
from fedsim.federation.devices import Device
from fedsim.learning.refs import Ref

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch


class EncodedModel(NamedTuple):
    """Model that was encoded for messages to other devices, and its size on the wire.

    ``Peer.encode`` returns it.

    Attributes:
        decoded: the model that receivers get after decoding, with the loss of precision.
        bytes: size of the payload (bytes).
    """

    decoded: Ref
    bytes: float


def _count_devices(peer: object) -> int:
    return cast(Peer, peer)._dispatch.messages.network.devices


_DEVICES = devices_of(_count_devices)


class Peer(Device):
    """A device as its own code sees it in a strategy without a server.

    It can train, and send to other devices.
    """

    __slots__ = ("_dispatch",)

    def __init__(self, number: int, dispatch: "Dispatch") -> None:
        super().__init__(number, dispatch.devices)
        self._dispatch = dispatch

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._dispatch.simulation.now

    @property
    def reachable(self) -> bool:
        """Whether the device can be reached now.

        The device's code is called only while the device can be reached.
        """
        return self._dispatch.tasks.reachable_until(self.number) > self.now

    @property
    def online(self) -> bool:
        """Former name of ``reachable``."""
        warn_renamed("Peer.online", "reachable")
        return self.reachable

    @takes(model=MODEL, number=INDEX, steps=optional(COUNT))
    def train(self, model: Ref, number: int, steps: int | None = None) -> None:
        """Start a training from a model, as a task that moves no bytes; ``on_trained`` follows.

        Args:
            model: the model from which the training starts.
            number: index of the round, from 0.
            steps: count of SGD steps, which the strategy's client code reads as
                ``instruction["steps"]``; None for the count that this code has by default.
        """
        contents: dict[str, object] = {"model": Header(model)}
        if steps is not None:
            contents["steps"] = Header(steps)
        self._dispatch.ask(self.number, contents, round_number=number)

    @takes(devices=_DEVICES, contents=CONTENTS, number=INDEX)
    def send(self, devices: Sequence[int], contents: Contents, number: int) -> None:
        """Send the same contents to several devices, in one message to each.

        Models among the contents are compressed by the codec that the key ``messages.up`` of the
        scenario names.

        When a message has arrived, ``on_message`` is called in the receiver's code. If a message is
        lost, ``on_lost`` is called in the code of sender and receiver.

        Args:
            devices: IDs of the receivers.
            contents: the contents by name.
            number: index of the round, from 0.
        """
        self._dispatch.peer_channel.send(self.number, devices, contents, number)

    @takes(value=instance((Ref, Partial), "a model (Ref) or a Partial"))
    def encode(self, value: Ref | Partial) -> EncodedModel:
        """Compress a model for other devices by the codec that the key ``messages.up`` names.

        The result has the model that receivers get after decoding, with the loss of precision, and
        the size of the message (bytes).

        Args:
            value: the model, or some of its tensors.
        """
        codec = self._dispatch.peer_channel.codec
        contents = {"part": value}
        decoded: Ref = codec.encode_and_decode(contents, bases={}, residuals={}).arriving["part"]
        message_bytes = sum(payload.bytes for payload in payloads(contents, codec))
        return EncodedModel(decoded, message_bytes)

    def written(self, value: Ref | Partial) -> EncodedModel:
        """Former name of ``encode``.

        Args:
            value: a model, or a part of one.
        """
        warn_renamed("Peer.written", "encode")
        return self.encode(value)

    @takes(seconds=number(infinite=True))
    def timer(self, seconds: float) -> None:
        """Set the device's timer, which calls ``on_timer`` of its code; replaces an earlier timer.

        Args:
            seconds: the time from now (s).
        """
        self._dispatch.timers.set(f"device/{self.number}", self.now + seconds)

    def cancel_timer(self) -> None:
        """Cancel the device's timer; no effect if no timer is set."""
        self._dispatch.timers.cancel(f"device/{self.number}")

    @takes(purpose=TEXT, ids=STREAM_ID)
    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """Return a random generator that depends only on the run's seed and these arguments.

        Two devices that call it with the same arguments draw the same numbers.

        Args:
            purpose: a word that names the generator, by the use of its random numbers.
            ids: numbers that complete the name of the generator, such as the round.
        """
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
