"""Builds a simulation of world, learning and strategy from a scenario."""

import math
from collections.abc import Collection
from functools import cache, partial
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import Simulation
from fedsim.common.arrays import AnyArray
from fedsim.common.model_cost import ModelCost
from fedsim.common.streams import Streams
from fedsim.common.training import CutBy, ModelCut
from fedsim.federation.client import RunInfo
from fedsim.federation.client_halves import ClientHalves
from fedsim.federation.client_side import ClientSide
from fedsim.federation.devices import Devices
from fedsim.federation.direction_codec import DirectionCodec
from fedsim.federation.dispatch import Dispatch
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.evaluator import Evaluator, WorldView
from fedsim.federation.fewer_layers import FewerLayers
from fedsim.federation.local_trainings import LocalTrainings
from fedsim.federation.notices import NoticeKind
from fedsim.federation.server import Server
from fedsim.federation.stop_rules import StopRules
from fedsim.federation.unseen import COLUMNS
from fedsim.learning import Learner
from fedsim.learning.architecture import LoRA, layers_of
from fedsim.records.schema import DEVICES, OWN_TRAINING, ROUNDS, with_columns
from fedsim.running.drift import Drift
from fedsim.running.learning import LearningBuilder
from fedsim.running.own_training import check_epochs, own_columns
from fedsim.strategies import strategy_class
from fedsim.strategies.round_params import RoundParams
from fedsim.world import columns
from fedsim.world.availability import Spans, changes, one_by_one
from fedsim.world.batteries import Batteries
from fedsim.world.build import WorldBuilder
from fedsim.world.device_kinds import Capacity, estimates
from fedsim.world.meters.base import Column, MeterContext
from fedsim.world.network import Network
from fedsim.world.network.traces import TraceColumns
from fedsim.world.rooflines import Rooflines

if TYPE_CHECKING:
    from fedsim.running.sections import Sections
    from fedsim.toolbox.attacks import Attack


# largest population for which the availability of all devices is recorded; in a larger one, only
# the availability of devices that were sent a task
_MOST_RECORDED = 2_000
_MOST_CHANGES = 200_000  # greatest count of recorded changes of availability


class Run:
    """All objects that take part in a run: devices, network, data, learner and strategy.

    The constructor builds them. ``Simulation`` then runs the strategy with them, event by event.

    Args:
        scenario: the validated scenario.
        simulation: the clock.
        learner: class of the object that trains and tests models, instead of the scenario's; None
            to train and test as the scenario says.

    Raises:
        ScenarioError, DataError: the run cannot be built.
    """

    envelopes_type: ClassVar[type[Envelopes]] = Envelopes
    """Class that builds the messages of tasks; a deployment replaces it."""

    def __init__(
        self, scenario: "Sections", simulation: Simulation, learner: type[Learner] | None = None
    ) -> None:
        self.scenario = scenario
        self.simulation = simulation
        # by this declaration, a resumed run can set the alarm of its end again
        simulation.env.declare_alarm("stop", self.stop_at)
        self._root = scenario.data.own_folder()  # folder to which the scenario's paths are relative
        self._streams = Streams(scenario.seed)
        self._world = WorldBuilder(
            simulation, self._streams, scenario.population, scenario.network, self._root
        )
        self.network: Network = self._world.network
        self.capacity = self._world.capacity  # speeds, links and kinds of devices
        # each stage needs the objects that earlier stages have built
        self._build_learning(learner)
        self._choose_malicious()
        self._build_devices()
        self._build_meters()
        self._build_batteries()
        self._build_evaluator()
        self._build_messages()
        self._build_tasks()
        self._build_strategy()
        self._connect()
        self._build_changes()
        self._check()

    # stages of building, in the order of the constructor

    def _choose_malicious(self) -> None:
        """Choose the devices that attack; if the attack flips labels, mark their data for it."""
        scenario = self.scenario
        self._malicious: Collection[int] = []
        self._attack: Attack | None = None
        if scenario.malicious is None:
            return
        self._attack = scenario.malicious.attack
        self._malicious = scenario.malicious.members(self._streams, scenario.population.trainable)
        if self.data is not None and self._attack.flips_labels:
            self.data.flipping = frozenset(self._malicious)

    def _build_devices(self) -> None:
        scenario = self.scenario
        self._world.build_devices(
            self.samples, self.learner.flops_per_sample, self._rooflines(self.capacity)
        )
        self.population = self._world.population
        self.population.batching = scenario.training.batching
        if not scenario.strategy.traits.brings_learning:
            self.population.share_of = cache(self._relative_cost)
        # intervals of availability so far, which the run folder gets
        self._past_spans: Spans = self._world.availability.spans

    def _relative_cost(self, by: CutBy, size: float) -> float:
        """Return the FLOPs of a sample in a smaller model as a share of the whole model's FLOPs.

        Args:
            by: the way in which the smaller model is cut out of the whole one: ``width``, ``rank``
                or ``adapters``.
            size: share of channels (0..1) for ``width``; rank of the adapters for ``rank`` and
                ``adapters``.
        """
        smaller = self.scenario.model.cut(by, size)
        return smaller.flops(*self._shape_and_classes) / self.learner.flops_per_sample

    def _build_meters(self) -> None:
        """Build the meters, such as the meter of energy, and check their columns' names.

        A meter counts a quantity, and adds columns to the tables of rounds and of devices. Two
        columns of a table must not have the same name.
        """
        scenario = self.scenario
        context = MeterContext(
            devices=scenario.population.devices,
            places=scenario.network.edge_servers or scenario.network.places,
            streams=self._streams,
            overhead=self.network.overhead,
            folder=self._root,
            powers=self.capacity.powers(),
        )
        self.meters = scenario.meters_in(context)

        metrics = scenario.figures
        test_columns = [Column(metric.name, "", "a metric") for metric in metrics]
        if scenario.population.tested_only is not None:  # some devices are tested but never train
            test_columns += [Column(name, "", text) for name, text in COLUMNS.items()]
        local_columns: list[Column] = []
        if scenario.population.local is not None:
            local_columns = [*OWN_TRAINING.values()]
        # both calls refuse a duplicate column name
        with_columns(ROUNDS, [*test_columns, *self.meters.columns("round")])
        with_columns(DEVICES, [*local_columns, *self.meters.columns("device")])
        # no model is tested unless the learner computes weights
        self.metrics = metrics if self.learner.learns else []
        self.test_columns = test_columns if self.learner.learns else []

    def _build_batteries(self) -> None:
        self._batteries: Batteries | None = None
        energy = self.scenario.energy
        if energy is None:
            return
        self._batteries = energy.batteries(
            self.meters.of_sections["energy"],
            self.simulation,
            self._streams,
            self.population.arrival,
            self._root,
        )
        if self._batteries is not None:
            # a device with an empty battery is also unavailable
            powered = self._world.add_batteries(self._batteries)
            self._past_spans = one_by_one(powered.phase_at)

    def _build_evaluator(self) -> None:
        scenario = self.scenario
        world_view = WorldView(self.present, self.truth, lambda: self.population.version)
        never_training = range(scenario.population.trainable, scenario.population.devices)
        self.local = LocalTrainings(self.population.own, scenario.training)
        self.ending = StopRules(
            scenario.stop,
            self.metrics,
            has_accuracy=scenario.objective.has_accuracy,
            keeps_best=scenario.evaluation.keep_best,
        )
        self.evaluator = Evaluator(
            self.learner,
            self.ending,
            scenario.evaluation,
            world_view,
            self.metrics,
            self.local,
            unseen=never_training,
        )

    def _build_messages(self) -> None:
        """Build the parts that exchange messages: codecs, ``Dispatch`` and ``ClientSide``.

        ``Dispatch`` sends and receives for the server, ``ClientSide`` for the devices.
        """
        scenario = self.scenario
        down = DirectionCodec(scenario.messages.down, self.learner)
        up = DirectionCodec(scenario.messages.up, self.learner)
        devices = Devices(self.population, self.learner, self._label_counts, up)
        devices.clock = lambda: self.simulation.now
        devices.batteries = self._batteries
        energy = scenario.energy
        if energy is not None and energy.preset is not None:  # a preset such as ``smartphone-4g``
            presets = energy.preset
            preset_of_device = energy.draw_presets(self._streams, scenario.population.devices)
            devices.link_of = lambda device: presets[preset_of_device.item(device)]
        envelopes = self.envelopes_type(
            self.learner, down, up, devices, scenario.strategy.traits.accumulated_contents
        )
        self._client_side = ClientSide(
            self.simulation,
            self.learner,
            envelopes,
            devices,
            scenario.training,
            self.local,
            self.fewer_layers,
            self._attack,
            self._malicious,
        )
        self.dispatch = Dispatch(
            self.simulation,
            self.population,
            self.learner,
            self._streams,
            scenario.server,
            envelopes,
            self._client_side,
        )

    @property
    def fewer_layers(self) -> FewerLayers | None:
        """Rule by which a device trains only the last layers that fit into its memory.

        None if a training that does not fit fails instead (``population.short_of_memory``).
        """
        if self.scenario.population.short_of_memory != "fewer-layers":
            return None
        return FewerLayers(self.population, self._tensors)

    def _build_tasks(self) -> None:
        dispatch = self.dispatch
        self._world.build_tasks(
            dispatch.on_edge_lost, self._client_side.next_steps, dispatch.on_task_end
        )
        self.messages = self._world.messages
        self.tasks = self._world.tasks

    def _build_strategy(self) -> None:
        params = self.scenario.strategy
        setting = self._make_run_info(self.capacity)
        strategy = strategy_class(params.kind)
        self.server = Server(self.dispatch, self.evaluator, self.ending, setting)
        self.strategy = strategy(params, self.server)
        check_epochs(params, self.population.own)
        self.client_halves = ClientHalves(strategy.client_half, params, setting, self.local)

    def _connect(self) -> None:
        self.dispatch.connect(self.tasks, self.messages, self.strategy, self.client_halves)

    def _build_changes(self) -> None:
        """Build the changes during the run: arrivals, departures, data shifts, and world processes.

        World processes are events such as outages.
        """
        scenario = self.scenario
        dispatch = self.dispatch
        self.lifetimes = self._world.build_lifetimes(
            partial(dispatch.notices.notify, NoticeKind.NEWCOMER)
        )
        self.drift: Drift | None = None
        if scenario.drift is not None and self.data is not None:
            scenario.drift.check(self.data)
            self.drift = Drift(scenario.drift, self.data, dispatch, self.present)
            dispatch.begin_round = self.drift.begin_round  # shifts data at the start of rounds
        self.check_sizes(self.learner)
        self.processes = self._world.build_processes(
            scenario.world.processes, dispatch.on_switched_on
        )

    def _check(self) -> None:
        """Raise ``ScenarioError`` if parameters of the strategy do not fit data or network.

        The strategy checks its parameters against the largest count of samples of a device, and
        against the shortest time in which a device downloads a model.
        """
        self.scenario.strategy.check_samples(int(self.samples[: self.population.trainable].max()))
        self.scenario.strategy.check_deadline(self._fastest_download_s())

    def _build_learning(self, learner: type[Learner] | None) -> None:
        learning = LearningBuilder(self.scenario, self.simulation, self._streams)
        self.data = learning.data
        self.samples = learning.samples
        self.learner = learning.build_learner(learner)
        self._tensors = learning.tensors
        self._shape_and_classes = learning.shape_and_classes

    def _rooflines(self, capacity: Capacity) -> Rooflines | None:
        """Return the roofline model, which computes training times from each device's hardware.

        None if the scenario names no hardware of devices, or if the strategy trains by its own
        code.
        """
        kind_of_device = capacity.which
        if kind_of_device is None or self.scenario.strategy.traits.brings_learning:
            return None
        model = self.scenario.model
        training = self.scenario.training
        objective = self.scenario.objective
        # function from the name of a kind of devices to their usual training
        usual_training = self.scenario.strategy.usual_training

        def cost_of(cut: ModelCut | None, layers: int | None) -> ModelCost:
            """Return the cost of a smaller model, or of training the last ``layers`` layers."""
            smaller = model if cut is None else model.cut(*cut)
            if layers is not None:
                smaller = smaller.with_last_layers(layers, *self._shape_and_classes)
            return smaller.cost(*self._shape_and_classes, training, objective)

        layer_count = 0
        if self.scenario.population.short_of_memory == "fewer-layers":
            model.with_last_layers(1, *self._shape_and_classes)  # raises if the model has no layers
            layer_count = len(layers_of(self._tensors()))
        return Rooflines(
            capacity.kinds,
            kind_of_device,
            cost_of(cut=None, layers=None),
            training.batching,
            cost_of,
            usual=[usual_training(kind_name) for kind_name in capacity.names],
            layers=layer_count,
        )

    def _make_run_info(self, capacity: Capacity) -> RunInfo:
        """Return properties of the run, such as the count of devices, for the strategy's code."""
        scenario = self.scenario
        lora: LoRA | None = getattr(scenario.model, "lora", None)
        return RunInfo(
            devices=scenario.population.trainable,
            parameters=int(self.learner.parameters),
            classes=len(self._label_counts(device=0, version=None)),
            mean_epoch_s=self.population.mean_epoch_s(scenario.strategy.mean_epoch_over),
            lr_in=scenario.training.lr_in,
            planned_rounds=scenario.stop.rounds,
            momentum=scenario.training.sgd.momentum,
            tensors=self._tensors,
            keeps=scenario.model.has_kept_tensors,
            cut=cache(
                lambda by, size: scenario.model.cut(by, size).tensors(*self._shape_and_classes)
            ),
            adapter_scale=1.0 if lora is None else lora.alpha / lora.rank,
            kinds=capacity.names,
            kind_of=capacity.name,
            learns=self.learner.learns,
        )

    def check_sizes(self, learner: Learner) -> None:
        """Check that models can be trained on each device's samples, now and after each data shift.

        Args:
            learner: the object that trains models.

        Raises:
            ScenarioError: the learner cannot train on a device's samples; the message names the
                device.
        """
        data = self.data
        drift = self.scenario.drift
        if data is None or not learner.needs_sizes:
            return
        if self.population.own is not None:
            learner.batch_sizes = self.population.own.batch_size
        if drift is None:
            size_of_device = dict(enumerate(data.train_sizes().tolist()))
            learner.check_sizes(size_of_device)
            return
        stop = self.scenario.stop
        sizes_by_shift = drift.foreseen(
            data,
            Streams(self.scenario.seed),
            stop.rounds,
            stop.simulated_time,
            all_present=self._world.all_stay,
        )
        for size_of_device in sizes_by_shift:
            learner.check_sizes(size_of_device)

    def stop_at(self, number: int, when: float) -> None:
        """Set the alarm (a call that the clock makes later) that ends the run at a simulated time.

        It is called at the start of a run with an end time, and when such a run is resumed.

        Args:
            number: number of the alarm. The pair ("stop", ``number``) identifies the alarm in
                checkpoints.
            when: simulated time of the end (s).
        """
        self.simulation.wake(("stop", number), when, lambda: self.simulation.stop("simulated time"))

    def present(self) -> NDArray[np.bool_] | None:
        """Return which devices have arrived and not left, bool [devices].

        The result is None if all devices are present throughout the run.
        """
        if self._world.all_stay:
            return None
        return self.lifetimes.present(self.simulation.now)

    def truth(self) -> NDArray[np.int64] | None:
        """Return the true group of each device, int64 [devices]; None if unknown.

        Devices with similar data are in one true group. A data shift may change a device's group.
        """
        return None if self.data is None else self.data.truth

    def _label_counts(self, device: int, version: int | None) -> NDArray[np.int64]:
        if self.data is None:  # without data, all samples count as one class
            return self.population.samples[device : device + 1]
        shard = self.data.current(device) if version is None else self.data.shard(device, version)
        return self.data.label_counts(shard)

    def device_columns(self) -> dict[str, AnyArray | list[Any]]:
        """Return the columns of ``devices.parquet`` by name.

        Populations of more than 2,000,000 devices have rows only for devices to which the server
        has sent a task.
        """
        population = self.population
        network = self.network
        devices = self._devices_with(columns.MANY)
        ids = devices.tolist()
        accuracy: list[float | None] = [None] * len(devices)
        if self.evaluator.last is not None:
            accuracy_of_device = self.evaluator.last.device_accuracy()
            # adds the accuracies on devices that never train
            accuracy_of_device |= self.evaluator.unseen_accuracy
            accuracy = [accuracy_of_device.get(device) for device in ids]
        # devices that never train have the last IDs, and belong to no group
        trainable = [device for device in ids if device < population.trainable]
        no_groups: list[int | None] = [None] * (len(ids) - len(trainable))
        test_samples: AnyArray | list[Any] = columns.alike(0, len(devices))  # zeros
        if self.data is not None:
            test_samples = [len(self.data.current(device).test) for device in ids]
        return {
            "device": devices,
            "speed": population.speed[devices],
            "link_down": network.access["down"][devices],
            "link_up": network.access["up"][devices],
            "latency": network.latencies[devices],
            "samples": population.samples[devices],
            "test_samples": test_samples,
            "arrival": population.arrival[devices],
            "departure": population.departure[devices],
            "group": [*self.strategy.groups_of(trainable), *no_groups],
            "selected": [self.tasks.times_selected.get(device, 0) for device in ids],
            "accuracy": accuracy,
            **own_columns(population.own, devices),
        }

    def trace_columns(self) -> tuple[TraceColumns, TraceColumns] | None:
        """Return two tables: the traces (values over time), and the trace that each link follows.

        The result is None without traces. Populations of more than 2,000,000 devices have rows only
        for devices to which the server has sent a task.
        """
        traces = self.network.traces
        return None if traces is None else traces.columns(self._devices_with(columns.MANY))

    @property
    def estimates(self) -> str:
        """Warning that names the hardware properties whose values are only estimates.

        It is empty if there are none.
        """
        energy = self.scenario.energy
        estimates_links = not self.scenario.network.has_device_rates
        estimates_energy = energy is not None and energy.preset is None
        return estimates(self.capacity.names, links=estimates_links, energy=estimates_energy)

    @property
    def at_once(self) -> int:
        """Largest count of devices that can have a task at a time.

        It is the strategy's cohort size or its parameter ``concurrency``, but at most the count of
        devices that may train. A strategy with neither may use all of these. Devices that are only
        tested (``population.tested_only``) are not counted.
        """
        params = self.scenario.strategy
        devices = self.scenario.population.trainable
        most = getattr(params, "concurrency", devices)
        if isinstance(params, RoundParams):
            most = params.cohort_size(devices)
        return min(most, devices)

    @property
    def rules(self) -> list[str]:
        """Texts on the formulas of this run that were fitted to measurements.

        A text states in which range a formula was fitted, and how large its error is. A formula
        gives, for example, the time of a training on a kind of device. ``fedsim check`` prints
        these texts.
        """
        network = self.scenario.network
        lines = [*network.rules(), *network.protocol.rules()]
        if self.population.rooflines is not None:
            lines += self.population.rooflines.rules()
        return lines

    @property
    def outside_of_rules(self) -> list[str]:
        """Warnings about values of this run outside the range for which a formula was fitted.

        A formula gives, for example, the time of a training on a kind of device.
        """
        network = self.scenario.network
        lines = [
            *network.outside_of_rules(),
            *network.protocol.outside_of_rules(self.at_once),
        ]
        if self.population.rooflines is not None:
            sample_shape, _ = self._shape_and_classes
            inputs = math.prod(sample_shape)
            lines += self.population.rooflines.outside_of_rules(inputs)
        return lines

    @property
    def lists_all_devices(self) -> bool:
        """Whether ``devices.parquet`` has a row for each device.

        Otherwise, with more than 2,000,000 devices, it has rows only for devices to which the
        server has sent a task.
        """
        return self.scenario.population.devices <= columns.MANY

    def _devices_with(self, most: int) -> NDArray[np.int64]:
        """Return the IDs of the devices that have rows in a table; int64, ascending.

        Args:
            most: largest population of which all devices have rows. In a larger population only
                devices to which the server has sent a task have rows.
        """
        count = self.scenario.population.devices
        if count <= most:
            return np.arange(count)
        return np.array(sorted(self.tasks.times_asked), dtype=np.int64)

    def availability_columns(self, end: float) -> dict[str, AnyArray]:
        """Return the columns of ``availability.parquet`` by name.

        The table lists when devices become available or unavailable. Populations of more than 2,000
        devices have rows only for devices to which the server has sent a task. If there would be
        more than 200,000 rows, some devices are left out.

        Args:
            end: time up to which the table goes (s).
        """
        return changes(self._past_spans, self._devices_with(_MOST_RECORDED), end, _MOST_CHANGES)

    def _fastest_download_s(self) -> float:
        """Return the shortest time (s) in which a device downloads a model without other traffic.

        It is the minimum over all devices.
        """
        near = self.scenario.strategy.traits.at_edges
        size = self.dispatch.envelopes.down.model_bytes + self.learner.base_bytes
        fastest_s = math.inf
        for devices in columns.pieces(self.population.trainable):
            times_s = self.network.all_alone_s("down", size, near=near, devices=devices)
            fastest_s = min(fastest_s, float(times_s.min()))
        return fastest_s


def assemble(
    scenario: "Sections", simulation: Simulation, learner: type[Learner] | None = None
) -> Run:
    """Build a scenario into a simulation, so that the simulation can run.

    Args:
        scenario: the scenario.
        simulation: an empty simulation.
        learner: class of the object that trains and tests models, instead of the scenario's; None
            to train and test as the scenario says.

    Returns:
        The run, which ``simulation.run()`` executes.

    Raises:
        ScenarioError, DataError: the scenario cannot be built.
    """
    run = Run(scenario, simulation, learner)
    end_s = scenario.stop.simulated_time
    if end_s is not None:
        simulation.end = end_s  # the world computes nothing for later times
        run.stop_at(number=0, when=end_s)

    def record_end() -> None:
        simulation.record("run-end", {"reason": simulation.stopped or "nothing left to happen"})

    # callbacks at the end of the run, in this order
    simulation.at_end(lambda: run.tasks.end_all("stopped"))
    simulation.at_end(run.messages.end_all)
    if run.tasks.batteries is not None:
        simulation.at_end(run.tasks.batteries.close)
    simulation.at_end(record_end)
    # called after the callbacks of ``at_end``, even if the run fails
    simulation.at_close(run.strategy.on_end)
    simulation.post(run.dispatch.start)  # the first event
    return run
