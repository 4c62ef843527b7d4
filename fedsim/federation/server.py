"""The server's API for the server half of a strategy: messages, and nothing of the world behind them (data, speed, labels).

Its handlers begin and end in one instant; they may await values (real work), never simulated time.
"""
# ruff: noqa: A002 - a round is called ``round``

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, home_of, shown
from fedsim.evaluation.evaluator import NOT_MEASURED, Measured, ModelAssignment
from fedsim.federation.client import Instruction, RunInfo
from fedsim.federation.client_side import TaskContext
from fedsim.federation.contents import BASE, STATE, Contents, Header, Lazy, Partial, has_model, payloads, received
from fedsim.federation.devices import Device
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref
from fedsim.simulation import on_grid
from fedsim.streams import Shuffle
from fedsim.world.network.endpoints import Direction
from fedsim.world.task import Cause, Download, Payload, TaskStep

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

T = TypeVar("T")

_BYTES_TO_LOOK_AT = 200  # a device, where its phase and its number are kept for it
_LEAST_ASKED = 16  # checking one device or so many for availability takes about the same time


def _memory_bytes() -> int:
    names = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else sys.maxsize


class Clients:
    """The clients as the server sees them: which of all ``count`` devices can be asked."""

    def __init__(self, dispatch: "Dispatch", count: int) -> None:
        self._dispatch, self.count = dispatch, count

    def online(self) -> list[int]:
        """The devices that are checked in and idle, in order of their numbers. Looks at every device: O(population)."""
        return self._dispatch.idle(self._everybody()).nonzero()[0].tolist()

    def reachable(self) -> list[int]:
        """The devices that can be reached, whether they work or not, in order of their numbers. Looks at every device."""
        return self._dispatch.tasks.reachable(self._everybody()).nonzero()[0].tolist()

    def _everybody(self) -> NDArray[np.int64]:
        """All devices, to be looked at together; ``SimulationError``: this machine has no room for so many."""
        needed, there = self.count * _BYTES_TO_LOOK_AT, _memory_bytes()
        if needed > there:
            raise SimulationError(
                f"the strategy looks at all {self.count:,} devices at once, which takes some {needed / 1e9:.0f} GB, and this "
                f"machine has {there / 1e9:.0f}; allowed are {there // _BYTES_TO_LOOK_AT:,} devices, or a strategy that draws "
                "its clients at random (fedavg), which looks at those alone"
            )
        return np.arange(self.count)

    def sample(self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle; fewer if there are not so many.

        Takes the first available ones along a random permutation of all devices, or of ``among`` (stream ``strategy/purpose``,
        ids), at a cost independent of the population; absent devices do not change the order of the others.
        """
        generator = self._dispatch.streams.generator(f"strategy/{purpose}", *ids)
        shuffle = Shuffle(generator, self.count if among is None else len(among))
        chosen: list[int] = []
        while shuffle.remaining and len(chosen) < count:
            places = shuffle.draw(max(count - len(chosen), _LEAST_ASKED))
            devices = np.array(places if among is None else [among[place] for place in places], dtype=np.int64)
            chosen += devices[self._dispatch.idle(devices)].tolist()
        return chosen[:count]

    def anyone_ever(self, at_least: int = 1) -> bool:
        """Whether ``at_least`` so many devices are there now or will be some time."""
        if at_least == 1:
            return self._dispatch.tasks.anyone_ever()
        return len(list(islice(filter(self._ever, range(self.count)), at_least))) == at_least

    def _ever(self, device: int) -> bool:
        return self._dispatch.tasks.next_on(device, self._dispatch.simulation.now) < math.inf

    def expects_newcomers(self) -> bool:
        """Whether some device will still join that can ever be reached: then it makes sense to wait."""
        coming = np.flatnonzero(self._dispatch.population.arrival > self._dispatch.simulation.now).tolist()
        return any(map(self._ever, coming))

    def idle(self, device: int) -> bool:
        """Whether a device is checked in and has nothing to do."""
        return self._dispatch.is_idle(device)

    def arrived(self, device: int) -> bool:
        """Whether a device has joined the population, be it here or away by now; ``on_arrival`` announces the others."""
        return bool(self._dispatch.population.arrival[device] <= self._dispatch.simulation.now)

    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Call ``on_return(device)`` when it can be reached, ``delay`` (s) from now at the earliest; False: that is never."""
        when = self._dispatch.tasks.next_on(device, on_grid(self._dispatch.simulation.now + delay))
        if when < math.inf:
            self._dispatch.rearm("return", device, when)
        return when < math.inf

    async def look_for_shift(self, device: int) -> None:
        """Let a device that could not tell before see whether its data have changed; then ``on_shift`` follows at once."""
        devices = self._dispatch.devices
        if devices.population.version.item(device) != devices.used_versions.get(device, 0):
            await self._dispatch.tell_shift(device)

    def exists(self, device: Any) -> bool:
        """Whether this is the number of a device."""
        return isinstance(device, int | np.integer) and 0 <= int(device) < self.count

    def chosen(self, devices: Sequence[int], by: Callable[..., Any], *, idle: bool = True) -> list[int]:
        """The devices that the function ``by`` has chosen; ``SimulationError``: one is not there or, with ``idle``, busy."""
        if not isinstance(devices, list | tuple | range | np.ndarray):
            raise SimulationError(f"{by.__qualname__}{home_of(by)} returns {shown(devices)}; allowed is a list of devices")
        known = np.array(sorted({int(device) for device in devices if self.exists(device)}), dtype=np.int64)
        free = set((known[self._dispatch.idle(known)] if idle else known).tolist())
        seen: set[int] = set()
        for device in devices:
            if not self.exists(device) or device in seen or device not in free:
                why = "" if not self.exists(device) else " twice" if device in seen else ", which is not there or is busy"
                wanted = " that are there and idle (Clients.sample, Clients.online)" if idle else ""
                raise SimulationError(
                    f"{by.__qualname__}{home_of(by)} has chosen device {device!r}{why}; allowed are devices of 0 to "
                    f"{self.count - 1}{wanted}, each once"
                )
            seen.add(device)
        return list(devices)


class Peer(Device):
    """A device in a strategy without a server: it trains, sends to other devices, and has a timer."""

    __slots__ = ("_dispatch", "_server")

    def __init__(self, number: int, server: "Server", dispatch: "Dispatch") -> None:
        super().__init__(number, dispatch.devices)
        self._server, self._dispatch = server, dispatch

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._server.now

    @property
    def online(self) -> bool:
        """Whether it can be reached; its half acts only while it can."""
        return self._dispatch.tasks.reachable_until(self.number) > self.now

    def train(self, model: Ref, number: int) -> None:
        """Train from ``model`` in the round ``number``, as a task that moves no bytes; ``on_trained`` tells its end."""
        self._server.ask(self.number, {"model": Header(model)}, round=number)

    def send(self, devices: Sequence[int], contents: Contents, number: int) -> None:
        """Send contents, encoded by ``messages.up``, to devices at once; then ``on_message`` there, or ``on_lost`` on both."""
        dispatch, parts = self._dispatch, payloads(contents, self._dispatch.up)
        contents, _ = dispatch.up.through(contents, {}, {})
        for device in devices:
            message = dispatch.messages.send(self.number, device, parts, number, dispatch.on_message_end)
            dispatch.sent[message.id] = contents, {}

    def written(self, value: Ref | Partial) -> tuple[Ref, float]:
        """A model, or a part of one, as others read it after ``messages.up``, and its bytes."""
        up, contents = self._dispatch.up, {"part": value}
        return up.through(contents, {}, {})[0]["part"], sum(part.bytes for part in payloads(contents, up))

    def timer(self, seconds: float) -> None:
        """Call ``on_timer`` so many seconds from now; a new timer replaces the one before."""
        self._server.timer(f"device/{self.number}", self.now + seconds)

    def cancel_timer(self) -> None:
        """Forget the timer."""
        self._server.cancel_timer(f"device/{self.number}")

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator named by a purpose and counts, the same for all devices, as from a common seed."""
        return self._server.rng(purpose, *ids)


class ServerModels:
    """Deferred arithmetic with models, and their values."""

    def __init__(self, dispatch: "Dispatch", parameters: int) -> None:
        self._dispatch, self._learner, self._parameters = dispatch, dispatch.learner, parameters

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model; another ``count`` is another draw. The same for every strategy with the same seed."""
        return self._learner.initial(count)

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None, *, rescale: bool = True) -> Ref:
        """The linear combination sum of coefficient x model, in the order given; not computed until it is needed.

        Models that are not finite are left out, the other coefficients rescaled to the same sum (``rescale = False``, for sums
        of differences: left as they are). ``otherwise``: the result if no coefficients, or such of sum 0, are left; by default
        one that is not finite.
        """
        self._dispatch.compute("mix", len(parts), self._parameters, 1)
        return self._learner.mix(parts, otherwise, rescale=rescale)

    def given(self, weights: NDArray[np.floating]) -> Ref:
        """The model that has these weights, an array [d]."""
        return self._learner.given(weights)

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self.given(np.zeros(self._parameters, dtype=np.float32))

    def apply(
        self,
        function: Function,
        models: Sequence[Ref],
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: Any,
    ) -> Ref:
        """The result of a pure function of models; not computed until it is needed.

        Args:
            function: ``function(models, **constants)`` of a list of arrays, float32 [d] each, gives an array [d]. It is defined
                at the top of a module, marked by ``@pure``, does not change its arguments, and may run in any process.
            stream: a purpose and numbers, which name the strategy's generator that the function gets as ``rng``.
            otherwise: the result if one of ``models`` is not finite; by default one that is not finite.
            leave_out: leave out models that are not finite, as in ``mix``; then ``otherwise`` is the result without any.
            size: length of the result; None: a model. With a number the function gets all models, finite or not.
            constants: further arguments; JSON-able.
        """
        self._dispatch.compute("mix", len(models), self._parameters, 1)
        named = None if stream is None else (f"strategy/{stream[0]}", *stream[1:])
        how: dict[str, Any] = {"stream": named, "otherwise": otherwise, "leave_out": leave_out, "size": size}
        return self._learner.apply(function, models, **how, **constants)

    @property
    def learns(self) -> bool:
        """Whether models have weights; not with ``learning = "off"``."""
        return self._learner.learns

    async def value(self, model: Ref) -> NDArray[np.float32]:
        """The weights, flat, float32 [d]. Forces them to be computed."""
        return await self._learner.value(model)

    async def values(self, models: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, computed together."""
        return await self._learner.values(models)

    async def numbers(self, sent: Sequence[Lazy]) -> list[NDArray[np.float64]]:
        """Numbers sent by devices, an array each; all of one kind. ``SimulationError``: without learning."""
        learner, refs = self._learner, [content.ref for content in sent]
        if not sent:
            return []
        if not learner.learns:
            raise SimulationError(
                f'the strategy looks at {sent[0].what} that devices sent, but learning = "off" has none; set learning = "on"'
            )
        values = await learner.values(refs)  # as one cohort
        match sent[0].what:
            case "loss":
                losses = [await learner.train_loss([(ref, 1.0)]) for ref in refs]
                return [np.array([math.nan if loss is None else loss]) for loss in losses]
            case "losses":
                return [np.asarray(ref.losses) for ref in refs]
            case "choice":
                return [np.array([ref.choice]) for ref in refs]
        return [value.astype(np.float64) for value in values]

    async def choices(self, sent: Sequence[Lazy]) -> list[int]:
        """The one whole number sent by each device, such as the position of its model."""
        return [int(numbers[0]) for numbers in await self.numbers(sent)]

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """The weighted mean of devices' training losses; None where there is none."""
        return await self._learner.train_loss(updates)

    async def test(self, model: Ref, devices: Sequence[int] | None = None) -> float | None:
        """Accuracy of a model on the pooled test samples of devices (None: all), at no cost; None where nothing is measured."""
        return await self._dispatch.evaluator.test(model, devices)

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """See ``Evaluator.agreement``."""
        return await self._dispatch.evaluator.agreement(number, models)


class ServerEdges:
    """The edge servers of a network, by number from 0."""

    def __init__(self, dispatch: "Dispatch") -> None:
        self._dispatch = dispatch

    @property
    def count(self) -> int:
        """Their number; 0 where the network has none."""
        return self._dispatch.messages.edges

    def of(self, device: int) -> int:
        """The edge server of a device."""
        return self._dispatch.messages.edge_of(device)

    def has(self, edge: int) -> bool:
        """Whether an edge server is there; one that is lost (``on_edge_lost``) is not."""
        return edge not in self._dispatch.messages.lost

    def carry(
        self, edge: int, contents: Contents, direction: Direction, *, round: int | None = None, start: Ref | None = None
    ) -> None:
        """Send contents ``down`` to an edge server, or ``up`` from it; ``on_carried`` follows. One message at a time each way.

        ``start``: the model, known to both, from which those in contents were trained.
        """
        dispatch = self._dispatch
        wire = dispatch.down if direction == "down" else dispatch.up
        parts, base_bytes = payloads(contents, wire), dispatch.learner.base_bytes
        if direction == "down" and edge not in dispatch.bases_at and base_bytes and has_model(contents):
            parts = (Payload(BASE, base_bytes), *parts)
        message = dispatch.messages.carry(edge, direction, parts, round, dispatch.on_message_end)
        bases = {} if start is None else {value: start for value in contents.values() if isinstance(value, Ref)}
        kept = dispatch.kept_at.get(edge, {}) if direction == "up" else {}
        dispatch.sent[message.id] = wire.through(contents, bases, kept)


class Server:
    """All that the server half of a strategy can see and do; ``devices`` is their number."""

    def __init__(self, dispatch: "Dispatch", setting: RunInfo) -> None:
        self._dispatch, self.setting, self.devices = dispatch, setting, setting.devices
        self.clients = Clients(dispatch, setting.devices)
        self.models = ServerModels(dispatch, setting.parameters)
        self.edges = ServerEdges(dispatch)

    # Time.

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._dispatch.simulation.now

    def timer(self, name: str, when: float) -> float:
        """Call ``on_timer(name)`` at the absolute time ``when`` (s), in place of the name's earlier timer.

        At ``now`` it follows the messages that are already there. It waits until the server has computed (``compute``).
        Returns the time, on the clock's grid.
        """
        return self._dispatch.set_timer(name, max(self.now, on_grid(when)))

    @property
    def computing(self) -> bool:
        """Whether the server still computes."""
        return self._dispatch.busy_until > self.now

    def compute(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Say that the server computes something (``costs``); timers wait for it. ``models.mix`` and ``apply`` say so too."""
        self._dispatch.compute(what, n, d, m)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
        self._dispatch.cancel_timer(name)

    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """With too few to ask: set a timer ``delay`` (s) from now, or end the run if so many devices will never be there."""
        if not self.clients.anyone_ever():
            self.stop("no device will ever be there again")
        elif not self.clients.anyone_ever(at_least):
            self.stop(f"fewer than {at_least} devices will ever be there again")
        else:
            self.timer(name, self.now + delay)

    # Messages.

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str = "train",
        *,
        round: int | None = None,
        group: int | None = None,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send an idle device a message; its client half does the job and answers. Returns the task's number.

        ``on_task_end`` follows once. ``continues``: this task and the device's one before count as one selection. ``at_edge``:
        its edge server asks, and gets the answer.
        """
        if not self.clients.exists(device):
            raise SimulationError(f"device {device!r} was asked; allowed are 0 to {self.devices - 1}")
        dispatch, parts = self._dispatch, payloads(contents, self._dispatch.down)
        learner, down = dispatch.learner, dispatch.down
        brings_base = bool(learner.base_bytes) and device not in dispatch.devices.bases and has_model(contents)
        if brings_base:
            parts = (Payload(BASE, learner.base_bytes), *parts)
        if learner.state_bytes and job == "train" and contents["model"].state is not None:
            parts = (*parts, Payload(STATE, learner.state_bytes))
        steps: tuple[TaskStep, ...] = (Download(parts),) if parts else ()
        if parts and down.model_s:
            steps += down.work_on(contents, "decode")
        edge = dispatch.messages.edge_of(device) if at_edge else None
        contents, _ = down.through(contents, {}, {})
        context = TaskContext(Instruction(job, received(contents), round), brings_base=brings_base)
        task = dispatch.tasks.start(device, steps, round, group, continues=continues, edge=edge, context=context)
        if dispatch.simulation.executor.workers > 1:
            dispatch.client_side.begin_real(device, context)
        return task.id

    def end(self, task: int, cause: Cause = "late") -> None:
        """End a task that still runs; harmless on one that has just ended."""
        self._dispatch.end(task, cause)

    def peer(self, device: int) -> Peer:
        """A device as its half sees it, in a strategy without a server."""
        return Peer(device, self, self._dispatch)

    async def result(self, work: Future[T]) -> T:
        """Await a future from the strategy's own thread; simulated time does not advance meanwhile."""
        return await self._dispatch.simulation.join(work)  # type: ignore[no-any-return]

    # Randomness, records, the end.

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator of the strategy's own, named by a purpose and counts."""
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record something that the strategy decided."""
        self._dispatch.simulation.emit(kind, **data)

    def exchange(self, contents: Contents, sender: str, receiver: str) -> None:
        """Record that contents went from one part of the server's side to another, on no device's link and at once."""
        for part in payloads(contents, self._dispatch.up):
            self.emit("server-transfer", purpose=part.purpose, bytes=float(part.bytes), sender=sender, receiver=receiver)

    def begin_round(self, number: int) -> None:
        """Shift the data of a round that begins, once. After a timer at ``now`` devices know of it (``on_shift``)."""
        if self._dispatch.begin_round is not None:
            self._dispatch.begin_round(number)

    def stop(self, reason: str) -> None:
        """End the run after this instant."""
        self._dispatch.simulation.stop(reason)

    async def finish_round(
        self, number: int, models: ModelAssignment, updates: Sequence[Measured] = (), **counts: float
    ) -> bool:
        """Record an aggregation, measured at no cost when due; end the run at a stop condition. Returns whether it goes on.

        Args:
            number: the round that has just been aggregated, from 0.
            models: the strategy's models and the devices that each serves (None: all).
            updates: the aggregated updates, for the training loss and the discrepancy.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``; ``epsilon`` where privacy is spent. Columns of
                ``records.schema.ROUNDS`` are in the table of rounds, other names in the record ``round`` alone.
        """
        evaluator, strategy = self._dispatch.evaluator, self._dispatch.strategy
        row = await evaluator.measure(number, models, updates, strategy)
        if cosines := await evaluator.cosines(number, updates, strategy):
            self.emit("cosines", round=number, **cosines)
        return self.note_round(number, row, **counts)

    def note_round(self, number: int, figures: Mapping[str, float | None], **counts: float) -> bool:
        """As ``finish_round``, with ``figures`` that were measured elsewhere: columns of the rounds' table, None where not."""
        self.emit("round", round=number, **{**NOT_MEASURED, **figures}, **counts)
        if (reason := self._dispatch.evaluator.reason_to_stop(number, figures)) is not None:
            self.stop(reason)
        return self._dispatch.simulation.stopped is None
