"""The base of every strategy without a server: the same half on each device, and the state of
all devices.
"""

from collections.abc import Callable
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
from fedsim.federation.evaluator import Measured, ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy, StrategyParams
from fedsim.world.population import PopulationSpec


class PeerParams(StrategyParams):
    """Parameters of every strategy without a server."""

    serverless: ClassVar[bool] = True

    local_epochs: Annotated[int, Field(ge=0, le=100_000)] = 1
    """passes over its own data that a device makes in a round; 0: models are averaged, and
    nothing is trained.
    """
    start: Literal["same", "own"] = "same"
    """all devices begin with the ``same`` initial model, or each with its ``own``."""
    deadline: PositiveSeconds | None = None
    """longest wait of a trained device for messages (s).

    None: no limit, refused where devices come and go.
    """

    def check_population(self, population: PopulationSpec) -> None:
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
    """The half on every device, called while that can be reached. One object serves all devices
    and keeps nothing of any.

    A device's ``state["model"]`` is its model, ``state["round"]`` the number of its finished
    rounds.
    """

    def __init__(self, params: P, setting: RunInfo) -> None:
        self.params = params
        self.setting = setting
        self._draws: dict[int, Any] = {}

    def _drawn(self, number: int, draw: Callable[[], T]) -> T:
        """The draw of a round. The last eight are kept: devices are in few rounds at a time."""
        if number not in self._draws:
            if len(self._draws) >= 8:
                self._draws.pop(next(iter(self._draws)))
            self._draws[number] = draw()
        return self._draws[number]  # type: ignore[no-any-return]

    def on_start(self, device: Peer) -> None:
        """The device takes part for the first time; it has its initial model."""
        raise NotImplementedError

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        """The training is over; None where it gave nothing."""
        raise NotImplementedError

    def on_message(self, device: Peer, sender: int, contents: Contents) -> None:
        """A message has arrived."""
        raise NotImplementedError

    def on_lost(self, device: Peer, other: int) -> None:
        """A message from or to another device was lost."""

    def on_timer(self, device: Peer) -> None:
        """Its timer has gone off."""

    def on_return(self, device: Peer) -> None:
        """The device can be reached again; its work at the time when it disconnected is lost."""
        raise NotImplementedError

    def train(self, device: Peer, model: Ref) -> None:
        """Train from a model; ``on_trained`` follows, at once where there are no epochs."""
        if self.params.local_epochs:
            device.train(model, device.state["round"])
        else:
            self.on_trained(device, model)


class PeerClient(Client[PeerParams]):
    """Trains; no byte moves."""

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents:
        return {
            "update": Header(result.update),
            "samples": Header(result.samples),
            "start": Header(result.start),
        }


class Peers(Strategy[P]):
    """A strategy without a server: an algorithm fills in ``Half``.

    The score is the mean accuracy of the devices, each with its own model on its own test
    samples. Rounds also have ``mean_accuracy`` and ``consensus``.

    State: ``round``, of the run, from 0; ``over``, after the last round; ``rounds``, finished by
    each device, and ``steps``, their sum; ``own``, each device's model; ``updates`` of the round:
    update, samples, start, device; ``away``, devices that act when they return.
    """

    Client = PeerClient
    Half: ClassVar[type[PeerHalf[Any]]] = PeerHalf
    """The class of the half on every device."""
    score: Literal["pooled", "device-mean"] = "device-mean"

    def __init__(self, params: P, server: Server) -> None:
        super().__init__(params, server)
        self._half = self.Half(params, server.setting)

    def is_over(self) -> bool:
        """Whether the round of the run is over: every device in it that can be reached has
        finished it.
        """
        number = self.state["round"]
        rounds = self.state["rounds"]
        waits = any(
            finished == number and self.server.peer(device).online
            for device, finished in rounds.items()
        )
        return not waits and bool(max(rounds.values(), default=0) > number)

    async def on_start(self) -> None:
        self.state |= {
            "round": 0,
            "steps": 0,
            "rounds": {},
            "own": {},
            "updates": [],
            "away": [],
            "over": False,
        }
        self.server.begin_round(0)
        for device in filter(self.server.clients.arrived, range(self.server.devices)):
            await self._call(device, "on_return")

    async def on_arrival(self, device: int) -> None:
        await self._call(device, "on_return")

    async def on_return(self, device: int) -> None:
        if device in self.state["away"]:
            self.state["away"].remove(device)
        await self._call(device, "on_return")

    async def on_task_end(self, message: TaskEnd) -> None:
        update = message.contents.get("update")
        device = message.device
        if message.outcome == "done" and update is not None:
            self.server.emit(
                "aggregate", round=message.round, tasks=[message.task], weights=[1.0], staleness=[0]
            )
            self.state["updates"].append((update, message["samples"], message["start"], device))
        await self._call(device, "on_return" if message.outcome == "lost" else "on_trained", update)

    async def on_peer_message(self, message: PeerMessage) -> None:
        source = message.source
        destination = message.destination
        if message.outcome == "done":
            await self._call(destination, "on_message", source, message.contents)
        else:
            await self._call(source, "on_lost", destination)
            await self._call(destination, "on_lost", source)

    async def on_timer(self, name: str) -> None:
        await self._call(int(name.partition("/")[2]), "on_timer")

    async def _call(self, number: int, handler: str, *told: Any) -> None:
        """Let a device's half act, now or when it returns, and see whether a round of the run is
        over.
        """
        device = self.server.peer(number)
        state = self.state
        if state["over"]:
            return
        if not device.online:
            if number not in state["away"] and self.server.clients.await_return(number):
                state["away"].append(number)
            elif not self.server.clients.anyone_ever():
                self.server.stop("no device will ever be there again")
        elif number not in state["own"]:
            if handler == "on_return":
                device.state["model"] = device.initial(
                    0 if self.params.start == "same" else 1 + number
                )
                device.state["round"], state["own"][number] = 0, device.state["model"]
                self._half.on_start(device)
        elif handler == "on_return":
            if self.server.clients.idle(number):
                device.cancel_timer()
                self._half.on_return(device)
        elif number not in state["away"]:
            getattr(self._half, handler)(device, *told)
        changed = not device.online
        if number in state["own"]:
            finished = device.state["round"]
            before = state["rounds"].get(number, 0)
            state["own"][number], state["rounds"][number] = device.state["model"], finished
            state["steps"] += finished - before
            changed |= finished > before
        while changed and not state["over"] and self.is_over():
            await self._finish_round()

    async def _finish_round(self) -> None:
        state = self.state
        server = self.server
        number = state["round"]
        models = self.models()
        figures = await server.models.agreement(number, [model for model, _ in models.values()])
        updates = [
            Measured(update, float(samples), start, None, one)
            for update, samples, start, one in state["updates"]
        ]
        state["over"] = not await server.finish_round(number, models, updates=updates, **figures)
        state["updates"], state["round"] = [], number + 1
        if not state["over"]:
            server.begin_round(number + 1)

    def models(self) -> ModelAssignment:
        return {
            f"device/{device}": (model, [device])
            for device, model in sorted(self.state["own"].items())
        }
