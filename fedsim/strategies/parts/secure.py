"""Cost of secure aggregation by the protocol of Bell et al. for semi-honest parties.

Source: Bell et al., "Secure single-server aggregation with (poly)logarithmic overhead" (CCS 2020).
With all clients as neighbours it is the protocol of Bonawitz et al. (CCS 2017).
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, NamedTuple, Protocol, get_args

from pydantic import Field, field_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.units import Bytes, LinkRate, PositiveSeconds
from fedsim.federation import (
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Opaque,
    Server,
    TaskEnd,
    payloads,
)
from fedsim.strategies.parts import PartClient
from fedsim.strategies.round_timers import RoundTimer
from fedsim.strategies.state import State
from fedsim.strategies.updates import Update
from fedsim.world.steps import TaskStep

# name of a client's job, and of the content that the client sends in it
Phase = Literal["secure-keys", "secure-shares", "secure-unmask"]
PHASES: tuple[Phase, ...] = get_args(Phase)
NeighbourLists = Mapping[int, Sequence[int]]


class SecureAggregation(Spec):
    """``strategy.secure_aggregation``: SecAgg+, which shows the server only sums of updates.

    A client adds masks (random numbers) to its update: a private one, and one for each neighbour,
    which the neighbour subtracts. Two secrets of the client determine its masks. Only the bytes of
    the messages and the time of the server's computations are simulated: the updates themselves
    are not masked, and computations on devices take no time.

    A round has three additional phases, in which the server passes on the messages between clients:

    1. Each client sends two public keys, and receives the keys of its k neighbours.
    2. It sends each neighbour a secret share of each of its two secrets, and receives the
       neighbours' shares with the model. The training follows.
    3. Each client whose update has arrived sends one share per neighbour.

    In a round a client sends and receives 2 k + 2 keys and 5 k shares in all. The server then
    removes from the sum one mask for each update, and one for each pair of a client that
    disconnected and a neighbour whose update has arrived. If fewer than ``threshold`` of a client's
    neighbours send their shares, the sum cannot be read, and no model changes.

    Attributes:
        neighbors: k, even; the clients form a ring in random order, and the neighbours of a client
            are the k nearest. None: all clients of the round.
        threshold: fraction of a client's neighbours whose secret shares suffice to remove its
            masks.
        key: bytes of a public key.
        share: bytes of an encrypted share.
        mask_rate: bytes of masks (float32) that the server computes in a second; None: masks take
            no time.
        patience: time that clients have for each of the three additional phases (s).
    """

    renamed: ClassVar[Mapping[str, str]] = {"neighbours": "neighbors"}

    neighbors: int | None = Field(default=None, ge=2, le=1_000_000)
    threshold: float = Field(default=0.5, gt=0.0, le=1.0)
    key: Bytes = 32.0
    share: Bytes = 32.0
    mask_rate: LinkRate | None = None
    patience: PositiveSeconds = 60.0

    @field_validator("neighbors")
    @classmethod
    def _even(cls, neighbours: int | None) -> int | None:
        if neighbours is not None and neighbours % 2:
            raise ValueError(
                f"'neighbors' is {neighbours}; allowed are even numbers, half of them on each "
                "side of a ring"
            )
        return neighbours

    def check(self, clients: int) -> None:
        if self.neighbors is not None and self.neighbors >= clients:
            raise ScenarioError(
                f"strategy.secure_aggregation.neighbors is {self.neighbors}, and a round has "
                f"{clients} clients; allowed are at most {clients - 1}, or none, for all"
            )

    def graph(self, clients: Sequence[int]) -> dict[int, list[int]]:
        """Arrange clients in a ring, and return the neighbours of each client.

        The neighbours are the k nearest clients, with which a client exchanges keys and secret
        shares; k is the key ``neighbors``.

        Args:
            clients: the clients, in the random order of the ring.

        Returns:
            Client -> its neighbours. All other clients are neighbours if k is None, or if there are
            no more than k other clients.
        """
        count = len(clients)
        if self.neighbors is None or self.neighbors >= count:
            return {client: [peer for peer in clients if peer != client] for client in clients}
        half = self.neighbors // 2
        # offsets from a client to its neighbours in the ring
        offsets = [*range(-half, 0), *range(1, half + 1)]
        graph = {}
        for position, client in enumerate(clients):
            graph[client] = [clients[(position + offset) % count] for offset in offsets]
        return graph

    def can_be_read(
        self, graph: NeighbourLists, masked: Collection[int], answered: Collection[int]
    ) -> bool:
        """Return whether enough clients have answered for the server to read the sum of updates.

        Args:
            graph: client -> its neighbours.
            masked: the clients that have sent shares of their secrets to their neighbours.
            answered: the clients that have sent their neighbours' shares to the server after the
                training.

        Returns:
            Whether enough neighbours of each masked client have answered.
        """
        holders = set(masked)
        answering = set(answered)
        for client in masked:
            neighbours = holders.intersection(graph[client])
            if len(neighbours & answering) < math.ceil(self.threshold * len(neighbours)):
                return False
        return True

    def recovery_s(
        self,
        graph: NeighbourLists,
        masked: Collection[int],
        summed: Collection[int],
        numbers: float,
    ) -> float:
        """Return the time that the server takes to remove the masks from the sum (s).

        A mask as long as an update is removed for each update in the sum, and for each pair of a
        client whose update is missing and a neighbour whose update is in the sum.

        Args:
            graph: client -> its neighbours.
            masked: the clients that have sent shares of their secrets to their neighbours.
            summed: the clients whose updates are in the sum.
            numbers: count of numbers in an update.
        """
        if not self.mask_rate:  # the removal takes no time
            return 0.0
        senders = set(summed)
        masks = len(senders)
        for client in masked:
            if client not in senders:
                masks += sum(neighbour in senders for neighbour in graph[client])
        return masks * 4 * numbers / self.mask_rate  # a number of a mask has 4 bytes

    def sends(self, phase: Phase, neighbours: int) -> Contents:
        """Return the message of a client to the server in a phase: keys or shares, with their size.

        Args:
            phase: ``secure-keys``, ``secure-shares`` or ``secure-unmask``.
            neighbours: count of the client's neighbours.
        """
        shares = neighbours * self.share
        sizes = {"secure-keys": 2 * self.key, "secure-shares": 2 * shares, "secure-unmask": shares}
        return _sized(phase, sizes[phase])

    def receives(self, phase: Phase, neighbours: int) -> Contents:
        """Return the message of the server to a client: its neighbours' keys or shares.

        Args:
            phase: the phase that has collected the keys or shares.
            neighbours: count of the client's neighbours.
        """
        size = self.key if phase == "secure-keys" else self.share
        return _sized(phase, 2 * neighbours * size)


def _sized(phase: Phase, size: float) -> Contents:
    """Return a message of ``size`` bytes, which records of bytes list under the phase's name."""
    return {phase: Opaque(None, size) if size else Header(None)}


class _Float32(NamedTuple):
    """Sizes of masked models in messages (bytes): they are sent as float32, without a codec."""

    model_bytes: float

    def part_bytes(self, count: int) -> float:
        return 4.0 * count


@dataclass
class SecureState(State):
    """State of secure aggregation on the server during a round.

    It has the present phase with its open tasks, each client's neighbours, and the clients that
    have shared their secrets.

    Attributes:
        phase: The present phase, or the last one if no phase is open.
        open: Open tasks of the phase: task -> device.
        answered: Devices that have answered in the phase.
        graph: Client of the round -> its neighbours.
        masked: Devices that have shared their secrets in the round.
        unread: Whether the sum of the round cannot be read.
        take_back: Devices that must still be notified that the server could not read the sum with
            their last update. When notified, a device restores its state before that update.
    """

    phase: Phase = "secure-keys"
    open: dict[int, int] = field(default_factory=dict)
    answered: list[int] = field(default_factory=list)
    graph: dict[int, list[int]] = field(default_factory=dict)
    masked: list[int] = field(default_factory=list)
    unread: bool = False
    take_back: list[int] = field(default_factory=list)


class RoundState(Protocol):
    """Interface of a strategy's state for ``SecurePhases``: the round, its cohort and updates.

    Attributes:
        round: index of the round, from 0.
        cohort: devices of the round.
        received: the updates of the round.
        secure: state of the phases.
    """

    round: int
    cohort: list[int]
    received: list[Update]
    secure: SecureState


class SecurePhases:
    """Server's part of secure aggregation: the message phases before and after a round's training.

    In each phase clients are asked for keys or shares. The phase ends when all clients have
    answered or are late.

    Args:
        costs: the keys of ``strategy.secure_aggregation``.
        server: API of the strategy's server code.
        state: state of the strategy, which is changed.
    """

    def __init__(self, costs: SecureAggregation, server: Server, state: RoundState) -> None:
        self._costs = costs
        self._server = server
        self._round = state
        self._state = state.secure

    def begin(self, phase: Phase, devices: Sequence[int]) -> None:
        """Begin a phase: ask the idle devices among ``devices`` for their keys or shares.

        Args:
            phase: ``secure-keys``, ``secure-shares`` or ``secure-unmask``.
            devices: IDs of the devices.
        """
        state = self._state
        server = self._server
        state.phase = phase
        state.open = {}
        state.answered = []
        for device in filter(server.clients.idle, devices):
            neighbours = self._neighbours(device, phase)  # count of clients
            # a client that has no neighbours has no shares to send
            if not neighbours and phase != "secure-keys":
                state.answered.append(device)
                continue
            contents: dict[str, object] = {}
            if phase == "secure-shares":
                contents |= self._costs.receives("secure-keys", neighbours)
            if device in state.take_back:  # its last update was in a sum that could not be read
                contents["take-back"] = Header(True)
            contents["neighbours"] = Header(neighbours)
            task = server.ask(device, contents, phase)
            state.open[task] = device
        # if no client was asked, the phase ends in this instant
        wait_s = self._costs.patience if state.open else 0.0
        server.timer(RoundTimer.SECURE_PHASE, server.now + wait_s)

    def _neighbours(self, device: int, phase: Phase) -> int:
        """Return with how many clients a client exchanges keys or shares in a phase.

        The count is 0 in ``secure-keys``, before neighbours are chosen. In ``secure-unmask`` only
        neighbours that have shared their secrets count.

        Args:
            device: ID of the client's device.
            phase: the phase of secure aggregation.
        """
        if phase == "secure-keys":
            return 0
        neighbours = self._state.graph[device]
        if phase == "secure-shares":
            return len(neighbours)
        return sum(neighbour in self._state.masked for neighbour in neighbours)

    def shares(self, device: int) -> Contents:
        """Return the neighbours' shares for a client, as contents to be sent with the model."""
        return self._costs.receives("secure-shares", self._neighbours(device, "secure-unmask"))

    def ended(self, message: TaskEnd) -> None:
        """Process the end of a client's task in the present message phase of secure aggregation.

        When all tasks of the phase have ended, the timer ``secure-phase`` is set, which begins the
        next phase.

        Args:
            message: the end of the task, with any outcome.
        """
        state = self._state
        device = state.open.pop(message.task)
        if message.outcome == "done":
            state.answered.append(device)
            if "take-back" in message.asked:  # the device has undone its last, unread update
                state.take_back.remove(device)
        if not state.open:
            self._server.timer(RoundTimer.SECURE_PHASE, self._server.now)

    def on_timer(self) -> bool:
        """Process the timer ``secure-phase``: a phase's tasks have all ended, or its time is over.

        Open tasks are ended with the outcome ``late``, after which the timer rings again. Without
        open tasks the next phase begins, or the training after the phases that precede it. After
        the last phase, which follows the training, the sum is unmasked, and the timer ``unmasked``
        then closes the round.

        Returns:
            Whether the phases before the training are over, so that the cohort can be asked to
            train.
        """
        state = self._state
        server = self._server
        if state.open:  # time is over; the last end of a task sets the timer again
            for task in list(state.open):
                server.end(task, "late")
            return False
        answered = sorted(state.answered)
        match state.phase:
            case "secure-keys":
                # a random order, so that the neighbours of a client are random
                generator = server.rng("secure-graph", self._round.round)
                order = generator.permutation(len(answered)).tolist()
                state.graph = self._costs.graph([answered[index] for index in order])
                self.begin("secure-shares", answered)
            case "secure-shares":
                state.masked = answered
                self._round.cohort = [device for device in answered if server.clients.idle(device)]
                return True
            case _:  # secure-unmask
                self._unmask(answered)
        return False

    def _unmask(self, answered: list[int]) -> None:
        """Determine whether the sum can be read, and set timer ``unmasked`` to the end of unmasking.

        Args:
            answered: devices that have answered in the phase ``secure-unmask``.
        """
        state = self._state
        received = self._round.received
        summed = [update.device for update in received]
        state.unread = not self._costs.can_be_read(state.graph, state.masked, answered)
        if state.unread:  # these devices will be asked to undo their updates
            state.take_back = sorted({*state.take_back, *summed})
        numbers = max(update.contents["masked-numbers"] for update in received)
        wait_s = self._costs.recovery_s(state.graph, state.masked, summed, numbers)
        self._server.timer(RoundTimer.UNMASKED, self._server.now + wait_s)


class SecureClient(PartClient):
    """Client's part of secure aggregation: it answers the server in each phase.

    The entry ``before_sum`` of the device's state is a copy of the state before ``on_sent`` of the
    last update changed it. The copy is restored if the server could not read the sum with that
    update.
    """

    jobs = PHASES
    _part: SecureAggregation

    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        takes_back = instruction.job in PHASES and "take-back" in instruction.contents
        if takes_back and "before_sum" in device.state:
            before = device.state["before_sum"]
            device.state.clear()
            device.state.update(before)
        return super().work(device, instruction)

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        if instruction.job in PHASES:
            return self._part.sends(instruction.job, instruction["neighbours"])
        reply = super().reply(device, instruction, result)
        if reply is None or "update" not in reply:
            return reply
        sizes = _Float32(4.0 * self.setting.parameters)
        size = sum(part.bytes for part in payloads(reply, sizes))
        return {**reply, "masked-numbers": Header(size / 4)}

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if instruction.job in PHASES:
            return
        before = {name: value for name, value in device.state.items() if name != "before_sum"}
        super().on_sent(device, instruction, reply)
        if "update" in reply:
            device.state["before_sum"] = before
