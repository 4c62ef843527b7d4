"""Messages from device to device, in strategies without a server."""

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from fedsim.clock.simulation import Simulation
from fedsim.federation.contents import Contents, payloads, received
from fedsim.federation.direction_codec import DirectionCodec
from fedsim.federation.events import Handlers, PeerMessage
from fedsim.world.steps import Outcome

if TYPE_CHECKING:
    from fedsim.world.messages import Message, Messages


class PeerChannel:
    """Sends messages from device to device, and notifies the strategy of their ends.

    Args:
        simulation: the clock.
        codec: encodes and decodes the models, by the codec that ``messages.up`` of the scenario
            names.
        messages: the messages outside of tasks.
        strategy: the strategy's code on the server.

    Attributes:
        in_transit: ID of a message that has not ended -> decoded contents of the message.
    """

    def __init__(
        self,
        simulation: Simulation,
        codec: DirectionCodec,
        messages: "Messages",
        strategy: Handlers,
    ) -> None:
        self._simulation = simulation
        self.codec = codec
        self._messages = messages
        self._strategy = strategy
        self.in_transit: dict[int, Contents] = {}  # ID of a message -> its decoded contents

    def send(
        self, sender: int, receivers: Sequence[int], contents: Contents, round_number: int
    ) -> None:
        """Send the same contents from one device to several others, in one message to each.

        Args:
            sender: ID of the sender.
            receivers: IDs of the receivers.
            contents: the contents by name.
            round_number: index of the round of the message, from 0.
        """
        parts = payloads(contents, self.codec)
        # encoded once for all receivers, so without a model or residual that only one of them has
        arriving = self.codec.encode_and_decode(contents, {}, {}).arriving
        for device in receivers:
            message = self._messages.send(sender, device, parts, round_number, self._on_end)
            self.in_transit[message.id] = arriving

    def _on_end(self, message: "Message", outcome: Outcome) -> None:
        contents = self.in_transit.pop(message.id)
        arrived = received(contents) if outcome == "done" else {}
        ended = PeerMessage(message.source, message.destination, outcome, arrived)
        self._simulation.post(partial(self._strategy.on_peer_message, ended))

    def snapshot(self) -> dict[int, Contents]:
        """Return the messages that have not ended, by their IDs, for a checkpoint.

        ``restore`` sets them in a resumed run.
        """
        return self.in_transit

    def restore(self, state: dict[int, Contents]) -> None:
        """Set the messages that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.in_transit = state
        for message_id in state:
            self._messages.under_way[message_id].on_end = self._on_end
