"""Base classes of strategies without a server, and of their code that runs on the devices."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Generic, Literal, TypeVar

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.common.units import PositiveSeconds
from fedsim.federation import (
    Client,
    Contents,
    Device,
    Header,
    Instruction,
    LocalResult,
    Peer,
    PeerMessage,
    Server,
    TaskEnd,
)
from fedsim.federation.client import RunInfo
from fedsim.federation.round_result import Measured, ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.state import State
from fedsim.strategies.traits import Traits
from fedsim.world.population_spec import PopulationSpec


class PeerParams(StrategyParams):
    """Keys of ``[strategy]`` that all strategies without a server have.

    Devices train, and exchange models with each other.

    Attributes:
        local_epochs: epochs that a device trains on its data in a round; 0: models are averaged,
            and nothing is trained.
        start: all devices begin with the ``same`` initial model, or each with its ``own``.
        deadline: longest wait of a trained device for messages (s). None: no limit, which is
            refused if devices come and go.
    """

    traits: ClassVar[Traits] = Traits(serverless=True, only_own_models=True)

    local_epochs: Annotated[int, Field(ge=0, le=100_000)] = 1
    start: Literal["same", "own"] = "same"
    deadline: PositiveSeconds | None = None

    @property
    def why_not(self) -> Reasons:
        if self.local_epochs:
            return Reasons()
        reason = "strategy.local_epochs is 0: nothing is trained"
        return Reasons(by_device=dict.fromkeys(("epochs", "steps"), reason))

    def check_population(self, population: PopulationSpec) -> None:
        """Check that the keys fit a population whose devices come and go.

        Args:
            population: the devices of the scenario.

        Raises:
            ScenarioError: devices come and go, and ``deadline`` is missing, or ``local_epochs`` is
                0.
        """
        if not population.comes_and_goes:
            return
        if self.deadline is None:
            raise ScenarioError(
                "strategy.deadline is missing: devices of this population come and go, and "
                f"{self.kind!r} would wait without "
                "end for one that has gone; give the longest wait, such as '60 s'"
            )
        if not self.local_epochs:
            raise ScenarioError(
                "strategy.local_epochs is 0, which takes no time; where devices come and go it "
                "is 1 or more"
            )


P = TypeVar("P", bound=PeerParams)
T = TypeVar("T")


class PeerHalf(Generic[P]):
    """Base of the device half of a strategy without a server: its code that runs on the devices.

    Its methods react to events of a device, such as a finished training or a received message, and
    are called only while the device is available. One object serves all devices. The state of a
    device is therefore in the dict ``device.state``, not in the object.

    Entries of a device's state: ``model``, the device's model; ``round``, the count of rounds that
    the device has finished.
    """

    def __init__(self, params: P, setting: RunInfo) -> None:
        self.params = params
        self.setting = setting
        self._cached_results: dict[int, Any] = {}

    def _cached(self, number: int, compute: Callable[[], T]) -> T:
        """Return the result of ``compute``, cached by a number such as the index of the round.

        Only the eight latest results are cached.

        Args:
            number: key of the cache.
            compute: returns the result; called if it is not cached.
        """
        if number not in self._cached_results:
            if len(self._cached_results) >= 8:
                self._cached_results.pop(next(iter(self._cached_results)))
            self._cached_results[number] = compute()
        cached: T = self._cached_results[number]
        return cached

    def why_not_more(self, planned: int, finished: int) -> str | None:
        """Return the reason why a finished run cannot be continued with more rounds than planned.

        Args:
            planned: count of rounds that the run was planned with.
            finished: the largest count of rounds that any device has finished.

        Returns:
            The reason, a clause for an error message; None, the default, if the run can be
            continued.
        """
        return None

    def on_start(self, device: Peer) -> None:
        """Hook when a device takes part for the first time, such as to start its first training.

        ``device.state["model"]`` is then the device's initial model.

        Args:
            device: the device that starts.
        """
        raise NotImplementedError

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        """Hook after a device has finished a training.

        Args:
            device: the device that has trained.
            update: the trained model; None if the training ended without a result.
        """
        raise NotImplementedError

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        """Hook when a message from another device has arrived.

        Args:
            device: the receiver.
            sender: ID of the sender.
            contents: contents of the message by name.
        """
        raise NotImplementedError

    def on_lost(self, device: Peer, other: int) -> None:
        """Hook after a message from or to another device was lost; by default nothing is done.

        The hook is called once for the sender and once for the receiver.

        Args:
            device: the sender or the receiver.
            other: ID of the receiver or the sender, respectively.
        """

    def on_timer(self, device: Peer) -> None:
        """Hook when the timer of a device (``Peer.timer``) has fired; by default nothing is done.

        Args:
            device: the device that has set the timer.
        """

    def on_return(self, device: Peer) -> None:
        """Hook when a device is available again after an absence.

        A training that it had not finished is lost.

        Args:
            device: the device that has returned.
        """
        raise NotImplementedError

    def train(self, device: Peer, model: Ref) -> None:
        """Start a training of a device; ``on_trained`` is called when it ends.

        If ``local_epochs`` is 0, nothing is trained, and ``on_trained`` is called immediately with
        ``model``.

        Args:
            device: the device that trains.
            model: the model from which to train.
        """
        if self.params.local_epochs:
            device.train(model, device.state["round"])
        else:
            self.on_trained(device, model)


class PeerClient(Client[PeerParams]):
    """Client of a strategy without a server: it trains the device's model, and sends no bytes.

    The update stays on the device; the strategy's method ``PeerHalf.on_trained`` receives it.
    """

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {
            "update": Header(result.update),
            "samples": Header(result.samples),
            "start": Header(result.start),
        }


@dataclass
class PeersState(State):
    """State of a strategy without a server: every device's model, and its count of rounds.

    The simulator collects it from the devices for the run's records and tests.

    Attributes:
        round: Index of the run's open round, from 0.
        steps: Total count of rounds that devices have finished, summed over devices.
        rounds: Device ID -> count of rounds that the device has finished.
        own: Device ID -> model of each device that takes part.
        updates: (update, sample count, starting model, device ID) of each training of the open
            round.
        away: IDs of unavailable devices, for which ``on_return`` is called when they return.
        over: Whether the last round of the run has closed.
    """

    round: int = 0
    steps: int = 0
    rounds: dict[int, int] = field(default_factory=dict)
    own: dict[int, Ref] = field(default_factory=dict)
    updates: list[tuple[Ref, int, Ref, int]] = field(default_factory=list)
    away: list[int] = field(default_factory=list)
    over: bool = False


class Peers(Strategy[P]):
    """Base of strategies without a server, in which devices send models to each other.

    A subclass sets ``Half``, a subclass of ``PeerHalf`` whose methods react to a device's events.
    This base calls these methods, and closes a round of the run when all available devices have
    finished it. The score of a run is the mean accuracy of the devices, each with its own model on
    its own test samples. The table of rounds also has the columns ``mean_accuracy`` and
    ``consensus``, the root mean square distance of the devices' models from their mean.
    """

    Client = PeerClient
    State = PeersState
    state: PeersState
    Half: ClassVar[type[PeerHalf[Any]]] = PeerHalf
    """Class of the strategy's code that runs on the devices."""
    score: Literal["pooled", "device-mean"] = "device-mean"

    def __init__(self, params: P, server: Server) -> None:
        super().__init__(params, server)
        self._half = self.Half(params, server.setting)

    def why_not_more(self, planned: int) -> str | None:
        return self._half.why_not_more(planned, max(self.state.rounds.values(), default=0))

    def is_over(self) -> bool:
        """Return whether all available devices have finished the open round.

        At least one device must have finished it. Unavailable devices are not waited for.
        """
        open_round = self.state.round
        rounds = self.state.rounds
        unfinished = [device for device, finished in rounds.items() if finished == open_round]
        if any(self.server.peer(device).reachable for device in unfinished):
            return False
        return max(rounds.values(), default=0) > open_round

    async def on_start(self) -> None:
        self.server.begin_round(0)
        for device in filter(self.server.clients.joined, range(self.server.devices)):
            await self._call(device, "on_return")

    async def on_arrival(self, device: int) -> None:
        await self._call(device, "on_return")

    async def on_return(self, device: int) -> None:
        if device in self.state.away:
            self.state.away.remove(device)
        await self._call(device, "on_return")

    async def on_task_end(self, message: TaskEnd) -> None:
        """Store the update of a training, and tell the device that its training has ended.

        After a lost training the device begins its round anew, as after an absence.

        Args:
            message: the ended training.
        """
        update = message.contents.get("update")
        device = message.device
        if message.outcome == "done" and update is not None:
            self.server.emit(
                "aggregate", round=message.round, tasks=[message.task], weights=[1.0], staleness=[0]
            )
            self.state.updates.append((update, message["samples"], message["start"], device))
        handler = "on_return" if message.outcome == "lost" else "on_trained"
        await self._call(device, handler, update)

    async def on_peer_message(self, message: PeerMessage) -> None:
        source = message.source
        destination = message.destination
        if message.outcome == "done":
            await self._call(destination, "on_message", source, message.contents)
        else:
            await self._call(source, "on_lost", destination)
            await self._call(destination, "on_lost", source)

    async def on_timer(self, name: str) -> None:
        device = int(name.removeprefix("device/"))
        await self._call(device, "on_timer")

    async def _call(self, number: int, handler: str, *arguments: object) -> None:
        """Call a method of ``Half`` for a device, then close rounds that are over.

        After the last round of the run nothing is done.

        Args:
            number: ID of the device for which the method is called.
            handler: name of the method, which ``PeerHalf`` declares.
            arguments: arguments of the method after the device.
        """
        if self.state.over:
            return
        device = self.server.peer(number)
        self._act(device, handler, *arguments)
        # Without this test, each message would look at the rounds of all devices.
        may_end_round = self._store_progress(device) or not device.reachable
        # a loop, as devices may have finished the next round too
        while may_end_round and not self.state.over and self.is_over():
            await self._finish_round()

    def _act(self, device: Peer, handler: str, *arguments: object) -> None:
        """Call a method of ``Half`` for a device, if the device is available and has started.

        If the device is unavailable, the call is dropped, and ``on_return`` will be called when the
        device returns. The run is stopped if no device will ever be available. A device starts at
        its first call of ``on_return``, with ``Half.on_start``; other calls before are dropped.

        Args:
            device: the device.
            handler: name of the method, which ``PeerHalf`` declares.
            arguments: arguments of the method after the device.
        """
        state = self.state
        number = device.number
        has_started = number in state.own
        if not device.reachable:
            self._await_return(number)
        elif handler == "on_return":
            if not has_started:
                self._start_device(device)
            elif self.server.clients.idle(number):
                device.cancel_timer()
                self._half.on_return(device)
        # a device in ``away`` has just returned, and its call of ``on_return`` comes first
        elif has_started and number not in state.away:
            getattr(self._half, handler)(device, *arguments)

    def _await_return(self, number: int) -> None:
        """Ask the simulator to call ``on_return`` when an unavailable device returns.

        The run is stopped if no device will ever be available.

        Args:
            number: ID of the device.
        """
        clients = self.server.clients
        if number not in self.state.away and clients.await_return(number):
            self.state.away.append(number)
        elif not clients.anyone_ever():
            self.server.stop("no device will ever be there again")

    def _start_device(self, device: Peer) -> None:
        """Store a device's initial model in its state, and call ``Half.on_start`` for the device."""
        variant = 0 if self.params.start == "same" else 1 + device.number
        model = device.initial(variant)
        device.state["model"] = model
        device.state["round"] = 0
        self.state.own[device.number] = model
        self._half.on_start(device)

    def _store_progress(self, device: Peer) -> bool:
        """Copy the device's model and its count of finished rounds into the state of the run.

        Returns:
            Whether the device has finished another round since the last call.
        """
        state = self.state
        number = device.number
        if number not in state.own:
            return False
        finished = device.state["round"]
        previous = state.rounds.get(number, 0)
        state.own[number] = device.state["model"]
        state.rounds[number] = finished
        state.steps += finished - previous
        return bool(finished > previous)

    async def _finish_round(self) -> None:
        """Close the open round of the run, with its models and updates, and begin the next."""
        state = self.state
        server = self.server
        number = state.round
        models = self.models()
        consensus = await server.models.consensus(number, [model for model, _ in models.values()])
        updates = []
        for update, samples, start, device in state.updates:
            updates.append(Measured(update, float(samples), start, device=device))
        state.over = not await server.finish_round(number, models, updates=updates, **consensus)
        state.updates = []
        state.round = number + 1
        server.begin_round(number + 1)

    def models(self) -> ModelAssignment:
        models = {}
        for device, model in sorted(self.state.own.items()):
            models[f"device/{device}"] = (model, [device])
        return models
