"""Messages between the server and edge servers."""

from functools import partial
from typing import TYPE_CHECKING, NamedTuple, TypedDict

from fedsim.clock.simulation import Simulation
from fedsim.common.saved import saved
from fedsim.federation.contents import Contents, has_model, received
from fedsim.federation.direction_codec import CodedContents
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.events import Carried, Handlers
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Outcome

if TYPE_CHECKING:
    from fedsim.world.messages import Message, Messages


@saved()
class EdgeMessage(NamedTuple):
    """Message in transit between the server and an edge server.

    Attributes:
        edge: ID of the edge server.
        direction: ``down`` to the edge server, ``up`` from it.
        coded: the contents as the receiver will decode them, and the residuals: the compression
            errors. If the message of an edge server arrives, the edge server stores the residuals
            and adds them to its next message.
    """

    edge: int
    direction: Direction
    coded: CodedContents


class EdgeChannelState(TypedDict):
    """State of ``EdgeChannel`` in a checkpoint, from which a resumed run restores it.

    It has the residuals (compression errors) of codecs, the edge servers that have the model's
    frozen tensors, and the messages that have not ended; see the attributes of ``EdgeChannel``.
    """

    residuals: dict[int, dict[str, Ref]]
    with_base: list[int]
    in_transit: dict[int, EdgeMessage]


class EdgeChannel:
    """Sends messages to and from edge servers, and notifies the strategy of their ends.

    Args:
        simulation: the clock.
        envelopes: determines the payloads and encodes the models.
        messages: the messages outside of tasks.
        strategy: the strategy's code on the server.

    Attributes:
        residuals: edge server -> name of a content -> residual, the compression error of the last
            message that arrived from the edge server.
        with_base: edge servers that have received the model's frozen tensors, which no training
            changes.
        in_transit: ID of a message that has not ended yet -> the message.
    """

    def __init__(
        self,
        simulation: Simulation,
        envelopes: Envelopes,
        messages: "Messages",
        strategy: Handlers,
    ) -> None:
        self._simulation = simulation
        self._envelopes = envelopes
        self._messages = messages
        self._strategy = strategy
        # edge server -> name of a content -> what encoding has left out of its last message
        self.residuals: dict[int, dict[str, Ref]] = {}
        self.with_base: set[int] = set()  # edge servers that have received the frozen tensors
        self.in_transit: dict[int, EdgeMessage] = {}  # ID of a message -> the message

    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        round_number: int | None,
        start: Ref | None,
    ) -> None:
        """Send a message between the server and an edge server.

        ``Strategy.on_carried`` is called when the message has ended.

        Args:
            edge: ID of the edge server.
            contents: the contents by name.
            direction: ``down`` to the edge server, ``up`` from the edge server.
            round_number: the round for which the message is sent; None for no round.
            start: the model, known to both sides, from which the models in ``contents`` were
                trained; None if there is no such model.
        """
        # whether the receiver has the model's frozen tensors; the server always has them
        has_base = direction == "up" or edge in self.with_base
        parts = self._envelopes.parts(contents, direction, has_base=has_base)
        message = self._messages.carry(edge, direction, parts, round_number, self._on_end)
        bases: dict[Ref, Ref] = {}  # sent model -> the model from which it was trained
        if start is not None:
            models = [value for value in contents.values() if isinstance(value, Ref)]
            bases = dict.fromkeys(models, start)
        # Only messages up have residuals: what encoding left out of a message is added to the next
        # one.
        residuals = self.residuals.get(edge, {}) if direction == "up" else {}
        coded = self._envelopes.codec_of(direction).encode_and_decode(contents, bases, residuals)
        self.in_transit[message.id] = EdgeMessage(edge, direction, coded)

    def _on_end(self, message: "Message", outcome: Outcome) -> None:
        """Process the end of a message, and notify the strategy.

        If a message from the edge server has arrived, its new residuals are stored. If a model has
        arrived at the edge server, the edge server has the model's frozen tensors from then on.
        """
        edge, direction, coded = self.in_transit.pop(message.id)
        arrived: Contents = {}
        if outcome == "done":
            arrived = received(coded.arriving)
            if direction == "up" and coded.residuals:
                self.residuals[edge] = dict(coded.residuals)
            if direction == "down" and has_model(coded.arriving):
                self.with_base.add(edge)
        carried = Carried(edge, direction, message.round, outcome, arrived)
        self._simulation.post(partial(self._strategy.on_carried, carried))

    def on_lost(self, edge: int) -> None:
        """Discard the state of a lost edge server, such as residuals; notify the strategy."""
        self.residuals.pop(edge, None)
        self.with_base.discard(edge)
        self._simulation.post(partial(self._strategy.on_edge_lost, edge))

    def snapshot(self) -> EdgeChannelState:
        """Return the state that a checkpoint saves; ``restore`` sets it in a resumed run."""
        return {
            "residuals": self.residuals,
            "with_base": sorted(self.with_base),
            "in_transit": self.in_transit,
        }

    def restore(self, state: EdgeChannelState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.residuals = state["residuals"]
        self.with_base = set(state["with_base"])
        self.in_transit = state["in_transit"]
        for message_id in self.in_transit:
            self._messages.under_way[message_id].on_end = self._on_end
