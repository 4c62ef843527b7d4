"""The loop without rounds that asynchronous strategies share."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from pydantic import Field, model_validator
from pydantic_core import PydanticCustomError

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Epochs
from fedsim.common.units import PositiveSeconds
from fedsim.federation import Server, TaskEnd
from fedsim.federation.round_result import Measured, ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.base import Strategy
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.parts.aggregation import Entry
from fedsim.strategies.parts.selection import Random, SelectionSpec
from fedsim.strategies.state import Entries, PartState, State, new_state
from fedsim.strategies.updates import AsynchronousUpdate, samples_of


class AsynchronousParams(StrategyParams):
    """Keys of ``[strategy]`` that all asynchronous strategies have.

    Attributes:
        concurrency: count of clients that work at any time, if available.
        local_epochs: E, passes of a client over its data.
        retry: time (s) after which more clients are selected, if fewer than ``concurrency`` clients
            work.
        min_available: clients are selected only while this many can be reached, idle or busy;
            otherwise the server looks again after ``retry``. None: with any number.
        selection: selection of the next clients (``parts/selection``); a selection that first asks
            candidates a question is refused.
    """

    concurrency: int = Field(default=10, ge=1)
    local_epochs: Epochs = 1
    retry: PositiveSeconds = 60.0
    min_available: int | None = Field(default=None, ge=1)
    selection: SelectionSpec = Random()

    @model_validator(mode="before")
    @classmethod
    def _no_rounds(cls, data: object) -> object:
        if isinstance(data, dict) and "deadline" in data and "deadline" not in cls.model_fields:
            problem = (
                "has the key 'deadline', which says when a round ends; without rounds nobody waits "
                "for a slow client"
            )
            raise PydanticCustomError("unknown_key", problem)
        return data

    @property
    def updates_of_round(self) -> float:
        """Expected count of updates that make one version of the model, to predict a run's cost."""
        return 1.0

    def check(self, devices: int) -> None:
        if self.selection.asks:
            raise ScenarioError(
                f"strategy.selection is {self.selection.kind!r}, which asks candidates before "
                "a round begins; without rounds clients are replaced at once, and allowed are "
                "those that ask nobody first: random, least-asked, oort, least-available, or "
                "power-of-choice with losses = 'reported'"
            )
        self.refuse_more("concurrency", devices)
        self.refuse_more("min_available", devices)


A = TypeVar("A", bound=AsynchronousParams)


@dataclass
class OpenTask(Entries):
    """Running task of a device, as the state of an asynchronous strategy stores it.

    A version is a model that the server has published. The staleness of the device's update is the
    count of versions published since the task began.

    Attributes:
        version: Index of the version from which the device trains, from 0.
        model: The model of that version.
    """

    version: int
    model: Ref


@dataclass
class AsynchronousState(State):
    """State of an asynchronous strategy on the server: the model, running tasks and counts.

    Attributes:
        version: Index of the next version, from 0. A version is a model that the server publishes.
        model: The current model.
        open: Open tasks by task ID.
        draws: Count of draws of clients so far, which names the random stream of the next draw.
        refilling: Whether clients whose tasks have ended will be replaced at the end of this
            instant.
        over: Whether the last version was published, so that no client is asked any more.
        selection: State of the selection.
    """

    version: int = 0
    model: Ref = field(init=False)
    open: dict[int, OpenTask] = field(default_factory=dict)
    draws: int = 0
    refilling: bool = False
    over: bool = False
    selection: PartState = None


class Asynchronous(Strategy[A]):
    """Base of strategies without rounds: as soon as a client ends, the server asks another one.

    A subclass implements ``receive``. If its clients do anything but plain SGD, it also defines
    ``Client``, the class of its code on devices.

    At any time ``concurrency`` clients work, if available. Each downloads the current model (d
    parameters), trains, and uploads the result (d parameters). Clients that end at the same time
    are replaced together.

    A version is a model that the server publishes. The staleness of a result is the count of
    versions published since the client was asked. The run records each version as a round, which
    its reports and messages call a version.
    """

    round_word = "version"
    State = AsynchronousState
    state: AsynchronousState

    def __init__(self, params: A, server: Server) -> None:
        super().__init__(params, server)
        self.state.selection = new_state(self._selection)

    async def receive(self, message: TaskEnd, base: Ref, staleness: int) -> None:
        """Use an update that has arrived; a subclass implements it.

        An implementation that makes a new version of the model calls ``publish``.

        Args:
            message: the end of the update's task: ``message["update"]`` is the model,
                ``message["samples"]`` the count of samples.
            base: the model from which the update was trained.
            staleness: count of versions published since the device was asked.
        """
        raise NotImplementedError

    @staticmethod
    def entry(message: TaskEnd, base: Ref) -> AsynchronousUpdate:
        """Return the update of an ended task in the form that ``publish`` takes.

        The caller then sets the update's ``weight`` and ``staleness``.

        Args:
            message: the end of the task; its answer has ``update`` and ``samples``.
            base: the model from which the update was trained.
        """
        return AsynchronousUpdate(
            task=message.task,
            device=message.device,
            group=message.group,
            contents=message.contents,
            update=message["update"],
            samples=samples_of(message),
            start=base,
            base=base,
        )

    async def on_start(self) -> None:
        self.state.model = self.server.models.initial()
        self.server.begin_round(0)
        self._refill()

    def _refill(self) -> None:
        """Ask clients until ``concurrency`` work; if too few can be asked, try again later."""
        state = self.state
        server = self.server
        selection = self.params.selection
        concurrency = self.params.concurrency
        state.refilling = False
        if self._waits_for_clients():
            return
        missing = concurrency - len(state.open)
        # the count of draws names the random stream of this draw
        devices = selection.select(server, state.selection, missing, (state.draws,))
        for device in server.clients.chosen(devices, type(selection).select):
            task = server.ask(device, {"model": state.model}, round=state.version)
            state.open[task] = OpenTask(state.version, state.model)
        state.draws += 1
        if not state.open:  # no open task will cause the next refill by its end
            server.look_again("refill", self.params.retry)
        elif len(state.open) < concurrency:
            server.timer("refill", server.now + self.params.retry)

    def _waits_for_clients(self) -> bool:
        """Return whether fewer clients can be reached now than ``min_available`` requires.

        If so, a timer is set, at which the strategy checks again.
        """
        least = self.params.min_available
        if not self.server.lacks_clients(least):
            return False
        if self.state.open:
            self.server.timer("refill", self.server.now + self.params.retry)
        else:
            self.server.look_again("refill", self.params.retry, at_least=least or 1)
        return True

    async def on_arrival(self, device: int) -> None:
        if len(self.state.open) < self.params.concurrency:
            self._refill_soon()

    def _refill_soon(self) -> None:
        """Refill at the end of this instant, once for all clients that end in it."""
        if not self.state.refilling:
            self.state.refilling = True
            self.server.timer("refill", self.server.now)

    async def on_timer(self, name: str) -> None:
        if not self.state.over:
            self._refill()

    async def on_task_end(self, message: TaskEnd) -> None:
        state = self.state
        task = state.open.pop(message.task)
        self.params.selection.on_task_end(self.server, state.selection, message)
        if state.over:
            return
        if message.outcome == "done":
            await self.receive(message, task.model, state.version - task.version)
        self._refill_soon()

    async def publish(self, model: Ref, updates: Sequence[Entry], **record: int) -> None:
        """Publish a model as the next version, and begin the next round.

        The run records the version as a round: its updates, and the test of the model if one is
        due. Clients that are asked from now on receive the new version.

        Args:
            model: the next version.
            updates: the updates that are combined in the version, as ``entry`` returns them, each
                with its ``weight`` in the version and its ``staleness``, a count of versions.
            record: additional fields of the record ``aggregate``.
        """
        state = self.state
        server = self.server
        state.model = model
        server.emit(
            "aggregate",
            round=state.version,
            tasks=[update["task"] for update in updates],
            weights=[update["weight"] for update in updates],
            staleness=[update["staleness"] for update in updates],
            **record,
        )
        measured = []
        for update in updates:
            samples = float(update["samples"])
            device = update.get("device")
            measured.append(Measured(update["update"], samples, update["base"], model, device))
        state.over = not await server.finish_round(state.version, self.models(), updates=measured)
        if not state.over and self._selection is not None:
            await self._selection.learn(server, state.selection)
        state.version += 1
        server.begin_round(state.version)

    def models(self) -> ModelAssignment:
        return {"global": (self.state.model, None)}
