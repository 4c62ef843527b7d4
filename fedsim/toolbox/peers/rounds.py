"""D-PSGD, epidemic learning and gossip: devices train, and average their models with peers'."""

from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, TypeVar

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.federation import Contents, Header, Peer
from fedsim.learning.refs import Ref
from fedsim.toolbox.peers.base import PeerHalf, PeerParams, Peers
from fedsim.toolbox.peers.topology import Topology

Neighbours = tuple[tuple[int, ...], ...]
R = TypeVar("R", bound=PeerParams)
G = TypeVar("G", bound="GraphParams")


class GraphParams(PeerParams):
    """Keys of ``[strategy]`` for strategies in which devices send only to neighbours in a graph.

    The keys of all strategies without a server are allowed too.

    Attributes:
        topology: the graph of neighbours; a ring by default.
    """

    topology: Topology = Topology()

    def check(self, devices: int) -> None:
        self.topology.graph(devices, seed=0)


class GraphHalf(PeerHalf[G]):
    """Base of a strategy's code on devices that send only to their neighbours in a graph.

    Every device draws the same graph, from a common seed.
    """

    def neighbours(self, device: Peer, number: int) -> Neighbours:
        """Return the neighbours of all devices in a round.

        Args:
            device: any device, from whose random stream the graph is drawn; the result is the same
                for all devices.
            number: index of the round.

        Returns:
            For each device the IDs of its neighbours, ascending.
        """
        topology = self.params.topology
        devices = self.setting.devices
        # index of the round's graph, which stays for ``every`` rounds
        graph_number = 0 if topology.every is None else number // topology.every

        def draw() -> Neighbours:
            seed = int(device.rng("topology", graph_number).integers(1 << 31))
            graph = topology.graph(devices, seed)
            return tuple(tuple(sorted(graph.neighbors(node))) for node in range(devices))

        return self._cached(graph_number, draw)


class RoundHalf(PeerHalf[R]):
    """Base of a strategy's code on devices, for strategies without a server that have rounds.

    In a round a device trains, sends its model to some devices (its receivers), receives the models
    of some devices (its senders), and averages them with its model. If no message is lost or late,
    a device is at most one round ahead of its senders. After an absence it joins the latest round.
    Subclasses implement ``receivers``, ``senders`` and ``weight``.

    Entries of a device's state: ``trained``, whether the device has trained in the round;
    ``update``, the trained model; ``sent``, the model that the device sends in the round;
    ``inbox``, round -> sender ID -> received model; ``newest``, sender ID -> the latest round of
    which a model was received; ``lost``, IDs of the devices from or to which a message was lost in
    the round, and for whose models the device does not wait; ``late``, whether the time
    ``deadline`` since the training has passed.
    """

    sends_first: ClassVar[bool] = False
    """Whether a device sends its model before training; otherwise it sends the trained model."""

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        """Return the IDs of the devices to which a device sends its model in a round.

        Args:
            device: the sender.
            number: index of the round.
        """
        raise NotImplementedError

    def senders(self, device: Peer, number: int) -> Sequence[int]:
        """Return the IDs of the devices that send their model to a device in a round.

        Args:
            device: the receiver.
            number: index of the round.
        """
        raise NotImplementedError

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        """Return the weight of a sender's model in the average that a device computes.

        The weight of the device's own model is 1 minus the weights of all received models.

        Args:
            device: the device that averages.
            number: index of the round.
            sender: ID of the sender.
            received: count of models that the device has received in the round.
        """
        raise NotImplementedError

    def why_not_more(self, planned: int, finished: int) -> str | None:
        if finished < planned:
            return None
        return "a device that was ahead of the others had done its last planned round"

    def on_start(self, device: Peer) -> None:
        device.state.update({"inbox": {}, "newest": {}})
        self._begin(device)

    def on_return(self, device: Peer) -> None:
        self._enter_round(device, max([device.state["round"], *device.state["inbox"]]))

    def _begin(self, device: Peer) -> None:
        """Start the training of a round; before it send the model if ``sends_first`` is true."""
        state = device.state
        state |= {
            "trained": False,
            "update": None,
            "lost": [],
            "late": False,
            "sent": state["model"],
        }
        if self.sends_first:
            self._send(device)
        self.train(device, state["model"])

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        """Send the trained model, unless the device has sent its model before the training.

        The device then averages, at the latest after the time ``deadline``.

        Args:
            device: the device that has trained.
            update: the trained model; None if the training has no result.
        """
        state = device.state
        state |= {"trained": True, "update": update}
        if not self.sends_first:
            is_trained = update is not state["model"]  # one object if ``local_epochs`` is 0
            if update is not None and is_trained:
                # the update itself, or the untrained model if the update is not finite
                state["sent"] = device.mix([(update, 1.0)], otherwise=state["model"])
            self._send(device)
        if self.params.deadline is not None:
            device.timer(self.params.deadline)
        self._average_if_complete(device)

    def _send(self, device: Peer) -> None:
        number = device.state["round"]
        contents = {"model": device.state["sent"], "round": Header(number)}
        device.send(self.receivers(device, number), contents, number)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        """Store a received model for its round, which may be later than the device's round.

        Args:
            device: the receiver.
            sender: ID of the sender.
            contents: the sender's ``model``, and the index of its ``round``.
        """
        state = device.state
        number = contents["round"]
        state["newest"][sender] = max(number, state["newest"].get(sender, 0))
        if number >= state["round"]:
            state["inbox"].setdefault(number, {})[sender] = contents["model"]
        self._average_if_complete(device)

    def on_lost(self, device: Peer, other: int) -> None:
        device.state["lost"].append(other)
        self._average_if_complete(device)

    def on_timer(self, device: Peer) -> None:
        device.state["late"] = True
        self._average_if_complete(device)

    def _waits(self, device: Peer, received: Mapping[int, Ref]) -> bool:
        """Return whether a device cannot average yet: it trains, or models of the round are missing.

        It does not wait for a sender whose message was lost, or that has reached a later round.
        After the deadline it waits for no sender.

        Args:
            device: the device.
            received: sender ID -> model received in the round.
        """
        state = device.state
        number = state["round"]
        if not state["trained"]:
            return True
        if state["late"]:
            return False
        settled = {*received, *state["lost"]}  # senders for whose model it does not wait any more
        for sender in self.senders(device, number):
            # the last round of which a message of the sender has arrived
            newest_round = state["newest"].get(sender, 0)
            if sender not in settled and newest_round <= number:
                return True
        return False

    def _average_if_complete(self, device: Peer) -> None:
        """If a device waits for nothing more, average its model with the received models.

        The device then begins its next round.
        """
        state = device.state
        number = state["round"]
        received = state["inbox"].get(number, {})
        if self._waits(device, received):
            return
        device.cancel_timer()
        state["model"] = self._average(device, number, received)
        # to catch up with its senders, the device skips rounds up to one before their latest
        next_round = number + 1
        for round_of_models in state["inbox"]:
            next_round = max(next_round, round_of_models - 1)
        self._enter_round(device, next_round)

    def _average(self, device: Peer, number: int, received: Mapping[int, Ref]) -> Ref:
        """Return the weighted average of the device's model and the received models.

        If the device sent its model before training, the change by training is added to the
        average.

        Args:
            device: the device.
            number: index of the round.
            received: sender ID -> model received in the round.
        """
        state = device.state
        update = state["update"]
        weights = {}
        for sender in sorted(received):
            weights[sender] = self.weight(device, number, sender, len(received))
        parts = [(state["sent"], 1.0 - sum(weights.values()))]
        parts += [(received[sender], weight) for sender, weight in weights.items()]
        model = device.mix(parts, otherwise=state["sent"])
        is_trained = update is not None and update is not state["model"]
        # if the trained model was sent, the change by training is in the average already
        adds_change = self.sends_first and is_trained
        if not adds_change:
            return model
        parts = [(model, 1.0), (update, 1.0), (state["model"], -1.0)]
        return device.mix(parts, otherwise=model)

    def _enter_round(self, device: Peer, number: int) -> None:
        """Begin a round of a device, unless the run has fewer rounds; drop models of older rounds.

        Args:
            device: the device.
            number: index of the round.
        """
        state = device.state
        state["round"] = number
        state["trained"] = False
        inbox = state["inbox"]
        state["inbox"] = {later: models for later, models in inbox.items() if later >= number}
        planned = self.setting.planned_rounds
        if planned is None or number < planned:
            self._begin(device)


class DPSGDParams(GraphParams):
    """Keys of ``[strategy]`` for D-PSGD: the graph, and the keys of strategies without a server.

    ``GraphParams`` and ``PeerParams`` describe these keys.
    """

    kind: Literal["d-psgd"] = "d-psgd"


class DPSGDHalf(GraphHalf[DPSGDParams], RoundHalf[DPSGDParams]):
    """D-PSGD's code on devices: send the model, train meanwhile, average with the neighbours.

    At the end of a round the change by the device's training is added to the average.
    """

    sends_first = True

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        return self.neighbours(device, number)[device.number]

    senders = receivers

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        """Return the Metropolis-Hastings weight of a neighbour's model in the device's average.

        It is 1 / (1 + the larger of the two devices' counts of neighbours). The matrix of all
        weights is doubly stochastic.

        Args:
            device: the device that averages.
            number: index of the round.
            sender: ID of the neighbour.
            received: not used.
        """
        neighbours = self.neighbours(device, number)
        return 1.0 / (1.0 + max(len(neighbours[device.number]), len(neighbours[sender])))


class DPSGD(Peers[DPSGDParams]):
    """D-PSGD: each device averages its model with its neighbours' models in a graph.

    Source: Lian et al. 2017 (D-PSGD), Algorithm 1, with local epochs in place of one gradient.

    There is no server. In round k device i sends its model x_i to its neighbours (d parameters
    each; content ``model``), and trains from x_i meanwhile. When it has received the neighbours'
    models x_j, it sets x_i to the sum of W_ij x_j over the neighbours and itself, plus the change
    by training. W_ij are Metropolis-Hastings weights. The weight of a model that is not received is
    added to the weight of the device's own model.
    """

    Params = DPSGDParams
    Half = DPSGDHalf


class EpidemicParams(PeerParams):
    """Keys of ``[strategy]`` for epidemic learning.

    The keys of all strategies without a server are allowed too.

    Attributes:
        sample_size: s, the number of devices to which a device sends its model in a round.
    """

    kind: Literal["epidemic"] = "epidemic"
    sample_size: int = Field(default=2, ge=1)

    def check(self, devices: int) -> None:
        if self.sample_size >= devices:
            allowed = f"with {devices} devices allowed are 1 to {devices - 1}"
            raise ScenarioError(f"strategy.sample_size is {self.sample_size}; {allowed}")


class EpidemicHalf(RoundHalf[EpidemicParams]):
    """Epidemic learning's code on devices: train, send to random devices, average.

    In a round a device trains, sends the trained model to s random devices, and takes the mean of
    its own model and the received models.
    """

    def _draw_partners(self, device: Peer, number: int) -> tuple[list[list[int]], list[list[int]]]:
        """Draw, for every device, the devices to which it sends its model in a round.

        Args:
            device: any device, from whose random stream the draw is made; the result is the same
                for all devices.
            number: index of the round.

        Returns:
            For each device the IDs of its receivers, and for each device the IDs of the devices
            that send to it, ascending.
        """

        def draw_all() -> tuple[list[list[int]], list[list[int]]]:
            rng = device.rng("epidemic", number)
            devices = self.setting.devices
            size = self.params.sample_size
            receivers: list[list[int]] = []
            senders: list[list[int]] = [[] for _ in range(devices)]
            for sender in range(devices):
                # positions in a list of all devices except the sender, in which later IDs are 1
                # less
                drawn = rng.choice(devices - 1, size, replace=False)
                drawn += drawn >= sender
                receivers.append(sorted(drawn.tolist()))
            for sender, receivers_of_sender in enumerate(receivers):
                for receiver in receivers_of_sender:
                    senders[receiver].append(sender)
            return receivers, senders

        return self._cached(number, draw_all)

    def receivers(self, device: Peer, number: int) -> Sequence[int]:
        receivers, _ = self._draw_partners(device, number)
        return receivers[device.number]

    def senders(self, device: Peer, number: int) -> Sequence[int]:
        """Return the IDs of the devices that have drawn this device as a receiver in a round.

        A device knows its senders because all devices make the draws from a common seed.

        Args:
            device: the receiver.
            number: index of the round.
        """
        _, senders = self._draw_partners(device, number)
        return senders[device.number]

    def weight(self, device: Peer, number: int, sender: int, received: int) -> float:
        return 1.0 / (1.0 + received)


class Epidemic(Peers[EpidemicParams]):
    """Epidemic Learning: each device sends its model to s random devices in each round.

    Source: De Vos et al. 2023, Algorithm 1. As in its variant EL-Local, each device's s receivers
    are drawn independently of other devices' receivers. Unlike there, all devices make these draws
    from a common seed, so that each device knows from which devices it receives.

    There is no server. In each round a device trains, sends its trained model to s random devices
    (d parameters each; content ``model``), and takes the mean of its own model and the received
    models.
    """

    Params = EpidemicParams
    Half = EpidemicHalf


class GossipParams(GraphParams):
    """Keys of ``[strategy]`` for gossip: the graph, and the keys of strategies without a server.

    ``GraphParams`` and ``PeerParams`` describe these keys.
    """

    kind: Literal["gossip"] = "gossip"


class GossipHalf(GraphHalf[GossipParams]):
    """Gossip's code on devices: train, then average models with a random neighbour.

    The trained device asks a neighbour for its model and waits for the answer. A device that itself
    waits for an answer declines requests of devices with lower IDs, and lets devices with higher
    IDs wait for its answer. Devices can therefore not wait for one another in a cycle.

    Entries of a device's state: ``from``, the model from which the device trains; ``partner``, the
    ID of the device that it has asked, or None; ``asking``, (ID, model) of each device that waits
    for its answer.
    """

    def on_start(self, device: Peer) -> None:
        device.state.update({"partner": None, "asking": [], "from": device.state["model"]})
        self.train(device, device.state["model"])

    on_return = on_start

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        """Add the change by a training to the device's model, and send it to a random neighbour.

        The neighbour receives the changed model. The device then waits for the neighbour's model,
        at most for the time ``deadline``. If the device has no neighbours, its next training starts
        at once.

        Args:
            device: the device that has trained.
            update: the trained model; None if the training has no result.
        """
        state = device.state
        model = state["model"]  # averages with neighbours may have changed it during the training
        number = state["round"]
        start = state["from"]
        is_trained = update is not start  # with ``local_epochs = 0``, the update is the start
        if update is not None and is_trained:
            parts = [(model, 1.0), (update, 1.0), (start, -1.0)]
            # a change that is not finite is not added
            state["model"] = device.mix(parts, otherwise=model)
        neighbours = self.neighbours(device, number)[device.number]
        if not neighbours:
            self._begin_next_round(device)
            return
        state["partner"] = int(device.rng("partner", number, device.number).choice(neighbours))
        device.send([state["partner"]], {"ask": state["model"]}, number)
        if self.params.deadline is not None:
            device.timer(self.params.deadline)

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        """Handle a request for the device's model, or the answer to the device's own request.

        A device that itself waits for an answer lets senders with higher IDs wait, and declines
        requests of all others, so that devices cannot wait for one another in a cycle.

        Args:
            device: the receiver.
            sender: ID of the sender.
            contents: the sender's model as ``ask`` (a request) or ``answer``; or ``declined``.
        """
        state = device.state
        number = device.state["round"]
        waits_for_answer = state["partner"] is not None
        if "ask" in contents and not waits_for_answer:
            self._answer(device, sender, contents["ask"])
        elif "ask" in contents and sender > device.number:
            state["asking"].append((sender, contents["ask"]))
        elif "ask" in contents:
            device.send([sender], {"declined": 1.0}, number)
        elif sender == state["partner"]:
            if "answer" in contents:
                self._average(device, contents["answer"])
            self._begin_next_round(device)

    def on_lost(self, device: Peer, other: int) -> None:
        if other == device.state["partner"]:
            self._begin_next_round(device)

    def on_timer(self, device: Peer) -> None:
        if device.state["partner"] is not None:
            self._begin_next_round(device)

    def _answer(self, device: Peer, sender: int, model: Ref) -> None:
        """Send the device's model to a neighbour that asks for it, and average the two models."""
        device.send([sender], {"answer": device.state["model"]}, device.state["round"])
        self._average(device, model)

    @staticmethod
    def _average(device: Peer, received: Ref) -> None:
        model = device.state["model"]
        device.state["model"] = device.mix([(model, 0.5), (received, 0.5)], otherwise=model)

    def _begin_next_round(self, device: Peer) -> None:
        """Answer the neighbours that wait for this device, and begin its next training."""
        device.cancel_timer()
        for sender, model in device.state["asking"]:
            self._answer(device, sender, model)
        device.state["round"] += 1
        self.on_start(device)


class Gossip(Peers[GossipParams]):
    """Gossip: a trained device averages its model with one random neighbour.

    Source: Lian et al. 2018 (AD-PSGD), Algorithm 1, with local epochs in place of one gradient.

    There is no server. A trained device sends its model to one neighbour, drawn at random (d
    parameters; content ``ask``). The neighbour sends its own model back (d parameters; content
    ``answer``), and both replace their models by the mean of the two, so that the sum of all models
    does not change. A neighbour that itself waits for an answer replies later, or sends the content
    ``declined`` (4 bytes). A device may answer while it trains; the change by training is added to
    the averaged model. A round of the run has as many trainings as there are devices.
    """

    Params = GossipParams
    Half = GossipHalf

    def is_over(self) -> bool:
        return self.state.steps >= (self.state.round + 1) * self.server.devices
