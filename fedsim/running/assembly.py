"""Puts a scenario into a simulation: the one place where world, learning and strategy meet."""

import math
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError
from fedsim.common.streams import Streams
from fedsim.federation.client import RunInfo
from fedsim.federation.client_side import ClientSide
from fedsim.federation.codecs import Wire
from fedsim.federation.devices import Devices
from fedsim.federation.dispatch import Dispatch
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.evaluator import Evaluator, WorldView
from fedsim.federation.server import Server
from fedsim.learning import Learner
from fedsim.learning.architecture import LoRA, Tensor
from fedsim.learning.models import SizeOnly
from fedsim.records.schema import DEVICES, ROUNDS, with_columns
from fedsim.running.drift import Drift
from fedsim.strategies import strategy_class
from fedsim.strategies.round_params import RoundParams
from fedsim.world import columns
from fedsim.world.availability import Spans, changes, one_by_one
from fedsim.world.compute import Compute
from fedsim.world.device_kinds import Capacity, Rooflines, estimates
from fedsim.world.energy.batteries import Powered
from fedsim.world.life import TaskRunner
from fedsim.world.lifetimes import Lifetimes, bounded
from fedsim.world.messages import Messages
from fedsim.world.meters.base import Column, MeterContext
from fedsim.world.network import Network
from fedsim.world.processes import Processes

if TYPE_CHECKING:
    from fedsim.learning.data.federated import FederatedData
    from fedsim.running.sections import Sections


_ALL_DEVICES = 2_000  # up to so many, availability is recorded for every device
_MOST_CHANGES = 200_000  # takes a second or two to compute, and is more than pictures show


class Run:
    """The components of one run on the clock ``simulation``; ``learner`` replaces the scenario's
    learning.
    """

    def __init__(
        self, scenario: "Sections", simulation: Simulation, learner: type[Learner] | None = None
    ) -> None:
        self.scenario = scenario
        self.simulation = simulation
        simulation.env.declare_alarm("stop", self.stop_at)
        spec = scenario.population
        root = scenario.data.own_folder()
        streams = Streams(scenario.seed)
        capacity = spec.capacities(streams, root)
        # given rates take precedence
        links = None if scenario.network.has_device_rates and capacity.kinds else capacity.links
        self.network: Network = scenario.network.build(
            simulation, streams, spec.devices, links, root
        )
        self._build_learning(streams, learner)
        malicious = scenario.malicious
        members = [] if malicious is None else malicious.members(streams, spec.devices)
        if self.data is not None and malicious is not None and malicious.attack.flips_labels:
            self.data.flipping = frozenset(members)
        rooflines = self._rooflines(capacity)
        flops = self.learner.flops_per_sample
        self.population = spec.build(
            streams, capacity.speed, self.samples, flops, root, rooflines, capacity.flops()
        )
        self.population.batching = scenario.training.batching
        if not scenario.strategy.brings_learning:
            self.population.share_of = cache(
                lambda by, size: (
                    scenario.model.cut(by, size).flops(*self._shape_and_classes)
                    / self.learner.flops_per_sample
                )
            )
        paths = spec.paths(streams, root)
        lifetimes = self.population.arrival, self.population.departure
        availability = bounded(paths, *lifetimes)
        self._past: Spans = availability.spans  # the realised availability, for the run folder
        self._some_come_or_go = availability is not paths
        places = scenario.network.edge_servers or scenario.network.places
        context = MeterContext(
            spec.devices, places, streams, self.network.overhead, root, capacity.powers()
        )
        self.meters = scenario.meters_in(context)
        metrics = scenario.figures
        of_metrics = [Column(one.name, "", "a metric") for one in metrics]
        # refuses a duplicate column name
        with_columns(ROUNDS, [*of_metrics, *self.meters.columns("round")])
        with_columns(DEVICES, self.meters.columns("device"))
        batteries = None
        if scenario.energy is not None:
            meter = self.meters.of_sections["energy"]
            batteries = scenario.energy.batteries(
                meter, simulation, streams, self.population.arrival, root
            )
        if batteries is not None:
            availability = powered = Powered(availability, batteries)
            self._past = one_by_one(powered.past)
        self.metrics = metrics if self.learner.learns else []
        view = WorldView(self.present, self.truth, lambda: self.population.version)
        self.evaluator = Evaluator(
            self.learner, scenario.stop, scenario.evaluation, view, self.metrics
        )
        down, up = (
            Wire(codec, self.learner) for codec in (scenario.messages.down, scenario.messages.up)
        )
        devices = Devices(self.population, self.learner, self._label_counts, up)
        devices.clock = lambda: simulation.now
        devices.batteries = batteries
        if scenario.energy is not None and scenario.energy.preset is not None:
            names = scenario.energy.preset
            which = scenario.energy.preset_places(streams, spec.devices)
            devices.link_of = lambda device: names[which.item(device)]
        attack = None if malicious is None else malicious.attack
        envelopes = Envelopes(self.learner, down, up, devices, scenario.strategy.added_up)
        client_side = ClientSide(
            simulation, self.learner, envelopes, devices, scenario.training, attack, members
        )
        self.dispatch = dispatch = Dispatch(
            simulation,
            self.population,
            self.learner,
            streams,
            self.evaluator,
            scenario.server,
            envelopes,
            client_side,
        )
        self.messages = Messages(
            simulation, self.network, scenario.network.edge_servers, dispatch.on_edge_lost
        )
        compute = Compute(streams, spec.jitters(streams, root), spec.slow_phases, spec.devices)
        here = (self.messages, self.population, availability, compute)
        self.tasks = TaskRunner(
            *here, client_side.next_steps, dispatch.on_task_end, batteries, spec.host
        )
        setting = self._setting(capacity)
        strategy = strategy_class(scenario.strategy.kind)
        self.server = Server(dispatch, setting)
        self.strategy = strategy(scenario.strategy, self.server)
        client = strategy.client_half(scenario.strategy, setting)
        self.lifetimes = Lifetimes(
            simulation, *lifetimes, availability, partial(self.dispatch.tell, "newcomer")
        )
        self.drift: Drift | None = None
        if scenario.drift is not None and self.data is not None:
            scenario.drift.check(self.data)
            self.drift = Drift(scenario.drift, self.data, dispatch, self.present)
        self.check_sizes(self.learner)
        self.capacity = capacity
        self.processes = Processes(
            scenario.world.processes, streams, capacity, self.tasks, dispatch.on_switched_on
        )
        begin_round = None if self.drift is None else self.drift.begin_round
        dispatch.connect(self.tasks, self.messages, self.strategy, client, begin_round)
        scenario.strategy.check_samples(int(self.samples.max()))
        scenario.strategy.check_deadline(self._fastest_download_s())

    def _build_learning(self, streams: Streams, learner: type[Learner] | None) -> None:
        self.data: FederatedData | None
        self.learner: Learner
        self._tensors: Callable[[], Sequence[Tensor]] = tuple
        scenario = self.scenario
        root = self.scenario.data.own_folder()
        devices = self.scenario.population.devices
        # a sample costs as much as one of the reference model
        if scenario.strategy.brings_learning:
            self.data = None
            sizes = scenario.population.samples is not None
            self.samples = (
                scenario.population.sizes(streams, root)
                if sizes
                else np.zeros(devices, dtype=np.int64)
            )
            flops = scenario.population.reference_flops or 1.0
            model = SizeOnly.model_validate(
                {"kind": "size", "bytes": "4 B", "flops_per_sample": flops}
            )
            self.learner = Learner(model, (1,), 1)
            return
        if scenario.learning == "on" or scenario.population.samples is None:
            data = scenario.data.build(devices, streams)
            mapped = any(shard.label_map is not None for shard in data.shards)
            if mapped and (
                scenario.objective.kind != "classification" or data.pool.targets is not None
            ):
                kind = scenario.data.partition.kind
                raise ScenarioError(
                    f"data.partition.kind is {kind!r}, which maps labels, and models learn "
                    "other targets here"
                )
            if scenario.strategy.needs_labels and not data.pool.labelled:
                raise ScenarioError(
                    f"strategy.kind is {scenario.strategy.kind!r}, which goes by labels, and "
                    "the data have none; allowed with "
                    "data.column"
                )
            data.pool = scenario.objective.fitted(data.pool, streams)
            self.data = data
            self.samples = data.train_sizes()
            shape = data.pool.shape
            classes = data.pool.outputs or data.pool.classes
        else:
            self.data = None
            self.samples = scenario.population.sizes(streams, root)
            shape, classes = scenario.objective.sizes(*scenario.data.shape_and_classes())
        self._shape_and_classes = shape, classes
        self._tensors = cache(partial(scenario.model.tensors, shape, classes))
        if scenario.learning == "on" and learner is None:
            from fedsim.learning.engine import Learning  # loads torch

            self.learner = Learning(
                self.simulation,
                scenario.model,
                scenario.training,
                data,
                streams,
                root,
                scenario.objective,
            )
        else:
            self.learner = (learner or Learner)(scenario.model, shape, classes)
        if scenario.training.state == "sent":
            trained = {one.name: one.shape for one in self._tensors() if not one.is_buffer}
            shapes = trained or {"": (int(self.learner.parameters),)}
            self.learner.state_bytes = 4.0 * scenario.training.state_numbers(shapes)

    def _rooflines(self, capacity: Capacity) -> Rooflines | None:
        """Roofline model of training times for the scenario's model; None where devices have no
        kinds.
        """
        if capacity.which is None or self.scenario.strategy.brings_learning:
            return None
        model = self.scenario.model
        training = self.scenario.training
        asked = (*self._shape_and_classes, training, self.scenario.objective)
        costs = (
            model.cost(*asked),
            training.batching,
            lambda by, size: model.cut(by, size).cost(*asked),
        )
        return Rooflines(capacity.kinds, capacity.which, *costs)

    def _setting(self, capacity: Capacity) -> RunInfo:
        scenario = self.scenario
        lora: LoRA | None = getattr(scenario.model, "lora", None)
        return RunInfo(
            devices=scenario.population.devices,
            parameters=int(self.learner.parameters),
            classes=len(self._label_counts(0, None)),
            mean_epoch_s=self.population.mean_epoch_s(scenario.strategy.mean_epoch_over),
            lr_in=scenario.training.lr_in,
            planned_rounds=scenario.stop.rounds,
            momentum=scenario.training.sgd.momentum,
            tensors=self._tensors,
            keeps=scenario.model.says_what_stays,
            cut=cache(
                lambda by, size: scenario.model.cut(by, size).tensors(*self._shape_and_classes)
            ),
            adapter_scale=1.0 if lora is None else lora.alpha / lora.rank,
            kinds=capacity.names,
            kind_of=capacity.name,
        )

    def check_sizes(self, learner: Learner) -> None:
        """Raise ``ScenarioError`` for a device on whose samples, now or after a shift,
        ``learner`` cannot train.
        """
        data = self.data
        drift = self.scenario.drift
        stop = self.scenario.stop
        if data is None or not learner.needs_sizes:
            return
        if drift is None:
            learner.check_sizes(dict(enumerate(data.train_sizes().tolist())))
            return
        streams = Streams(self.scenario.seed)
        stays = not self._some_come_or_go
        for sizes in drift.foreseen(
            data, streams, stop.rounds, stop.simulated_time, all_present=stays
        ):
            learner.check_sizes(sizes)

    def stop_at(self, number: int, when: float) -> None:
        """Set the alarm ``number`` that ends the run at a simulated time (s)."""
        self.simulation.wake(("stop", number), when, lambda: self.simulation.stop("simulated time"))

    def present(self) -> NDArray[np.bool_] | None:
        """Devices that have arrived and not left, bool [devices]; None if all are present
        throughout.
        """
        return self.lifetimes.present(self.simulation.now) if self._some_come_or_go else None

    def truth(self) -> NDArray[np.int64] | None:
        """The true group of the data that each device holds now, int64 [devices], where the
        generator knows it.
        """
        return None if self.data is None else self.data.truth

    def _label_counts(self, device: int, version: int | None) -> NDArray[np.int64]:
        if self.data is None:  # without data all samples count as one class
            return self.population.samples[device : device + 1]
        shard = self.data.current(device) if version is None else self.data.shard(device, version)
        return self.data.label_counts(shard)

    async def model_tensors(self) -> dict[str, dict[str, NDArray[Any]]]:
        """Current models of the strategy: file name -> named tensors; those of a family are
        named ``number/tensor``.
        """
        files = {name: dict(tensors) for name, tensors in self.strategy.tensors().items()}
        if not self.learner.learns:
            return files
        for name, (model, _) in self.strategy.models().items():
            family, _, member = name.partition("/")
            for tensor, values in self.learner.tensors(await self.learner.value(model)).items():
                files.setdefault(family, {})[f"{member}/{tensor}" if member else tensor] = values
        return files

    def device_columns(self) -> dict[str, Any]:
        """The content of ``devices.parquet``; of large populations only devices that were asked."""
        population = self.population
        network = self.network
        devices = self._devices_with(columns.MANY)
        numbers = devices.tolist()
        measured = {} if self.evaluator.last is None else self.evaluator.last.device_accuracy()
        shards = None if self.data is None else [self.data.current(device) for device in numbers]
        return {
            "device": devices,
            "speed": population.speed[devices],
            "link_down": network.access["down"][devices],
            "link_up": network.access["up"][devices],
            "latency": network.latencies[devices],
            "samples": population.samples[devices],
            "test_samples": columns.alike(0, len(devices))
            if shards is None
            else [len(shard.test) for shard in shards],
            "arrival": population.arrival[devices],
            "departure": population.departure[devices],
            "group": self.strategy.groups_of(numbers),
            "selected": [self.tasks.times_selected.get(device, 0) for device in numbers],
            "accuracy": [measured.get(device) for device in numbers]
            if measured
            else [None] * len(devices),
        }

    @property
    def estimates(self) -> str:
        """Text that names the unmeasured figures of device kinds on which times or joules
        depend.
        """
        given = self.scenario
        energy = given.energy is not None and given.energy.preset is None
        return estimates(
            self.capacity.names, links=not given.network.has_device_rates, energy=energy
        )

    @property
    def at_once(self) -> int:
        """Devices that work at a time, at most."""
        params = self.scenario.strategy
        devices = self.scenario.population.devices
        if isinstance(params, RoundParams):
            return min(params.cohort_size(devices), devices)
        return min(getattr(params, "concurrency", devices), devices)

    @property
    def rules(self) -> list[str]:
        """Lines about rules fitted to measurements that this run follows: the domain and the
        error of each.
        """
        network = self.scenario.network
        rooflines = self.population.rooflines
        of_training = [] if rooflines is None else rooflines.rules()
        return [*network.rules(), *network.protocol.rules(), *of_training]

    @property
    def outside_of_rules(self) -> list[str]:
        """Lines about what lies outside of the domain in which such a rule was fitted."""
        network = self.scenario.network
        rooflines = self.population.rooflines
        of_training = []
        if rooflines is not None:
            of_training = rooflines.outside_of_rules(math.prod(self._shape_and_classes[0]))
        return [
            *network.outside_of_rules(),
            *network.protocol.outside_of_rules(self.at_once),
            *of_training,
        ]

    @property
    def tells_all_devices(self) -> bool:
        return self.scenario.population.devices <= columns.MANY

    def _devices_with(self, most: int) -> NDArray[np.int64]:
        """All devices if there are at most ``most``, else those ever asked; int64, ascending."""
        count = self.scenario.population.devices
        asked = self.tasks.times_asked
        return np.arange(count) if count <= most else np.array(sorted(asked), dtype=np.int64)

    def availability_columns(self, end: float) -> dict[str, NDArray[Any]]:
        """The content of ``availability.parquet`` up to ``end`` (s); for large populations, of
        devices ever asked.
        """
        return changes(self._past, self._devices_with(_ALL_DEVICES), end, _MOST_CHANGES)

    def _fastest_download_s(self) -> float:
        near = self.scenario.strategy.at_edges
        size = self.dispatch.down.model_bytes + self.learner.base_bytes
        pieces = columns.pieces(self.scenario.population.devices)
        return min(
            float(self.network.all_alone_s("down", size, near=near, devices=piece).min())
            for piece in pieces
        )


def assemble(
    scenario: "Sections", simulation: Simulation, learner: type[Learner] | None = None
) -> Run:
    """Build ``scenario`` into ``simulation``, ready to run; raises ``ScenarioError`` or
    ``DataError`` if it cannot be built.
    """
    run = Run(scenario, simulation, learner)
    if (stop_at := scenario.stop.simulated_time) is not None:
        simulation.end = stop_at
        run.stop_at(0, stop_at)
    simulation.at_end(lambda: run.tasks.end_all("stopped"))
    simulation.at_end(run.messages.end_all)
    if run.tasks.batteries is not None:
        simulation.at_end(run.tasks.batteries.close)
    simulation.at_end(
        lambda: simulation.emit("run-end", reason=simulation.stopped or "nothing left to happen")
    )
    simulation.at_close(run.strategy.on_end)
    simulation.post(run.dispatch.start)
    return run
