"""HierFAVG: edge servers average their clients' models, the server theirs (Liu et al., 2020)."""

from dataclasses import dataclass, field
from typing import ClassVar, Literal, Self

from pydantic import Field, model_validator

from fedsim.common.training import LocalSteps, Training
from fedsim.federation import Carried, Device, Instruction, TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.fedavg import FedAvg, FedAvgState
from fedsim.strategies.parts.aggregation import Entry, Weighted
from fedsim.strategies.parts.selection import QUESTION
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.round_params import CombiningParams, SelectingParams
from fedsim.strategies.state import State, state_of_slot
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.strategies.traits import Traits
from fedsim.strategies.updates import Update


class HierFAVGParams(SelectingParams, CombiningParams):
    """Keys of ``[strategy]`` for HierFAVG, in addition to the keys of rounds.

    An edge server aggregates the updates of some clients; in a round it does so in several edge
    rounds.

    Attributes:
        kappa1: SGD steps of a client in an edge round; None: ``local_epochs`` passes over its data.
        kappa2: edge rounds in a round.
        aggregation: the rule by which the updates of an edge server's clients become its model.
        deadline: time limit of a whole round, at which edge servers send their models as they are.
        selection: the selection of a round's clients (docs page ``parts/selection``). Kinds that
            use what clients send with their updates are refused, as only edge servers receive it.
    """

    traits: ClassVar[Traits] = Traits(at_edges=True)
    kind: Literal["hierfavg"] = "hierfavg"
    kappa1: int | None = Field(default=None, ge=1, le=1_000_000)
    kappa2: int = Field(default=4, ge=1, le=10_000)

    @property
    def why_not(self) -> Reasons:
        by_device = {}
        if self.kappa1 is not None:
            by_device = dict.fromkeys(("epochs", "steps"), "'kappa1' says how long clients train")
        return Reasons(
            privacy_account=(
                "edge servers have rounds of their own, and draws are counted from all devices"
            ),
            by_device=by_device,
        )

    @model_validator(mode="after")
    def _check_hierarchy(self) -> Self:
        """Check that one key sets the length of a training, and that ``selection`` needs no updates.

        Raises:
            ValueError: both ``kappa1`` and ``local_epochs`` are given, or ``selection`` uses what
                clients send with their updates.
        """
        if self.kappa1 is not None and self.local_epochs != 1:
            raise ValueError(
                "'kappa1' and 'local_epochs' both say how long clients train; give one of them"
            )
        # Clients' answers go to edge servers. Only a separate question goes to the server itself.
        reads_updates = bool(self.selection.why_single_updates)
        reads_reports = self.selection.talks and not self.selection.asks
        if reads_updates or reads_reports:
            raise ValueError(
                f"'selection' is {self.selection.kind!r}, which goes by what clients send with "
                "their updates, and these end at edge servers; allowed are random, least-asked, "
                "least-available, fedcs, and power-of-choice that asks"
            )
        return self

    def check_edges(self, edges: int) -> None:
        self.aggregation.check(self.clients_per_round // edges)

    @property
    def turns(self) -> int:
        return self.kappa2


class HierFAVGClient(SynchronousClient[HierFAVGParams]):
    """Client that trains its edge server's model for ``kappa1`` SGD steps, and sends its update.

    If ``kappa1`` is None, it trains for ``local_epochs`` passes over its data.
    """

    def training(self, device: Device, instruction: Instruction) -> Training:
        kappa1 = self.params.kappa1
        amount = self.params.local_epochs if kappa1 is None else LocalSteps(kappa1)
        return Training(instruction["model"], amount)


@dataclass
class EdgeRound(State):
    """State of an edge server within a round of HierFAVG, in which it has several edge rounds.

    In an edge round the edge server's clients train its model, which becomes the mean of their
    updates.

    Attributes:
        remaining: count of edge rounds that remain, including the open one.
        clients: IDs of the edge server's clients that take part in the round, without clients that
            were late, lost or unavailable in it.
        model: the edge server's model.
        start: the global model that the edge server received for the round.
        open: IDs of the open tasks of the edge server's clients.
        updates: updates of the open edge round.
        last: updates of the edge round that was averaged last.
        tasks: IDs of the tasks of all updates that the edge server has received in the round.
        is_lost: whether the edge server was lost in the round.
    """

    remaining: int
    clients: list[int] = field(default_factory=list)
    model: Ref = field(init=False)
    start: Ref = field(init=False)
    open: list[int] = field(default_factory=list)
    updates: list[Entry] = field(default_factory=list)
    last: list[Entry] = field(default_factory=list)
    tasks: list[int] = field(default_factory=list)
    is_lost: bool = False


@dataclass
class HierFAVGState(FedAvgState):
    """State of HierFAVG on the server: the global model, and the state of each edge server.

    ``EdgeRound`` is the state of an edge server.

    Attributes:
        edges: Edge server ID -> state of each edge server that has not finished the open round.
        arrived: Models of edge servers that the server has received in the round.
        valid: Count of clients whose last task of the round brought an update.
        over: Whether the deadline of the round has passed.
        cloud: State of the aggregation by which the server averages the edge servers' models.
    """

    edges: dict[int, EdgeRound] = field(default_factory=dict)
    arrived: list[Entry] = field(default_factory=list)
    valid: int = 0
    over: bool = False
    cloud: dict[str, object] = field(default_factory=dict)


class HierFAVG(FedAvg[HierFAVGParams]):
    """Hierarchical federated averaging.

    Edge servers average their clients' models several times in a round. Then the server averages
    the edge servers' models.

    Source: Liu, Zhang, Song and Letaief, "Client-edge-cloud hierarchical federated learning" (ICC
    2020), Algorithm 1. There all clients take part, as with ``clients_per_round`` = devices.

    An edge server is between some clients and the server. With the keys kappa1 and kappa2, a round
    has these steps:

    - The server selects clients, and sends the global model to their edge servers (``edge-model``,
      d parameters).
    - Each edge server has kappa2 edge rounds by itself. In an edge round it sends its model to its
      selected clients (``model``, d). Each client makes kappa1 SGD steps, and sends its model back
      (``update``, d). The edge server's model becomes the mean of its clients' models, by default
      weighted by samples.
    - After its last edge round an edge server sends its model to the server (``edge-update``, d).
    - The global model becomes the mean of the edge servers' models, weighted by the samples of
      their last edge rounds.

    With kappa2 = 1 the result is FedAvg's.

    A client that is late or lost, or away when an edge round begins, takes no further part in the
    round. A lost edge server loses its clients' updates of the round (record ``updates-lost``), and
    its clients are not asked until it is back. The record ``round`` counts each client by its last
    task of the round; a client that went away after an update thus counts as valid. A device's
    group is its edge server.
    """

    Params = HierFAVGParams
    Client = HierFAVGClient
    State = HierFAVGState
    state: HierFAVGState

    def group_of(self, device: int) -> int | None:
        return self.server.edges.of(device)

    def select(self) -> list[int]:
        edges = self.server.edges
        if all(edges.has(edge) for edge in range(edges.count)):
            return super().select()
        devices = range(self.server.devices)
        reachable = [device for device in devices if edges.has(edges.of(device))]
        return self.pick(self.params.asked_per_round, among=reachable)

    async def before_asking(self) -> None:
        state = self.state
        state.edges = {}
        state.arrived = []
        state.valid = 0
        state.over = False
        for device in state.cohort:
            edge = self.server.edges.of(device)
            if edge not in state.edges:
                state.edges[edge] = EdgeRound(remaining=self.params.kappa2)
            state.edges[edge].clients.append(device)

    def _ask(self, device: int) -> None:
        """Send the global model to the edge server of a device.

        The model is sent once for each edge server, on the call for its first selected device.

        Args:
            device: ID of the device.
        """
        state = self.state
        edge = self.server.edges.of(device)
        if device == state.edges[edge].clients[0]:
            contents = {"edge-model": state.model}
            self.server.edges.carry(edge, contents, "down", round=state.round)

    async def on_carried(self, message: Carried) -> None:
        """Handle the end of a message between the server and an edge server.

        An edge server that has received the global model begins its edge rounds. An edge server's
        model that has arrived at the server is stored for the round's mean, and the edge server has
        finished the round. An edge server whose message was lost leaves the round.

        Args:
            message: the ended message, with the edge server's ID, the direction and the outcome.
        """
        edge = message.edge
        edge_round = self.state.edges[edge]
        has_arrived = message.outcome == "done"
        if message.direction == "down" and has_arrived and not edge_round.is_lost:
            edge_round.start = message["edge-model"]
            edge_round.model = edge_round.start
            await self._begin_edge_round(edge)
            return
        if message.direction == "up" and has_arrived:
            self._receive_edge_model(message, edge_round)
        await self._remove_edge(edge)

    def _receive_edge_model(self, message: Carried, edge_round: EdgeRound) -> None:
        """Store an edge server's model, with the samples of its last edge round as its weight."""
        entry = {
            "task": edge_round.tasks[0],  # an ID, which no other edge server's model has
            "device": None,
            "group": message.edge,
            "contents": message.contents,
            "update": message["edge-update"],
            "samples": sum(update["samples"] for update in edge_round.last),
            "start": edge_round.start,
        }
        self.state.arrived.append(Update.of(entry))
        self.state.received += edge_round.last
        edge_round.tasks = []  # the model contains them, so that no client's update is lost

    async def on_edge_lost(self, edge: int) -> None:
        if edge in self.state.edges:
            self.state.edges[edge].is_lost = True

    async def _begin_edge_round(self, edge: int) -> None:
        """Begin an edge round: send an edge server's model to its idle clients.

        After the deadline of the round no client gets a task. An edge round without a task ends at
        once.

        Args:
            edge: ID of the edge server.
        """
        state = self.state
        server = self.server
        edge_round = state.edges[edge]
        is_first = edge_round.remaining == self.params.kappa2  # no edge round has ended yet
        clients = list[int]()
        if not state.over:  # the deadline of the round has not passed
            clients = [device for device in edge_round.clients if server.clients.idle(device)]
        edge_round.clients = clients
        for device in clients:
            task = server.ask(
                device,
                {"model": edge_round.model},
                round=state.round,
                group=edge,
                continues=not is_first,
                at_edge=True,
            )
            state.open[task] = device
            edge_round.open.append(task)
            if not is_first:
                # The client was counted as valid for its previous task, and now has another one.
                # Only its final task of the round counts.
                state.valid -= 1
        if not edge_round.open:
            await self._end_edge_round(edge)

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store a client's update at its edge server, and end the edge round after the last task.

        An edge round, one of several in a round, trains the edge server's model once. A client
        without an update takes no further part in the round.

        Args:
            message: the client's ended task.
        """
        if message.job == QUESTION:  # a task of the selection, before the round's training
            await super().on_task_end(message)
            return
        state = self.state
        edge = self.server.edges.of(message.device)
        edge_round = state.edges[edge]
        del state.open[message.task]
        edge_round.open.remove(message.task)
        column = self._counted_as(message)
        state[column] += 1  # ``valid``, ``slow`` or ``disconnected``
        if column == "valid":
            edge_round.updates.append(self.entry(message))
            edge_round.tasks.append(message.task)
        else:
            edge_round.clients.remove(message.device)
        # the client gets no further task in this round after a failure or the last edge round
        is_last_task = column != "valid" or edge_round.remaining == 1
        if is_last_task:  # selection and deadline learn of each client once a round
            self._notify_parts(message)
        if edge_round.open:  # other clients of the edge server have not ended
            return
        if edge_round.is_lost:
            await self._remove_edge(edge)
        else:
            await self._end_edge_round(edge)

    async def _end_edge_round(self, edge: int) -> None:
        """End an edge round: average its updates into the edge server's model.

        The edge server then begins its next edge round. After its last edge round, after the
        deadline, or without remaining clients it sends its model to the server. If it has averaged
        no update in the whole round, it leaves the round instead.

        Args:
            edge: ID of the edge server.
        """
        state = self.state
        edge_round = state.edges[edge]
        if edge_round.updates:
            await self._average(edge, edge_round)
        edge_round.remaining -= 1
        # ``over``: the deadline of the round has passed
        has_next = edge_round.remaining and edge_round.clients and not state.over
        if has_next:
            await self._begin_edge_round(edge)
        elif edge_round.last:  # its model is the mean of the updates that it averaged last
            contents = {"edge-update": edge_round.model}
            self.server.edges.carry(edge, contents, "up", round=state.round, start=edge_round.start)
        else:
            await self._remove_edge(edge)

    async def _average(self, edge: int, edge_round: EdgeRound) -> None:
        """Combine the updates of an edge server's clients into its model, by ``aggregation``.

        The step is recorded among the run's events.

        Args:
            edge: ID of the edge server.
            edge_round: its state in the round, which is changed.
        """
        aggregation = self.params.aggregation
        updates = edge_round.updates
        edge_round.last = updates
        edge_round.updates = []
        weights = await aggregation.weigh(self.server, updates, aggregation.weights(updates))
        self.record_aggregate(updates, weights, group=edge, edge=edge)
        edge_state = state_of_slot(self.state.aggregation, edge, aggregation)
        model = edge_round.model
        edge_round.model = aggregation.combine(self.server, edge_state, updates, weights, model)

    async def _remove_edge(self, edge: int) -> None:
        """Remove from the round an edge server that has finished or was lost.

        The client updates that it received are recorded as lost if its model has not arrived at the
        server. After the last edge server the round is closed.

        Args:
            edge: ID of the edge server.
        """
        state = self.state
        tasks = state.edges.pop(edge).tasks
        if tasks:
            self.server.emit("updates-lost", round=state.round, edge=edge, tasks=tasks)
        if not state.edges:
            await self._close_round()

    def _stop_waiting(self) -> None:
        self.state.over = True
        super()._stop_waiting()

    async def aggregate(self) -> None:
        """Set the global model to the mean of the edge servers' models, weighted by samples.

        The weight of an edge server's model is the sample count of its last edge round. With a
        server optimiser (key ``server``), the optimiser makes a step towards the mean instead. The
        aggregation is recorded among the run's events as ``edges-combined``. If no edge server's
        model has arrived, the global model is unchanged.
        """
        state = self.state
        arrived = state.arrived
        if not arrived:
            return
        mean = Weighted()
        weights = await mean.weigh(self.server, arrived, mean.weights(arrived))
        edges = [entry["group"] for entry in arrived]
        self.server.emit(
            "edges-combined",
            round=state.round,
            edges=edges,
            weights=weights,
            **mean.record_fields(len(edges)),
        )
        model = mean.combine(self.server, state.cloud, arrived, weights, state.model)
        state.model = self.advance(state.model, model)

    def _counts(self) -> dict[str, int]:
        state = self.state
        counts = {"valid": state.valid, "slow": state.slow, "disconnected": state.disconnected}
        return {"selected": sum(counts.values()), **counts}
