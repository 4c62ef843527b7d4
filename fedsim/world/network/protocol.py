"""Transport protocols: headers, slow start, and the weights by which flows share a link."""

import math
from dataclasses import dataclass
from functools import cached_property
from numbers import Real
from typing import Annotated, Any, Literal, Self, TypeVar

import numpy as np
from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.common.arrays import Floats
from fedsim.common.errors import show_value
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, returns
from fedsim.common.spec import OnlyWith, Spec
from fedsim.common.streams import Streams
from fedsim.common.units import Bytes, PositiveBytes, PositiveSeconds, Seconds
from fedsim.world.network.queues.congestion import Control
from fedsim.world.network.queues.step_plan import QueueingRules

FloatOrFloats = TypeVar("FloatOrFloats", float, Floats)

_MEASURED_CLIENTS = range(3, 13)  # client counts of the real federations of docs/validation.md
_QUEUE_S = 1e-3  # time (s) in which a machine sends the queued bytes of one connection
_USUAL_ROUND_TRIP_S = 0.1  # round trip (s) of a flow whose weight by round trip is 1
_LEAST_ROUND_TRIP_S = 1e-3  # round trip (s) below which weights by round trip are constant


def _find_wrong_times(value: object, *_: object, **__: object) -> str:
    is_array = isinstance(value, np.ndarray) and value.dtype.kind in "iuf"
    if not is_array and not isinstance(value, Real):
        return show_value(value)
    find_mistake = find_outside(least=0.0, infinite=True)
    return find_mistake(value)


class Protocol(Spec):
    """Base of transport protocols (``network.protocol``): overhead, windows and weights of flows.

    A user's protocol is a subclass that overrides any of the methods.

    Attributes:
        segment: payload of a full packet (bytes).
        header: header bytes of a packet.
        slow_start: whether each transfer, also after an idle time, begins with a small window that
            doubles every round trip (RFC 5681).
        initial_window: count of segments in the first round trip (RFC 6928: 10).
        round_trip: time of a round trip in addition to twice the device's latency.
        weight_spread: spread of flows' random weights, which are lognormal with median 1: factor by
            which one standard deviation changes a weight.
        turns: whether weights of downloads are nearly equal on long round trips, because downloads
            take turns in the sender's queue (Linux's TCP small queues, about 1 ms per connection).
            With a round trip of R s the logarithm of a random weight is divided by 1 + R / 1 ms.
        weight_by_round_trip: exponent p of SimGrid's rule, by which a flow's weight is proportional
            to R^-p for a round trip of R s, 1 ms or more; 1 for TCP Reno's shares. It is for
            comparison only: it did not predict any real run better.
        late_weight: factor of the weight of uploads that begin while other uploads to the same
            receiver are running; see docs/time.md.
    """

    kind: str
    segment: PositiveBytes = 1448.0
    header: Bytes = 0.0
    slow_start: bool = False
    initial_window: int = Field(default=10, ge=1, le=1_000_000)
    round_trip: Seconds = 0.0
    weight_spread: float = Field(default=1.0, ge=1.0, le=10.0)
    turns: bool = False
    weight_by_round_trip: float = Field(default=0.0, ge=0.0, le=2.0)
    late_weight: float = Field(default=1.0, gt=0.0, le=1.0)

    @cached_property
    @returns("a finite number, 1 or more", find_outside(least=1.0))
    def overhead(self) -> float:
        """Bytes on the wire for each byte of payload, 1 or more."""
        return (self.segment + self.header) / self.segment

    @cached_property
    @returns("a number above 0 (bytes)", find_outside(above=0.0, infinite=True))
    def window(self) -> float:
        """Window of a new connection (bytes on the wire); infinity without slow start."""
        return self.initial_window * (self.segment + self.header) if self.slow_start else math.inf

    def queueing(self) -> QueueingRules | None:
        """Return the constants of the window model, with congestion windows and queues of links.

        None means that the network has no queues, and divides the rate of a link among its flows.
        """
        return None

    @property
    def weighs(self) -> bool:
        """Whether flows may have different weights, by which a link is divided among them."""
        return self.weight_spread > 1 or self.weight_by_round_trip > 0 or self.late_weight < 1

    @returns("a finite number above 0", find_outside(above=0.0))
    def weight(
        self,
        streams: Streams,
        device: int,
        count: int,
        round_trip: float,
        direction: Literal["down", "up"],
    ) -> float:
        """Draw the weight of a transfer: its share of a link relative to other flows, above 0.

        Args:
            streams: random streams.
            device: index of the device.
            count: index of the transfer among the device's transfers, from 0.
            round_trip: round trip of the transfer (s).
            direction: ``down`` or ``up``.
        """
        # lognormal with median 1: ``weight_spread`` to the power of a standard normal draw
        exponent: float = streams.normal("world/flow-weight", device, count)
        if direction == "down" and self.turns:  # downloads take turns, and are more equal
            exponent /= 1 + round_trip / _QUEUE_S
        by_chance: float = self.weight_spread**exponent
        by_distance: float = (
            _USUAL_ROUND_TRIP_S / max(round_trip, _LEAST_ROUND_TRIP_S)
        ) ** self.weight_by_round_trip
        return by_chance * by_distance

    def rules(self) -> list[str]:
        """Describe each formula that was fitted to measurements: its range and its error, as text.

        ``fedsim check`` prints these texts.
        """
        return []

    def outside_of_rules(self, at_once: int) -> list[str]:
        """Return warnings about parameters outside the range for which the formulas were fitted.

        Args:
            at_once: count of devices that send at the same time.
        """
        return []

    @returns("a time, 0 or more (s), or an array of them", _find_wrong_times)
    def sending_s(self, size: Any, rate: FloatOrFloats, round_trip: FloatOrFloats) -> FloatOrFloats:
        """Return the times that flows take to send if they share no link with other flows (s), [flows].

        The latency before the first byte is not included. Without slow start the time is that of
        all bytes, headers included, at ``rate``. In slow start, round trip k (from 0) carries w 2^k
        bytes, where w is the first ``window``. As soon as a round trip could carry ``rate`` x
        ``round_trip`` bytes, the flow sends at ``rate``.

        Args:
            size: payloads (bytes), [flows].
            rate: rates of the links (bytes on the wire/s), [flows].
            round_trip: round trips (s), [flows].
        """
        wire = size * self.overhead
        window = self.window
        seconds: FloatOrFloats
        if window == math.inf:
            seconds = wire / rate
            return seconds
        # the rate may be infinite, and a round trip may take no time
        with np.errstate(divide="ignore", invalid="ignore"):
            rounds_to_rate = np.ceil(np.log2(np.fmax(rate * round_trip / window, 1.0)))
            # whole round trips in slow start: k of them carry w (2^k - 1) bytes
            rounds_to_size = np.floor(np.log2(wire / window + 1))
            rounds = np.minimum(rounds_to_rate, rounds_to_size)
            remaining = wire - window * (2**rounds - 1)
            window_rate = window * 2**rounds / round_trip
            seconds = rounds * round_trip + remaining / np.minimum(rate, window_rate)
        return seconds


class Fluid(Protocol):
    """Protocol without headers and slow start: a flow has its full rate from the first byte on.

    Flows on a link get equal shares of the link's rate.
    """

    kind: Literal["fluid"] = "fluid"


class QueueLength(Spec):
    """Size of a link's full queue, as a time or as bytes; exactly one is given.

    Attributes:
        time: time in which the link sends a full queue.
        size: bytes of a full queue.
    """

    time: Annotated[PositiveSeconds | None, OnlyWith("size", values=(None,))] = None
    size: PositiveBytes | None = None

    @model_validator(mode="after")
    def _refuse_none(self) -> Self:
        if self.time is None and self.size is None:
            raise PydanticCustomError(
                "no_length", "has no length; allowed is one of 'time' and 'size'"
            )
        return self


_WINDOW = OnlyWith("model", values=("window",))
_FLUID = OnlyWith("model", values=("fluid",))


class Tcp(Protocol):
    """TCP over Ethernet, with slow start and headers of 66 bytes for 1,448 bytes of payload.

    The headers are 14 bytes of Ethernet, 20 of IP, and 32 of TCP with timestamps.

    Attributes:
        model: ``fluid``: the rate of a link is divided among its flows at any instant, by weights;
            ``window``: each sender has a congestion window, and each link a queue that drops the
            packets that do not fit (docs/time.md).
        control: congestion control: ``cubic`` (RFC 9438), ``reno`` (RFC 5681) or ``bbr`` (version
            1; draft-cardwell-iccrg-bbr-congestion-control-00).
        queue: size of each link's full queue; by default the bytes that the link sends in 100 ms, a
            round trip of the internet (Villamizar and Song, 1994).
        queues: sizes for single links, which replace ``queue``: name of the link, such as ``server
            up`` or ``device 3 down`` -> size.
        hystart: whether slow start ends when the round trip rises (HyStart).
        pacing: whether senders spread a window over its round trip, at a rate of two windows a round
            trip in slow start and 1.2 windows later (Linux with the queue ``fq``, or where BBR is
            the default control). Until its first acknowledgement, a message has the last rate of
            its connection's previous message.
        holds_back: whether a sender waits while the queue of its own first link is full (Linux's
            TCP small queues), instead of losing packets there.
    """

    kind: Literal["tcp"] = "tcp"
    header: Bytes = 66.0
    slow_start: Annotated[bool, _FLUID] = True
    weight_spread: Annotated[float, _FLUID] = Field(default=1.15, ge=1.0, le=10.0)
    turns: Annotated[bool, _FLUID] = True
    weight_by_round_trip: Annotated[float, _FLUID] = Field(default=0.0, ge=0.0, le=2.0)
    late_weight: Annotated[float, _FLUID] = Field(default=1.0, gt=0.0, le=1.0)
    model: Literal["fluid", "window"] = "fluid"
    control: Annotated[Control, _WINDOW] = "cubic"
    queue: Annotated[QueueLength, _WINDOW] = QueueLength.model_validate({"time": "100 ms"})
    queues: Annotated[dict[str, QueueLength], _WINDOW] = Field(default_factory=dict)
    hystart: Annotated[bool, _WINDOW] = True
    pacing: Annotated[bool, _WINDOW] = False
    holds_back: Annotated[bool, _WINDOW] = True

    @property
    def weighs(self) -> bool:
        return self.model == "fluid" and super().weighs

    def queueing(self) -> QueueingRules | None:
        if self.model == "fluid":
            return None
        lengths = {name: (length.time, length.size) for name, length in self.queues.items()}
        return QueueingRules(
            control=self.control,
            packet=self.segment + self.header,
            initial_window=float(self.initial_window),
            queue_s=self.queue.time,
            queue_bytes=self.queue.size,
            queues=lengths,
            hystart=self.hystart,
            pacing=self.pacing,
            holds_back=self.holds_back,
        )

    def rules(self) -> list[str]:
        if not self.weigh_as_measured:
            return []
        domain = (
            f"{_MEASURED_CLIENTS.start} to {_MEASURED_CLIENTS.stop - 1} clients at a time, by cable"
        )
        error = "rounds are 2 % off on the mean in seven of ten real federations, 7 % at most"
        return [f"shares of TCP's flows (weight_spread) follow a rule for {domain}: {error}"]

    def outside_of_rules(self, at_once: int) -> list[str]:
        if at_once < _MEASURED_CLIENTS.stop or not self.weigh_as_measured:
            return []
        return [
            f"{at_once} devices send at a time, and TCP's weight_spread was fitted and tried "
            "with at most 12"
        ]

    @property
    def weigh_as_measured(self) -> bool:
        """Whether flows have the random weights that were fitted to measurements of TCP.

        False in the window model, or if the scenario changes ``weight_spread``.
        """
        if self.model == "window":
            return False
        return bool(self.weight_spread == type(self).model_fields["weight_spread"].default)


class Bbr(Protocol):
    """TCP with the congestion control BBR (Cardwell et al., 2017), as a protocol without slow start.

    A connection keeps its rate over idle times, so a flow has its full rate from the first byte on.

    Attributes:
        header: header bytes of a packet.
    """

    kind: Literal["bbr"] = "bbr"
    header: Bytes = 66.0


_BASE = "fedsim.world.network.protocol:Protocol"
_KEY = "network.protocol"
PROTOCOLS = Registry.of("protocol", Fluid, Tcp, Bbr, base=_BASE, usual="fluid", key=_KEY)
ProtocolSpec = Annotated[Protocol, KindField(PROTOCOLS)]


@dataclass(frozen=True)
class Transport:
    """Protocol of a run, with the random streams from which flows' weights are drawn.

    Attributes:
        protocol: the protocol, such as ``NetworkModel.protocol``.
        streams: the streams from which weights are drawn.
    """

    protocol: Protocol
    streams: Streams


PLAIN = Transport(Fluid(), Streams(0))
