"""Strategies in rounds without a server: train, send to some devices, wait for those that send, and average.

``RoundHalf`` is the loop; D-PSGD sends to the neighbours in a graph, epidemic learning to devices drawn anew.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.federation import Contents, Header, Peer, RunInfo
from fedsim.learning.refs import Ref
from fedsim.toolbox.peers.base import PeerHalf, PeerParams, Peers
from fedsim.toolbox.peers.topology import GraphParams, Graphs, Neighbours, keep, mixing_weight

R = TypeVar("R", bound=PeerParams)


class RoundHalf(PeerHalf[R]):
    """A device's half in rounds of its own: it is at most a round ahead of those that send to it.

    One that has been away, and hears of a later round, goes on with that one. It makes no round beyond ``stop.rounds``.

    State besides ``PeerHalf``'s: ``update``, what the training gave; ``sent``, the model that was sent; ``inbox``, round ->
    sender -> model; ``newest``, the last round of which each sender was heard; ``lost``, who is not waited for in this round;
    ``late``, whether the deadline has passed.
    """

    sends_first: ClassVar[bool] = False
    """Whether a device sends the model that it has and trains meanwhile; else it sends what it has trained."""

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        """To whom a device sends in a round."""
        raise NotImplementedError

    def senders(self, device: Peer, number: int) -> Sequence[int]:
        """The devices that send to a device in a round."""
        raise NotImplementedError

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        """The weight of a sender's model in the average, where so many were received; the rest is that of its own."""
        raise NotImplementedError

    def on_start(self, device: Peer) -> None:
        device.state.update({"inbox": {}, "newest": {}})
        self._begin(device)

    def on_return(self, device: Peer) -> None:
        self._go_to(device, max([device.state["round"], *device.state["inbox"]]))

    def _begin(self, device: Peer) -> None:
        state = device.state
        state |= {"trained": False, "update": None, "lost": [], "late": False, "sent": state["model"]}
        if self.sends_first:
            self._send(device)
        self.train(device, state["model"])

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        state = device.state
        state |= {"trained": True, "update": update}
        if not self.sends_first:
            if update is not None and update is not state["model"]:
                state["sent"] = device.mix([(update, 1.0)], otherwise=state["model"])
            self._send(device)
        if self.params.deadline is not None:
            device.timer(self.params.deadline)
        self._look(device)

    def _send(self, device: Peer) -> None:
        number = device.state["round"]
        device.send(self.receivers(device, number), {"model": device.state["sent"], "round": Header(number)}, number)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        """Keep a model until its round; whoever is in a later round sends none for this one."""
        state, number = device.state, contents["round"]
        state["newest"][sender] = max(number, state["newest"].get(sender, 0))
        if number >= state["round"]:
            state["inbox"].setdefault(number, {})[sender] = contents["model"]
        self._look(device)

    def on_lost(self, device: Peer, other: int) -> None:
        device.state["lost"].append(other)
        self._look(device)

    def on_timer(self, device: Peer) -> None:
        device.state["late"] = True
        self._look(device)

    def _look(self, device: Peer) -> None:
        state = device.state
        number = state["round"]
        there, newest = state["inbox"].get(number, {}), state["newest"]
        if not state["trained"] or not (
            state["late"]
            or all(
                sender in there or sender in state["lost"] or newest.get(sender, 0) > number
                for sender in self.senders(device, number)
            )
        ):
            return
        device.cancel_timer()
        weights = {sender: self.weight(device, number, sender, len(there)) for sender in sorted(there)}
        parts = [(state["sent"], 1.0 - sum(weights.values())), *((there[sender], part) for sender, part in weights.items())]
        model = device.mix(parts, otherwise=state["sent"])
        if self.sends_first and state["update"] is not None and state["update"] is not state["model"]:
            model = device.mix([(model, 1.0), (state["update"], 1.0), (state["model"], -1.0)], otherwise=model)
        state["model"] = model
        self._go_to(device, max([number + 1, *(later - 1 for later in state["inbox"])]))

    def _go_to(self, device: Peer, number: int) -> None:
        state = device.state
        state["round"], state["trained"] = number, False
        state["inbox"] = {later: models for later, models in state["inbox"].items() if later >= number}
        if self.setting.planned_rounds is None or number < self.setting.planned_rounds:
            self._begin(device)


class DPSGDParams(GraphParams):
    """Parameters of D-PSGD."""

    kind: Literal["d-psgd"] = "d-psgd"


class DPSGDHalf(RoundHalf[DPSGDParams]):
    """Sends its model to its neighbours, and trains meanwhile."""

    sends_first = True

    def __init__(self, params: DPSGDParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._graphs = Graphs(params.topology, setting.devices)

    def _neighbours(self, device: Peer, number: int) -> Neighbours:
        return self._graphs.in_round(number, device.rng)

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        return self._neighbours(device, number)[device.number]

    senders = receivers

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        return mixing_weight(self._neighbours(device, number), device.number, sender)


class DPSGD(Peers[DPSGDParams]):
    """Lian et al. 2017 (D-PSGD), Algorithm 1, with local epochs in place of one gradient.

    In round k device i sends its model x_i to its neighbours (d parameters each, ``model``) and trains from it meanwhile. When
    it has theirs, x_i becomes the sum of W_ij x_j, plus what the training changed. W has Metropolis-Hastings weights; what is
    not received stays with its own model.
    """

    Params = DPSGDParams
    Half = DPSGDHalf


class EpidemicParams(PeerParams):
    """Parameters of epidemic learning.

    Attributes:
        sample_size: s, to how many others a device sends in a round.
    """

    kind: Literal["epidemic"] = "epidemic"
    sample_size: int = Field(default=2, ge=1)

    def check(self, devices: int) -> None:
        if self.sample_size >= devices:
            allowed = f"with {devices} devices allowed are 1 to {devices - 1}"
            raise ScenarioError(f"strategy.sample_size is {self.sample_size}; {allowed}")


class EpidemicHalf(RoundHalf[EpidemicParams]):
    """Trains, sends to s others, and takes the mean of what it has and receives."""

    def __init__(self, params: EpidemicParams, setting: RunInfo) -> None:
        super().__init__(params, setting)
        self._drawn: dict[int, tuple[list[list[int]], list[list[int]]]] = {}

    def _draw(self, device: Peer, number: int) -> tuple[list[list[int]], list[list[int]]]:
        if number not in self._drawn:
            rng, devices = device.rng("epidemic", number), self.setting.devices
            draws = [rng.choice(devices - 1, self.params.sample_size, replace=False) for _ in range(devices)]
            receivers = [sorted((draw + (draw >= one)).tolist()) for one, draw in enumerate(draws)]
            senders: list[list[int]] = [[] for _ in range(devices)]
            for one, drawn in enumerate(receivers):
                for other in drawn:
                    senders[other].append(one)
            keep(self._drawn, number, (receivers, senders))
        return self._drawn[number]

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        return self._draw(device, number)[0][device.number]

    def senders(self, device: Peer, number: int) -> Sequence[int]:
        """The devices that have drawn this one, known from the common seed, as in EL-Oracle."""
        return self._draw(device, number)[1][device.number]

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        return 1.0 / (1.0 + received)


class Epidemic(Peers[EpidemicParams]):
    """De Vos et al. 2023 (Epidemic Learning), Algorithm 1, EL-Local's draws.

    In each round a device trains, sends the result to s others that it draws (d parameters each, ``model``), and takes the mean
    of its own and all that it receives. All draw from one seed, so that a device knows for whom to wait.
    """

    Params = EpidemicParams
    Half = EpidemicHalf
