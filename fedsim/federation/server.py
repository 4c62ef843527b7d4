"""The server: all that the server half of a strategy may call.

It sees messages, and nothing of the world behind them: no device's data, speed or labels. Its handlers begin and end in one
instant; they may await values (real work), never simulated time.
"""

import math
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from itertools import compress, islice
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.errors import SimulationError, home_of, shown
from fedsim.evaluation.evaluator import NOT_MEASURED, Measured, ModelAssignment
from fedsim.federation.client import RunInfo
from fedsim.federation.contents import Contents, Lazy
from fedsim.federation.peer import Peer
from fedsim.learning.functions import Function
from fedsim.learning.refs import Ref
from fedsim.simulation import on_grid
from fedsim.streams import Shuffle
from fedsim.world.network.flow import Direction
from fedsim.world.task import Cause

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch

T = TypeVar("T")

_NUMBERS = (int, np.integer)
_BYTES_TO_LOOK_AT = 200  # a device, where its phase and its number are kept for it
_LEAST_ASKED = 16  # to ask of one device or of so many whether they can be had takes about the same time


def _memory_bytes() -> int:
    """What this machine has; where nobody says so, as much as may be."""
    names = getattr(os, "sysconf_names", {})
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") if "SC_PHYS_PAGES" in names else sys.maxsize


class Server:
    """What the server half of a strategy holds in its hands.

    Args:
        dispatch: what is behind it.
        setting: what both halves know; an attribute, as is the number of ``devices``.
    """

    def __init__(self, dispatch: "Dispatch", setting: RunInfo) -> None:
        self._dispatch = dispatch
        self.setting = setting
        self.devices = setting.devices

    # Time.

    @property
    def now(self) -> float:
        """The simulated time (s)."""
        return self._dispatch.simulation.now

    def timer(self, name: str, when: float) -> float:
        """Call the strategy's ``on_timer(name)`` at the absolute time ``when`` (s). One timer a name; a new one replaces it.

        At a time that is now, it goes off in this instant, after every message that is already there. Returns the time, on
        the clock's grid. What the server computes comes first (``compute``): until that is done, no timer goes off.
        """
        return self._dispatch.set_timer(name, max(self.now, on_grid(when)))

    @property
    def computing(self) -> bool:
        """Whether the server still computes."""
        return self._dispatch.busy_until > self.now

    def compute(self, what: str, n: int, d: int = 0, m: int = 1) -> None:
        """Say that the server computes something: ``what`` of ``costs``, with its sizes. Timers wait until it is done.

        ``mix`` and ``apply`` say so themselves.
        """
        self._dispatch.compute(what, n, d, m)

    def cancel_timer(self, name: str) -> None:
        """Forget a timer; harmless when there is none."""
        self._dispatch.cancel_timer(name)

    def look_again(self, name: str, delay: float, at_least: int = 1) -> None:
        """With too few to ask: set a timer ``delay`` (s) from now, or end the run if so many devices will never be there."""
        if not self.anyone_ever():
            self.stop("no device will ever be there again")
        elif at_least > 1 and self._ever(at_least) < at_least:
            self.stop(f"fewer than {at_least} devices will ever be there again")
        else:
            self.timer(name, self.now + delay)

    def anyone_ever(self) -> bool:
        """Whether some device is there now, or will be some time."""
        return self._dispatch.tasks.anyone_ever()

    def _ever(self, most: int) -> int:
        """How many devices can be reached now or some time, counted up to ``most``."""
        ever = (device for device in range(self.devices) if self._dispatch.tasks.next_on(device, self.now) < float("inf"))
        return len(list(islice(ever, most)))

    # Devices.

    def online(self) -> list[int]:
        """The devices that are checked in and idle, in order of their numbers. Looks at every device: O(population)."""
        online: list[int] = np.flatnonzero(self._dispatch.idle(self._everybody())).tolist()
        return online

    def reachable(self) -> list[int]:
        """The devices that can be reached, whether they work or not, in order of their numbers. Looks at every device."""
        found: list[int] = np.flatnonzero(self._dispatch.tasks.reachable(self._everybody())).tolist()
        return found

    def _everybody(self) -> NDArray[np.int64]:
        """All devices, to be looked at together.

        Raises:
            SimulationError: there are so many that this machine has no room for it.
        """
        needed, there = self.devices * _BYTES_TO_LOOK_AT, _memory_bytes()
        if needed > there:
            raise SimulationError(
                f"the strategy looks at all {self.devices:,} devices at once, which takes some {needed / 1e9:.0f} GB, and this "
                f"machine has {there / 1e9:.0f}; allowed are {there // _BYTES_TO_LOOK_AT:,} devices, or a strategy that draws "
                "its clients at random (fedavg), which looks at those alone"
            )
        return np.arange(self.devices)

    def sample(self, count: int, purpose: str, *ids: int, among: Sequence[int] | None = None) -> list[int]:
        """``count`` devices, uniformly without replacement out of those checked in and idle; fewer if there are not so many.

        Walks a random permutation of all devices, or of those ``among`` which to choose (the stream ``strategy/purpose``,
        ids), and takes the first that can be had, so the cost does not grow with the population, and a device that is away
        changes no other's place.
        """
        shuffle = Shuffle(self.rng(purpose, *ids), self.devices if among is None else len(among))
        chosen: list[int] = []
        while shuffle.remaining and len(chosen) < count:
            places = shuffle.draw(max(count - len(chosen), _LEAST_ASKED))
            devices = np.array(places if among is None else [among[place] for place in places], dtype=np.int64)
            chosen += devices[self._dispatch.idle(devices)].tolist()
        return chosen[:count]

    def arrived(self, device: int) -> bool:
        """Whether a device has joined the population, be it here or away by now; who has not is announced by ``on_arrival``."""
        return bool(self._dispatch.population.arrival[device] <= self.now)

    def expects_newcomers(self) -> bool:
        """Whether some device will still join that can ever be reached: then it makes sense to wait."""
        coming = np.flatnonzero(self._dispatch.population.arrival > self.now).tolist()
        return any(self._dispatch.tasks.next_on(device, self.now) < float("inf") for device in coming)

    def idle(self, device: int) -> bool:
        """Whether a device is checked in and has nothing to do."""
        return self._dispatch.is_idle(device)

    def chosen(self, devices: Sequence[int], by: Callable[..., Any], *, idle: bool = True) -> list[int]:
        """The devices that a function has chosen to be asked.

        Args:
            devices: which.
            by: the function.
            idle: whether all must be there and idle; whoever asks others learns soon that they are disconnected.

        Raises:
            SimulationError: one cannot be asked; says which, and where the function stands.
        """
        if not isinstance(devices, list | tuple | range | np.ndarray):
            raise SimulationError(f"{by.__qualname__}{home_of(by)} returns {shown(devices)}; allowed is a list of devices")
        seen: set[int] = set()
        there = list(map(self._exists, devices))
        known = np.array(sorted({int(device) for device in compress(devices, there)}), dtype=np.int64)
        free = set((known[self._dispatch.idle(known)] if idle else known).tolist())
        if all(there) and len(free) == len(devices):  # all are there and different, as they should be
            return list(devices)
        for device, exists in zip(devices, there, strict=True):
            if not exists or device in seen or device not in free:
                why = "" if not exists else " twice" if device in seen else ", which is not there or is busy"
                wanted = " that are there and idle (Server.sample, Server.online)" if idle else ""
                raise SimulationError(
                    f"{by.__qualname__}{home_of(by)} has chosen device {device!r}{why}; allowed are devices of 0 to "
                    f"{self.devices - 1}{wanted}, each once"
                )
            seen.add(device)
        return list(devices)

    def _exists(self, device: Any) -> bool:
        return isinstance(device, _NUMBERS) and 0 <= int(device) < self.devices

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str = "train",
        *,
        round: int | None = None,  # noqa: A002
        group: int | None = None,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send an idle device a message; its client half does the job and answers. Returns the task's number.

        ``on_task_end`` tells how it ended, once. ``continues``: the device goes on with what its task before began (it had to
        find its group, say); the two count as one selection. ``at_edge``: its edge server asks, and gets the answer.
        """
        if not self._exists(device):
            raise SimulationError(f"device {device!r} was asked; allowed are 0 to {self.devices - 1}")
        return self._dispatch.ask(device, contents, job, round, group, continues=continues, at_edge=at_edge)

    def end(self, task: int, cause: Cause = "late") -> None:
        """End a task that still runs; harmless on one that has just ended."""
        self._dispatch.end(task, cause)

    def await_return(self, device: int, delay: float = 0.0) -> bool:
        """Call the strategy's ``on_return(device)`` when the device can be reached, ``delay`` (s) from now at the earliest.

        Returns:
            Whether that will ever be; if not, nothing is called.
        """
        when = self._dispatch.tasks.next_on(device, on_grid(self.now + delay))
        if when == float("inf"):
            return False
        self._dispatch.await_return(device, when)
        return True

    async def look_for_shift(self, device: int) -> None:
        """A device looks whether its data are others than those on which it last worked; if so, ``on_shift`` follows at once.

        For one that has just got something to compare them with: when they changed it could not tell.
        """
        await self._dispatch.look_for_shift(device)

    # Edge servers: where the network has them, contents can be combined there, on the way.

    @property
    def edges(self) -> int:
        """How many edge servers there are."""
        return self._dispatch.edges.count

    def edge_of(self, device: int) -> int:
        """The edge server of a device."""
        return self._dispatch.edges.of(device)

    def has_edge(self, edge: int) -> bool:
        """Whether an edge server is there; one that is lost (``on_edge_lost``) is not."""
        return edge not in self._dispatch.edges.off

    def carry(
        self,
        edge: int,
        contents: Contents,
        direction: Direction,
        *,
        round: int | None = None,  # noqa: A002
        start: Ref | None = None,
    ) -> None:
        """Send contents from the server ``down`` to an edge server, or ``up`` from it; one message at a time each way.

        ``on_carried`` tells how that ended, once. ``start``: the model from which those in contents were trained, which both
        have: a codec that encodes changes needs it.
        """
        self._dispatch.carry(edge, contents, direction, round, start)

    # Devices without a server: each has a half of its own.

    def peer(self, device: int) -> Peer:
        """A device as its half sees it, in a strategy without a server."""
        return Peer(device, self._dispatch)

    async def agreement(self, number: int, models: Sequence[Ref]) -> dict[str, float]:
        """See ``Evaluator.agreement``."""
        return await self._dispatch.evaluator.agreement(number, models)

    # Models.

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model; another ``count`` is another draw. The same for every strategy with the same seed."""
        return self._dispatch.learner.initial(count)

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None, *, rescale: bool = True) -> Ref:
        """The linear combination sum of coefficient x model, in the order given; not computed until it is needed.

        Updates that are not finite are left out, the other coefficients rescaled to the same sum (``rescale = False``: left
        as they are, right for a sum of differences). ``otherwise`` stands in when nothing is left, or when what is left sums
        to 0; without it the mix is then itself not finite.
        """
        self.compute("mix", len(parts), self.setting.parameters)
        return self._dispatch.learner.mix(parts, otherwise, rescale=rescale)

    def model(self, weights: NDArray[np.floating]) -> Ref:
        """The model that has these weights, an array [d]."""
        return self._dispatch.learner.given(weights)

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self.model(np.zeros(self.setting.parameters, dtype=np.float32))

    def apply(
        self,
        function: "Function",
        models: Sequence[Ref],
        *,
        stream: tuple[Any, ...] | None = None,
        otherwise: Ref | None = None,
        leave_out: bool = False,
        size: int | None = None,
        **constants: Any,
    ) -> Ref:
        """What a pure function makes of models; not computed until it is needed.

        Args:
            function: ``function(models, **constants)`` of a list of arrays, float32 [d] each, gives an array [d]. It stands at
                the top of a module, is marked by ``@pure``, changes nothing that it is given, and may run in any process.
            models: what it is given.
            stream: a purpose, and numbers: the function is given ``rng`` too, the generator of the strategy's so named.
            otherwise: stands in where one of ``models`` is not finite; without it the result is then itself not finite.
            leave_out: a model that is not finite is left out instead, as in ``mix``; ``otherwise`` stands in for none at all.
            size: how many numbers the function gives; None for a model. With a number it is given all models, finite or not.
            constants: what else the function is given; JSON-able.
        """
        self.compute("mix", len(models), self.setting.parameters)
        named = None if stream is None else (f"strategy/{stream[0]}", *stream[1:])
        how: dict[str, Any] = {"stream": named, "otherwise": otherwise, "leave_out": leave_out, "size": size}
        return self._dispatch.learner.apply(function, models, **how, **constants)

    @property
    def learns(self) -> bool:
        """Whether models have weights; not with ``learning = "off"``, where who decides by values must decide otherwise."""
        return self._dispatch.learner.learns

    async def value(self, model: Ref) -> NDArray[np.float32]:
        """The weights, flat, float32 [d]. Forces them to be computed."""
        return await self._dispatch.learner.value(model)

    async def values(self, models: Sequence[Ref]) -> list[NDArray[np.float32]]:
        """The weights of several models, computed together."""
        return await self._dispatch.learner.values(models)

    async def result(self, work: Future[T]) -> T:
        """What comes of work that goes on elsewhere, in a thread of the strategy's own; the clock stands still until then."""
        value: T = await self._dispatch.simulation.join(work)
        return value

    async def numbers(self, sent: Sequence[Lazy]) -> list[NDArray[np.float64]]:
        """Numbers that devices have sent, an array each; all of one kind.

        Raises:
            SimulationError: without learning there are none.
        """
        learner, refs = self._dispatch.learner, [content.ref for content in sent]
        if not sent:
            return []
        if not learner.learns:
            raise SimulationError(
                f'the strategy looks at {sent[0].what} that devices sent, but learning = "off" has none; set learning = "on"'
            )
        match sent[0].what:
            case "loss":
                await learner.values(refs)  # as one cohort
                losses = [await learner.train_loss([(ref, 1.0)]) for ref in refs]
                return [np.array([math.nan if loss is None else loss]) for loss in losses]
            case "losses":
                return await learner.losses(refs) or []
            case "choice":
                return [np.array([choice]) for choice in await learner.choices(refs) or []]
        return [value.astype(np.float64) for value in await learner.values(refs)]

    async def choices(self, sent: Sequence[Lazy]) -> list[int]:
        """The one whole number that each device has sent: which model it chose, say."""
        return [int(numbers[0]) for numbers in await self.numbers(sent)]

    async def train_loss(self, updates: Sequence[tuple[Ref, float]]) -> float | None:
        """The weighted mean of what devices report as their training loss; None where there is none."""
        return await self._dispatch.learner.train_loss(updates)

    async def test(self, model: Ref, devices: Sequence[int] | None = None) -> float | None:
        """Accuracy of a model on the pooled test samples of devices (None: all); None where nothing is measured.

        Moves no bytes and takes no time: a strategy whose devices report their accuracies asks them for that message too.
        """
        return await self._dispatch.evaluator.test(model, devices)

    # Randomness, records, the end.

    def rng(self, purpose: str, *ids: int) -> np.random.Generator:
        """A generator of the strategy's own, named by a purpose and counts."""
        return self._dispatch.streams.generator(f"strategy/{purpose}", *ids)

    def emit(self, kind: str, **data: Any) -> None:
        """Record something that the strategy decided."""
        self._dispatch.simulation.emit(kind, **data)

    def exchange(self, contents: Contents, sender: str, receiver: str) -> None:
        """Record that contents went from one part of the server's side to another, on no device's link and at once."""
        for part in self._dispatch.upload_payloads(contents):
            self.emit("server-transfer", purpose=part.purpose, bytes=float(part.bytes), sender=sender, receiver=receiver)

    def begin_round(self, number: int) -> None:
        """A round is about to begin: what is to happen to data in it happens now, once.

        Who then waits for a timer at ``now`` asks devices that know of their shift (``Strategy.on_shift``).
        """
        if self._dispatch.drift is not None:
            self._dispatch.drift.begin_round(number)

    def stop(self, reason: str) -> None:
        """End the run after this instant."""
        self._dispatch.simulation.stop(reason)

    async def finish_round(
        self, number: int, models: ModelAssignment, updates: Sequence[Measured] = (), **counts: float
    ) -> bool:
        """Record an aggregation: measure it when it is due, and end the run when a stop condition is met.

        Measuring takes no simulated time and moves no bytes.

        Args:
            number: the round that has just been aggregated, from 0.
            models: the strategy's models and the devices that each serves (None: all).
            updates: what was aggregated: for the training loss and the discrepancy.
            counts: ``selected``, ``valid``, ``slow``, ``disconnected``; ``epsilon`` where privacy is spent.

        Returns:
            Whether the run goes on.
        """
        evaluator, strategy = self._dispatch.evaluator, self._dispatch.strategy
        row = await evaluator.measure(number, models, updates, strategy)
        if cosines := await evaluator.cosines(number, updates, strategy):
            self.emit("cosines", round=number, **cosines)
        return self.note_round(number, row, **counts)

    def note_round(self, number: int, figures: Mapping[str, float | None], **counts: float) -> bool:
        """Record an aggregation whose figures were measured elsewhere, and end the run when a stop condition is met.

        Args:
            number: the round that has just been aggregated, from 0.
            figures: ``accuracy``, ``loss``, ``train_loss`` and other columns of the rounds' table; None where not measured.
            counts: see ``finish_round``.

        Returns:
            Whether the run goes on.
        """
        self.emit("round", round=number, **{**NOT_MEASURED, **figures}, **counts)
        reason = self._dispatch.evaluator.reason_to_stop(number, figures.get("accuracy"))
        if reason is not None:
            self.stop(reason)
        return self._dispatch.simulation.stopped is None
