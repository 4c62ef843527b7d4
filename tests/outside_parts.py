"""One part of each family as an outsider writes it from the docs, with the names of
``fedsim.plugin`` alone.

``tests/test_outside_parts.py`` runs each, all of them together, and as an installed package that
registers each by name.
"""

import math
from collections.abc import Generator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from pydantic import Field

from fedsim import plugin as fed


class RingParams(fed.StrategyParams):
    """Keys of ``Ring``."""

    share: float = Field(default=0.5, gt=0.0, le=1.0)
    """share of the clients whose data are probed that train."""
    patience: fed.PositiveSeconds = 60.0
    """time of a round (s)."""
    selection: fed.SelectionSpec


class RingClient(fed.Client[RingParams]):
    """Tests the model in a probe; trains otherwise, and reports its loss."""

    def work(self, device: fed.Device, instruction: fed.Instruction) -> Sequence[Any]:
        """A probe is a test of the received model."""
        if instruction.job == "probe":
            return (fed.Evaluate((instruction["model"],)),)
        return super().work(device, instruction)

    def reply(
        self, device: fed.Device, instruction: fed.Instruction, result: fed.LocalResult
    ) -> fed.Contents | None:
        """The loss of the model as it came, or the update with the loss of its training."""
        if instruction.job == "probe":
            assert result.tested is not None
            return {"losses": fed.Lazy("losses", result.tested)}
        if result.update is None:
            return None
        return {
            "update": result.update,
            "samples": fed.Header(result.samples),
            "loss": fed.Lazy("loss", result.update),
        }


class Ring(fed.Strategy[RingParams]):
    """From scratch: probes ten clients, trains those with the highest losses, and averages;
    probes belong to no round.
    """

    Params = RingParams
    Client = RingClient

    async def on_start(self) -> None:
        """Makes the first model."""
        self.state |= {
            "round": 0,
            "model": self.server.models.initial(),
            "open": {},
            "losses": {},
            "received": [],
        }
        self.probe()

    def probe(self) -> None:
        """Asks candidates for their losses."""
        state, server = self.state, self.server
        number = state["round"]
        state |= {"losses": {}, "received": [], "lost": 0, "late": 0, "selected": 0}
        server.begin_round(number)
        selection = self.params.selection
        devices = selection.select(server, self.remembered("selection"), 10, (number,))
        state["open"] = {
            server.ask(device, {"model": state["model"]}, "probe"): device for device in devices
        }
        if not devices:
            server.look_again("probe", 30.0)

    async def on_timer(self, name: str) -> None:
        """Looks for clients again, or closes the round."""
        if name == "probe":
            self.probe()
        for task in list(self.state["open"]) if name == "close" else []:
            self.server.end(task, "late")

    async def on_task_end(self, message: fed.TaskEnd) -> None:
        """A probe or a training has ended."""
        state = self.state
        del state["open"][message.task]
        if message.job == "probe":
            if message.outcome == "done":
                state["losses"][message.device] = message["losses"]
            if not state["open"]:
                await self.train()
            return
        if message.outcome == "done" and "update" in message.contents:
            state["received"].append(
                [message.device, message["update"], message["samples"], message["loss"]]
            )
        elif message.outcome == "lost":
            state["lost"] += 1
        else:
            state["late"] += 1
        if not state["open"]:
            await self.close()

    async def train(self) -> None:
        """Asks the clients with the highest losses."""
        state, server = self.state, self.server
        devices = [device for device in state["losses"] if server.clients.idle(device)]
        if server.models.learns:
            losses = await server.models.numbers([state["losses"][device] for device in devices])
            order = np.argsort([-loss[0] for loss in losses], kind="stable")
            devices = [devices[place] for place in order.tolist()]
        devices = devices[: math.ceil(self.params.share * len(devices))]
        for device in devices:
            task = server.ask(device, {"model": state["model"]}, round=state["round"])
            state["open"][task] = device
        state["selected"] = len(devices)
        if devices:
            server.timer("close", server.now + self.params.patience)
        else:
            server.look_again("probe", 30.0)

    async def close(self) -> None:
        """The mean, weighted by samples, is the next model."""
        state, server = self.state, self.server
        server.cancel_timer("close")
        before, received = state["model"], state["received"]
        parts = [(update, float(samples)) for _, update, samples, _ in received]
        total = sum(weight for _, weight in parts)
        if parts:
            shares = [(update, weight / total) for update, weight in parts]
            state["model"] = server.models.mix(shares, otherwise=before)
        if server.models.learns and received:
            losses = await server.models.numbers([loss for *_, loss in received])
            server.emit(
                "reported", round=state["round"], losses=[float(loss[0]) for loss in losses]
            )
        updates = [
            fed.Measured(update, float(samples), before, state["model"], device)
            for device, update, samples, _ in received
        ]
        counts = {"selected": state["selected"], "valid": len(received)}
        counts |= {"slow": state["late"], "disconnected": state["lost"]}
        if await server.finish_round(state["round"], self.models(), updates, **counts):
            state["round"] += 1
            self.probe()

    def models(self) -> Mapping[str, tuple[fed.Ref, Sequence[int] | None]]:
        return {"global": (self.state["model"], None)}


class TrickleParams(fed.StrategyParams):
    """Keys of ``Trickle``."""

    local_epochs: int = Field(default=1, ge=1)
    clients: int = Field(default=5, ge=1)
    """clients at work."""


class Trickle(fed.Strategy[TrickleParams]):
    """From scratch, without rounds: each update moves the model by a tenth, and its client
    trains again.
    """

    Params = TrickleParams

    async def on_start(self) -> None:
        self.state |= {
            "version": 0,
            "model": self.server.models.initial(),
            "open": [],
            "over": False,
            "draws": 0,
        }
        self.refill()

    def refill(self) -> None:
        """Asks new clients in place of those that have ended."""
        state, server = self.state, self.server
        for device in server.clients.sample(
            self.params.clients - len(state["open"]), "trickle", state["draws"]
        ):
            state["open"].append(
                server.ask(device, {"model": state["model"]}, round=state["version"])
            )
        state["draws"] += 1
        if not state["open"]:
            server.look_again("refill", 60.0)

    async def on_timer(self, name: str) -> None:
        """Looks for clients again."""
        if not self.state["over"]:
            self.refill()

    async def on_task_end(self, message: fed.TaskEnd) -> None:
        state, server = self.state, self.server
        state["open"].remove(message.task)
        update = message.contents.get("update")
        if update is not None and not state["over"]:
            state["model"] = server.models.mix(
                [(state["model"], 0.9), (update, 0.1)], otherwise=state["model"]
            )
            updates = [fed.Measured(update, float(message["samples"]), device=message.device)]
            state["over"] = not await server.finish_round(state["version"], self.models(), updates)
            state["version"] += 1
        if not state["over"]:
            server.timer("refill", server.now)

    def models(self) -> Mapping[str, tuple[fed.Ref, Sequence[int] | None]]:
        return {"global": (self.state["model"], None)}


class HalvingParams(fed.AggregatingParams):
    """Keys of ``Halving``."""

    least: int = Field(default=2, ge=1)
    """clients of the smallest cohort."""


class Halving(fed.Synchronous[HalvingParams]):
    """In rounds: the cohort is halved every other round.

    Written on ``Synchronous``, without FedAvg.
    """

    Params: ClassVar[type[fed.RoundParams]] = HalvingParams

    async def on_start(self) -> None:
        """Makes the first model, before the first round opens."""
        self.state["model"] = self.server.models.initial()
        await super().on_start()

    def select(self) -> list[int]:
        """Fewer clients every other round."""
        count = self.params.clients_per_round // 2 ** (self.state["round"] // 2)
        return self.pick(max(count, self.params.least))

    def contents(self, device: int) -> fed.Contents:
        return {"model": self.state["model"]}

    async def aggregate(self) -> None:
        """By the scenario's aggregation and server optimiser."""
        if self.state["received"]:
            self.state["model"] = await self.next_model(self.state["model"], self.state["received"])

    def center(self, entry: dict[str, Any]) -> fed.Ref | None:
        center: fed.Ref = self.state["model"]
        return center

    def models(self) -> Mapping[str, tuple[fed.Ref, Sequence[int] | None]]:
        return {"global": (self.state["model"], None)}


class FreshParams(fed.FedBuffParams):
    """Keys of ``Fresh``."""

    kind: str = "fresh"  # type: ignore[assignment]
    half_life: float = Field(default=2.0, gt=0.0)
    """staleness at which an update counts half."""


class Fresh(fed.FedBuff):
    """FedBuff whose weights halve with staleness."""

    Params = FreshParams

    async def receive(self, message: fed.TaskEnd, base: fed.Ref, staleness: int) -> None:
        """Buffers an update, and publishes a full buffer."""
        assert isinstance(self.params, FreshParams)
        weight = 0.5 ** (staleness / self.params.half_life) / self.params.buffer
        buffer = self.state["buffer"]
        buffer.append(self.entry(message, base) | {"weight": weight, "staleness": staleness})
        if len(buffer) < self.params.buffer:
            return
        mix, model = self.server.models.mix, self.state["model"]
        changes = [
            (mix([(each["update"], 1.0), (each["base"], -1.0)]), each["weight"]) for each in buffer
        ]
        self.state["buffer"] = []
        await self.publish(mix([(model, 1.0), *changes], otherwise=model, rescale=False), buffer)


class Turns(fed.Selection):
    """Devices in turn, by their numbers."""

    def select(
        self,
        server: fed.Server,
        state: dict[str, Any],
        count: int,
        ids: tuple[int, ...],
        among: list[int] | None = None,
    ) -> list[int]:
        online = (
            server.clients.idle_devices()
            if among is None
            else [device for device in among if server.clients.idle(device)]
        )
        turn = state.get("turn", 0)
        chosen = sorted(online, key=lambda device: (device < turn, device))[:count]
        state["turn"] = chosen[-1] + 1 if chosen else turn
        return chosen


class Geometric(fed.Aggregation):
    """The mean weighted by the square roots of samples."""

    def weights(self, entries: Sequence[dict[str, Any]]) -> list[float]:
        """Square roots of samples, as shares."""
        roots = [math.sqrt(entry["samples"]) for entry in entries]
        return [root / sum(roots) for root in roots] if sum(roots) else super().weights(entries)


class Ramp(fed.ServerOptimizer):
    """Steps that begin small and grow."""

    growth: float = Field(default=0.5, gt=0.0, le=1.0)
    """share of what is missing to a whole step that each round adds."""

    def step(
        self, server: fed.Server, state: dict[str, Any], model: fed.Ref, aggregated: fed.Ref
    ) -> fed.Ref:
        rate = state.get("rate", 0.0) + self.growth * (1 - state.get("rate", 0.0))
        state["rate"] = rate
        return server.models.mix([(model, 1 - rate), (aggregated, rate)], otherwise=model)


@fed.pure
def rounded(models: list[Any], bits: int) -> Any:
    """Numbers with fewer bits after the point."""
    return (np.rint(models[0] * 2.0**bits) / 2.0**bits).astype(np.float32)


class Bits(fed.Codec):
    """So many bits after the point; two bytes a number, and a fixed head."""

    bits: int = Field(default=10, ge=1, le=14)
    head: fed.Bytes = 64.0
    """bytes of the head."""

    def bytes(self, parameters: int) -> float:
        return 2 * parameters + self.head

    def code(
        self,
        arithmetic: fed.Arithmetic,
        parameters: int,
        value: fed.Ref,
        base: fed.Ref | None,
        kept: fed.Ref | None,
    ) -> fed.Coded:
        return fed.Coded(arithmetic.apply(rounded, [value], bits=self.bits))


class Shrinking(fed.Deadline):
    """A time that shrinks with each round in which all were in time."""

    first: fed.PositiveSeconds
    """time of the first round (s)."""

    def least_s(self) -> float:
        return self.first

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        """Nine tenths of the last one if nobody was late."""
        factor = 1.0 if state.get("late", True) else 0.9
        state["limit"] = factor * state.get("limit", self.first)
        state["late"] = False
        return float(state["limit"])

    def on_task_end(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        """Notes that somebody was late."""
        state["late"] = state.get("late", False) or not in_time


class Signs(fed.Trainer):
    """Steps along the sign of the gradient."""

    applies_terms: ClassVar[bool] = True

    def train(
        self, model: torch.nn.Module, data: fed.LocalData, context: fed.TrainingContext
    ) -> tuple[Mapping[str, torch.Tensor], Mapping[str, float]]:
        parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
        for x, y in data:
            gradients = torch.autograd.grad(context.loss(model(x), y), parameters)
            with torch.no_grad():
                for parameter, gradient in zip(parameters, gradients, strict=True):
                    parameter -= 0.05 * context.lr * torch.sign(gradient)
        return model.state_dict(), {}


class Spirals(fed.Source):
    """Points on the arms of a spiral."""

    arms: int = Field(default=4, ge=2)

    def load(self, root: Path | None) -> fed.Raw:
        """The same points in every run."""
        draw = np.random.default_rng(7)
        y = np.arange(1200) % self.arms
        radius = draw.uniform(0.2, 1.0, 1200)
        angle = 2 * np.pi * (y / self.arms + radius) + draw.normal(scale=0.1, size=1200)
        x = np.stack([radius * np.cos(angle), radius * np.sin(angle)], axis=1).astype(np.float32)
        return fed.Raw("spirals", x[200:], y[200:], x[:200], y[:200], classes=self.arms, peak=1.0)

    def shape_and_classes(self, root: Path | None) -> tuple[tuple[int, ...], int]:
        return (2,), self.arms


class Alternating(fed.Partition):
    """Device d has samples of the labels d and d + 1, in turn with the others that have them."""

    def split(self, dataset: fed.Dataset, devices: int, streams: fed.Streams) -> fed.FederatedData:
        """Deals each label to its devices."""
        train = self._deal(dataset, dataset.train, devices)
        test = self._deal(dataset, dataset.test, devices)
        return fed.federated(dataset, train, test)

    @staticmethod
    def _deal(dataset: fed.Dataset, index: Any, devices: int) -> list[Any]:
        parts: list[list[Any]] = [[] for _ in range(devices)]
        labels = dataset.by_class(index)
        for label, samples in enumerate(labels):
            holders = [
                device
                for device in range(devices)
                if label in (device % len(labels), (device + 1) % len(labels))
            ]
            for place, device in enumerate(holders):
                parts[device].append(samples[place :: len(holders)])
        return [np.concatenate(part) for part in parts]


class Rotate(fed.Shift):
    """Each candidate takes over the data of the next one."""

    def apply(
        self, data: fed.FederatedData, occasion: int, candidates: Any, streams: fed.Streams
    ) -> list[fed.Change]:
        devices = sorted(candidates.tolist())
        shards = [data.current(device) for device in devices]
        return [
            fed.Change(device, data.replace_shard(device, shards[(place + 1) % len(shards)]))
            for place, device in enumerate(devices)
        ]


class Flips(fed.Attack):
    """Sends the update on the other side of its start."""

    def update(
        self, arithmetic: fed.Arithmetic, update: fed.Ref, start: fed.Ref, stream: Sequence[Any]
    ) -> fed.Ref:
        """Twice the start minus the update."""
        return arithmetic.mix([(start, 2.0), (update, -1.0)])


class BlinkingPaths(fed.Availability):
    """On and off in turn; odd devices the other way round."""

    def __init__(self, length: float) -> None:
        self._length = length

    def span(self, device: int, time: float) -> fed.Span:
        count = int(time // self._length)
        if (count + 1) * self._length <= time:  # the quotient is rounded down to the phase before
            count += 1
        return fed.Span((count + device) % 3 != 0, count * self._length, (count + 1) * self._length)


class Blinking(fed.AvailabilityModel):
    """A third of the devices is away at any time."""

    phase: fed.PositiveSeconds = 40.0

    def build(self, streams: fed.Streams, devices: int, root: Path | None) -> BlinkingPaths:
        return BlinkingPaths(self.phase)


class Masts(fed.Network):
    """Devices share the mast of their number."""

    def __init__(self, *arguments: Any, masts: int) -> None:
        super().__init__(*arguments)
        self._masts = masts

    def route(self, source: int, destination: int) -> tuple[str, ...]:
        return tuple(
            f"mast {end % self._masts}" for end in (source, destination) if end != fed.SERVER
        )


class MastsSpec(fed.NetworkModel):
    """Devices behind masts."""

    masts: int = Field(default=2, ge=1)
    rate: fed.LinkRate = 1e6
    """rate of a mast, both ways together."""

    def build(
        self,
        simulation: Any,
        streams: fed.Streams,
        devices: int,
        rates: Any = None,
        root: Path | None = None,
    ) -> Masts:
        links = {f"mast {mast}": self.rate for mast in range(self.masts)}
        columns = self.columns(streams, devices, rates, root)
        return Masts(
            simulation, links, *columns, fed.Transport(self.protocol, streams), masts=self.masts
        )


class Padded(fed.Protocol):
    """Half as many bytes again on the wire."""

    header: fed.Bytes = 724.0


class Beacon(fed.Process):
    """A device sends a short message to the server from time to time."""

    restorable = True
    device: int = 0
    every: fed.PositiveSeconds = 20.0
    size: fed.Bytes = 100.0

    def run(self, world: fed.World) -> Generator[Any, Any, Any]:
        while True:
            due = world.state.setdefault("due", self.every)
            yield world.until(due)
            world.state["due"] = due + self.every
            world.emit("beacon", device=self.device)


class Trips(fed.Meter):
    """Messages of each device."""

    entry = "trips"
    device_columns = (fed.Column("trips", "", "messages that the device sent or received"),)

    def __init__(self, context: fed.MeterContext, least: fed.Bytes = 0.0) -> None:
        self.trips = np.zeros(context.devices)
        self.least = least

    def on_transfer(self, ended: fed.Transfer) -> None:
        if ended.device is not None and ended.bytes >= self.least:
            self.trips[ended.device] += 1

    def of_devices(self) -> dict[str, Any]:
        return {"trips": self.trips}


class Steps(fed.Distribution):
    """Speeds in even steps."""

    kind: str
    slowest: fed.SamplesPerSecond
    step: fed.SamplesPerSecond

    def draw(self, generator: np.random.Generator, size: int) -> Any:
        """One step more for each device."""
        return self.slowest + self.step * np.arange(size)
