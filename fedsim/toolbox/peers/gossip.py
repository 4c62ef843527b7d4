"""Pairwise gossip (AD-PSGD): nobody waits for all; a device that has trained averages its model with one neighbour's."""

from typing import Literal

from fedsim.federation import Contents, Peer, RunInfo
from fedsim.learning.refs import Ref
from fedsim.toolbox.peers.base import PeerHalf, Peers
from fedsim.toolbox.peers.rounds import GraphParams, Graphs


class GossipParams(GraphParams):
    """Parameters of gossip."""

    kind: Literal["gossip"] = "gossip"


class GossipHalf(PeerHalf[GossipParams]):
    """Trains, averages with one neighbour, and again.

    While it waits for an answer its model stays as it is: devices of higher numbers that ask it wait until it has the answer,
    those of lower numbers are declined. So no cycle of devices waits for one another.

    State: ``from``, the model from which it trains; ``partner``, whom it has asked, or None; ``asking``, who waits, and their
    models.
    """

    def __init__(self, params: GossipParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._graphs = Graphs(params.topology, setting.devices)

    def on_start(self, device: Peer) -> None:
        device.state.update({"partner": None, "asking": [], "from": device.state["model"]})
        self.train(device, device.state["model"])

    on_return = on_start

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        """Add what the training changed to the model, which others may have changed meanwhile, and ask a neighbour."""
        state, number = device.state, device.state["round"]
        if update is not None and update is not state["from"]:
            parts = [(state["model"], 1.0), (update, 1.0), (state["from"], -1.0)]
            state["model"] = device.mix(parts, otherwise=state["model"])
        neighbours = self._graphs.in_round(number, device.rng)[device.number]
        if not neighbours:
            self._next(device)
            return
        state["partner"] = int(device.rng("partner", number, device.number).choice(neighbours))
        device.send([state["partner"]], {"ask": state["model"]}, number)
        if self.params.deadline is not None:
            device.timer(self.params.deadline)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        state, number = device.state, device.state["round"]
        if "ask" in contents and state["partner"] is None:
            self._answer(device, sender, contents["ask"])
        elif "ask" in contents and sender > device.number:
            state["asking"].append((sender, contents["ask"]))
        elif "ask" in contents:
            device.send([sender], {"declined": 1.0}, number)
        elif sender == state["partner"]:
            if "answer" in contents:
                self._average(device, contents["answer"])
            self._next(device)

    def on_lost(self, device: Peer, other: int) -> None:
        if other == device.state["partner"]:
            self._next(device)

    def on_timer(self, device: Peer) -> None:
        if device.state["partner"] is not None:
            self._next(device)

    def _answer(self, device: Peer, sender: int, model: Ref) -> None:
        device.send([sender], {"answer": device.state["model"]}, device.state["round"])
        self._average(device, model)

    @staticmethod
    def _average(device: Peer, other: Ref) -> None:
        own = device.state["model"]
        device.state["model"] = device.mix([(own, 0.5), (other, 0.5)], otherwise=own)

    def _next(self, device: Peer) -> None:
        device.cancel_timer()
        for sender, model in device.state["asking"]:
            self._answer(device, sender, model)
        device.state["round"] += 1
        self.on_start(device)


class Gossip(Peers[GossipParams]):
    """Lian et al. 2018 (AD-PSGD), Algorithm 1, with local epochs in place of one gradient.

    A device that has trained sends its model to one neighbour, drawn at random (d parameters, ``ask``), which sends its own
    back (``answer``, d parameters); both then have the mean, so that the sum of all models stays as it is. One that waits for
    an answer itself answers later, or sends ``declined`` (4 bytes). What a training changed is added to a model that others
    may have averaged meanwhile. A round of the run is over when as many steps were made as there are devices.
    """

    Params = GossipParams
    Half = GossipHalf

    def is_over(self) -> bool:
        return bool(self.state["steps"] >= (self.state["round"] + 1) * self.server.devices)
