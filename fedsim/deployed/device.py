"""A strategy's client code on a device's machine: it answers requests, and remembers its state."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NamedTuple

import numpy as np

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import SimulationError, show_value
from fedsim.common.training import NO_LIMIT, Limit, LocalEpochs, Training
from fedsim.deployed.labels import USED, LabelHistory
from fedsim.deployed.memory import DeviceMemory, SentAnswer, read_memory
from fedsim.deployed.packing import (
    FORGOT,
    SHIFT,
    ContentPacker,
    ModelPlace,
    Packet,
    PlacedModel,
    models_in,
)
from fedsim.deployed.reading import (
    Json,
    count_of,
    entry_of,
    finite_of,
    pair_of,
    table_of,
    text_of,
)
from fedsim.deployed.step_log import LoggedStep, StepLog
from fedsim.deployed.trees import write_report
from fedsim.federation.client import Client, Instruction, LocalResult
from fedsim.federation.client_side import ClientSide
from fedsim.federation.contents import BASE, Contents, received
from fedsim.federation.direction_codec import DirectionCodec
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.task_context import TaskContext
from fedsim.learning.refs import Ref
from fedsim.running.assembly import Run
from fedsim.running.scenario import Scenario
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Evaluate, Pause, Task, TaskStep, Train, Work

# counts of serial numbers that are reserved for the models of a task and of a device, so that no
# two models have the same number
_SERIALS_A_TASK = 1 << 20
_SERIALS_A_DEVICE = 1 << 40
_PROBE_KEY = (1 << 31) - 1  # random key of trainings that only measure time


class _ClientAnswer(NamedTuple):
    contents: Contents
    result: LocalResult


class _AnswerEnvelopes(Envelopes):
    """Builder of simulated messages that keeps a device's answer, to be encoded for Flower."""

    last: _ClientAnswer | None = None

    def answer(
        self, device: int, contents: Contents, result: LocalResult, context: TaskContext
    ) -> tuple[TaskStep, ...]:
        self.last = _ClientAnswer(contents, result)
        return super().answer(device, contents, result, context)


class DeviceHalf:
    """The client half of a strategy on a device's own machine: it runs the client code there.

    Args:
        scenario: the scenario of the app.
        device: number of the device, which selects its part of the data.
        pace: real seconds per second of the scenario, if the device sleeps to imitate the
            scenario's times; 0 if it works as fast as it can.
        sleeps_links: whether a device with a ``pace`` above 0 imitates the scenario's times of
            downloads and uploads too, not only of computations.

    Raises:
        SimulationError: the scenario has no such device.
    """

    def __init__(
        self, scenario: Scenario, device: int, pace: float, *, sleeps_links: bool = True
    ) -> None:
        devices = scenario.population.devices
        if device >= devices:
            raise SimulationError(
                f"partition-id = {device}; allowed are 0 to {devices - 1} (population.devices of "
                "the app's scenario.toml)"
            )
        self.device = device
        self._pace = pace
        # whether the device sleeps to imitate the scenario's times; otherwise its times are measured
        self._is_paced = pace > 0.0
        self._sleeps_links = sleeps_links and self._is_paced
        self._steps: list[LoggedStep] = []  # steps of the present task
        run = Run(scenario, Simulation())  # the objects of a simulation, whose clock never runs
        self._learner = run.learner
        self._devices = run.dispatch.devices
        self._population = run.population
        self._network = run.network
        self._envelopes = _AnswerEnvelopes(
            self._learner,
            DirectionCodec(scenario.messages.down, self._learner),
            DirectionCodec(scenario.messages.up, self._learner),
            self._devices,
            scenario.strategy.traits.accumulated_contents,
        )
        self._side = ClientSide(
            run.simulation,
            self._learner,
            self._envelopes,
            self._devices,
            scenario.training,
            run.local,
            run.fewer_layers,
        )
        self._side.halves = run.client_halves
        # whether the arrival of an answer changes what the device stores for the next task
        self._stores_residual = (
            scenario.messages.up.stores_residual or scenario.training.state == "kept"
        )
        self._down = ContentPacker(scenario.messages.down, self._learner)
        self._up = ContentPacker(
            scenario.messages.up, self._learner, scenario.strategy.traits.accumulated_contents
        )
        self._labels = LabelHistory(self._devices.label_counts(device, None))
        self._devices.label_counts = self._labels.of_version
        self._devices.used_versions[device] = USED
        self._devices.model_s = self._model_s
        self._devices.clock = lambda: self._now
        self._now = 0.0  # the scenario's time (s)
        self._download_s = 0.0  # measured time of the last download
        self._speed: float | None = None  # measured speed of the device (samples/s)
        if not self._is_paced:  # the measured speed of the device replaces the scenario's
            self._population.rooflines = None
            self._population.speed = self._population.speed.copy()

    @property
    def time_scale(self) -> float:
        """Count of real seconds in a second of the server's clock; 1 in real time."""
        return self._pace or 1.0

    def answer(
        self, request: Packet, memory: Packet, clock: Callable[[], float], log: StepLog
    ) -> Packet:
        """Carry out a request of the server, such as a training, and return the answer.

        Args:
            request: the request.
            memory: the device's memory as a packet (``DeviceMemory``); changed in place, to be
                stored with the answer.
            clock: returns the present time by the server's clock (s).
            log: receives the steps of the task; the answer has them too.

        Raises:
            SimulationError: the request cannot be carried out.
        """
        # restore the device's state
        head = request.head
        count = count_of(entry_of(head, "count"), "count")  # count of the device's earlier tasks
        first_serial = (self.device + 1) * _SERIALS_A_DEVICE + count * _SERIALS_A_TASK
        self._learner.restore(first_serial)  # new models are numbered from here
        has_forgotten = self._recall(read_memory(memory, self._learner), head)
        shift_message = self._answer_shift()

        # read the request
        asked_at = finite_of(entry_of(head, "asked_at"), "asked_at")
        downloaded = sum(map(len, request.payloads.values()))  # bytes, with the frozen tensors
        self._take_base(request)
        task = self._read_task(request, count)
        self._begin(task, asked_at, downloaded, clock)
        log.add(LoggedStep("download", asked_at, self._now))

        # carry out the task
        answer = self._work(task, clock)
        if self._is_paced:
            self._sleep_until(self._now, clock)
        if self._steps and not self._sleeps_links:
            # the last step includes the encoding of the answer, which takes real time
            self._steps[-1].end = clock()
        for step in self._steps:
            log.add(step)

        # complete the answer
        answer.head |= {
            "samples": task.samples,
            "took_s": clock() - asked_at,
            "steps": [step.tree() for step in log.steps],
        }
        if has_forgotten:
            answer.head[FORGOT] = True
        if shift_message is not None:
            answer.head[SHIFT] = shift_message
        uploaded = sum(map(len, answer.payloads.values()))  # bytes
        if self._sleeps_links and uploaded:
            up_s = self._network.nominal_s(self.device, "up", uploaded)
            self._sleep_until(self._now + up_s, clock)
        log.begin_upload(clock(), answer.bytes_by_content())
        self._memory_after(task).write_to(memory, self._learner)
        return answer

    def _read_task(self, request: Packet, count: int) -> Task:
        """Return the task that a request describes, with decoded contents in its context.

        Args:
            request: the request.
            count: index of the task among the device's tasks, from 0.
        """
        contents = self._down.unpack(request, _refuse_base)
        job = text_of(entry_of(request.head, "job"), "job")
        round_entry = entry_of(request.head, "round")
        round_number = None if round_entry is None else count_of(round_entry, "round")
        instruction = Instruction(job, received(contents), round_number)
        context = TaskContext(instruction)  # ``_take_base`` has noted the frozen tensors already
        task = Task(
            id=0,
            device=self.device,
            steps=(),
            round=round_number,
            group=None,
            count=count,
            context=context,
        )
        task.samples = self._population.samples.item(self.device)
        return task

    def warm_up(self) -> None:
        """Train for an epoch and drop the result, so that libraries are loaded before tasks."""
        training = Training(self._learner.initial())
        self._learner.compute_now(self._learner.train(training, self.device, key=_PROBE_KEY))

    def _begin(self, task: Task, asked_at: float, size: int, clock: Callable[[], float]) -> None:
        """Set the time at which the device has received its request and begins to work on the task.

        If the device imitates the scenario's links, the time is computed from the request's size.
        Otherwise it is the present time.

        Args:
            task: the task.
            asked_at: time at which the server sent the request, by its clock (s).
            size: size of the request (bytes).
            clock: returns the present time by the server's clock (s).
        """
        self._steps = []
        if self._sleeps_links:
            down_s = self._network.nominal_s(self.device, "down", size) if size else 0.0
            self._now = asked_at + down_s
        else:
            self._now = clock()
            self._download_s = max(0.0, self._now - asked_at)
        task.budget_from = self._now  # a limit's time for the training begins here

    def _model_s(self, device: int, direction: Direction) -> float:
        """Return the time (s) in which the device's link transfers a model.

        If the device imitates the scenario's times (``pace`` > 0), the scenario gives it. Otherwise
        it is the measured time of the last download.
        """
        if self._is_paced:
            size = self._envelopes.codec_of(direction).model_bytes
            return float(self._network.nominal_s(device, direction, size))
        return self._download_s

    def _sleep_until(self, end: float, clock: Callable[[], float]) -> None:
        """Sleep until a time of the server's clock (s), which runs at the device's ``pace``."""
        rest_s = (end - clock()) * self._pace
        if rest_s > 0.0:
            time.sleep(rest_s)

    def _work(self, task: Task, clock: Callable[[], float]) -> Packet:
        """Carry out the steps of a task, and return the answer as a message to be sent.

        Args:
            task: the task.
            clock: returns the present time by the server's clock (s).
        """
        self._envelopes.last = None  # ``next_steps`` stores the answer here
        steps = self._side.next_steps(task)
        # the client code may answer without a computation
        has_computation = TaskContext.of(task).stage == "computing"
        if has_computation:
            for step in steps:
                is_in_time = self._compute(task, step, clock)
                if not is_in_time:
                    return Packet({"outcome": "late", "contents": {}})
            self._side.next_steps(task)
        if self._envelopes.last is None:  # the client code sends nothing
            return Packet({"outcome": "done", "contents": {}})
        return self._pack(task, self._envelopes.last)

    def _compute(self, task: Task, step: TaskStep, clock: Callable[[], float]) -> bool:
        """Carry out one step of a device's task, such as a training, and log its times.

        Args:
            task: the task.
            step: the step.
            clock: returns the present time by the server's clock (s).

        Returns:
            False if the step took too long, so that the task ends as late.
        """
        if not self._is_paced:
            self._now = clock()
        began = self._now
        is_in_time = self._carry_out(task, step)
        if not self._is_paced:  # the measured time replaces the scenario's
            self._now = clock()
        facts: dict[str, Json] = {}
        if isinstance(step, Train):
            facts = {"epochs": task.epochs, "asked": step.training.epochs}
        self._steps.append(LoggedStep(step.name, began, self._now, facts))
        return is_in_time

    def _carry_out(self, task: Task, step: TaskStep) -> bool:
        """Carry out a step, and add the scenario's time for it to the present time.

        A paced device sleeps only once, at the end of the task (``answer``), for the sum of the
        steps' times. On a device that is not paced, only real time counts.

        Args:
            task: the task.
            step: the step.

        Returns:
            False if the step took too long.
        """
        match step:
            case Train():
                return self._train(task, step)
            case Evaluate():
                samples = task.samples if step.samples is None else step.samples
                model_s = self._population.testing_s(self.device, samples)
                self._now += model_s * len(step.models)
            case Work():
                self._now += self._population.working_s(self.device, step)
            case Pause():
                self._now += step.seconds
                if not self._is_paced:  # a pause has no work that takes real time
                    time.sleep(step.seconds)
            case _:
                raise SimulationError(
                    f"a deployed node cannot carry out the step {type(step).__name__!r}, which is "
                    "of a kind of its own; allowed are Train, Evaluate, Work and Pause"
                )
        task.steps = (*task.steps, step)
        return True

    def _train(self, task: Task, step: Train) -> bool:
        """Train as many epochs as the step's time limit allows.

        Returns:
            False if the limit allows too few epochs, so that the task ends as late.
        """
        training = step.training
        if training.part is not None:
            task.samples = training.part.samples
        limit = step.limit
        epoch_s = 0.0  # without pace and limit, only the real time of the training counts
        if self._is_paced or limit is not NO_LIMIT:
            epoch_s = self._epoch_s(task, training)
        epochs = self._epochs_within(task, step, epoch_s)
        has_too_few = epochs < limit.at_least
        if has_too_few and not limit.go_on:  # the task ends as late
            self._now += epochs * epoch_s
            return False
        if has_too_few:
            epochs = 0  # the task goes on without any epoch
        self._now += epochs * epoch_s
        if epochs != training.epochs:
            step = replace(step, training=replace(training, amount=LocalEpochs(epochs)))
        task.epochs = epochs
        task.trained = (*task.trained, epochs)
        task.steps = (*task.steps, step)
        # a training that needs a result of the task is computed later, when its own result is used
        if epochs and isinstance(training.start, Ref) and not self._needs_result(training):
            self._train_now(task, step.training)
        return True

    def _epochs_within(self, task: Task, step: Train, epoch_s: float) -> int:
        """Return how many epochs of a training the device finishes within the step's time limit.

        It is 0 if the limit discards an unfinished training.

        Args:
            task: the task.
            step: the training step, with its limit.
            epoch_s: time of an epoch (s).
        """
        planned = step.training.epochs
        limit = step.limit
        end = self._training_end(task, limit)
        if end == math.inf:
            return planned
        # the factor allows for rounding, if the last epoch ends at the limit
        finished = math.floor((end - self._now) / epoch_s * (1.0 + 1e-12))
        if finished >= planned:
            return planned
        # an adaptive device begins no epoch that the limit would cut
        has_cut_epoch = not limit.adaptive
        if limit.cut_undoes and has_cut_epoch:
            return 0
        return max(0, finished)

    def _needs_result(self, training: Training) -> bool:
        """Whether a training's proximal term needs the result of another training of the task."""
        return not isinstance(training.proximal.anchor, Ref | None)

    def _train_now(self, task: Task, training: Training) -> None:
        """Compute a training now, not when its result is used, so that it takes real time.

        Nothing is computed if an earlier training of the task is not computed yet. If the device
        works as fast as it can (``pace`` 0), the training also measures the device's speed.
        """
        updates = TaskContext.of(task).ahead  # results of the task's trainings so far
        index = len(task.trained) - 1
        if len(updates) != index:  # an earlier training is not computed yet: this one must wait
            return
        began = time.perf_counter()
        update = self._side.train(task, training, index, version=0)
        self._learner.compute_now(update)
        updates.append(update)
        seconds = time.perf_counter() - began
        if training.epochs and seconds > 0.0 and not self._is_paced:
            self._speed = task.samples * training.epochs / seconds

    def _epoch_s(self, task: Task, training: Training) -> float:
        """Return the time of an epoch of a training on this device (s).

        If the device imitates the scenario's times (``pace`` > 0), the scenario gives it. Otherwise
        it follows from the device's speed, which is measured before the first training.

        Args:
            task: the task.
            training: the training.
        """
        if not self._is_paced:
            if self._speed is None:
                self._speed = self._probe(task, training)
            # the population has speeds of the reference model, as the scenario has
            self._population.speed[self.device] = self._speed * self._population.cost
        return float(self._population.training_s(self.device, training, task.samples))

    def _probe(self, task: Task, training: Training) -> float:
        """Measure the device's speed (samples/s): train two epochs, and time the second.

        The results are discarded.

        Args:
            task: the task, whose count of samples is used.
            training: the training whose epochs are tried.
        """
        epoch_s = 0.0
        for _ in range(2):  # the first epoch also loads libraries
            epoch = replace(training, amount=LocalEpochs(1))
            model = self._learner.train(epoch, self.device, key=_PROBE_KEY)
            began = time.perf_counter()
            self._learner.compute_now(model)
            epoch_s = time.perf_counter() - began
        return task.samples / max(epoch_s, 1e-6)

    def _training_end(self, task: Task, limit: Limit) -> float:
        """Return the time (s) at which a limit ends the training of a task; infinity without limit.

        Time that the limit reserves for the upload is subtracted.
        """
        end = math.inf if limit.stop_at is None else limit.stop_at
        if limit.budget is not None and task.budget_from is not None:
            end = min(end, task.budget_from + limit.budget)
        reserve_s = limit.reserve_s
        if limit.reserve_upload:
            if self._is_paced:
                reserve_s += self._network.nominal_s(self.device, "up", limit.reserve_upload)
            else:
                reserve_s += self._download_s
        return end - reserve_s

    def _pack(self, task: Task, answer: _ClientAnswer) -> Packet:
        """Encode an answer as a packet.

        The update is encoded as the change of the model from which the device has trained, if the
        request contained this model.
        """
        contents, result = answer
        bases: dict[Ref, PlacedModel] = {}
        if result.update is not None and result.start is not None:
            place = self._find_in_request(task, result.start)
            if place is not None:
                bases[result.update] = PlacedModel(place, result.start)
        residuals = self._devices.residuals.get(self.device, {})
        packet = self._up.pack(contents, bases, residuals)
        # an update that was computed from the trained model gets the training's loss and metrics
        trained = result.trained
        if trained is not None and trained.loss is not None:
            entries = table_of(packet.head["contents"], "contents")
            report = write_report(trained.loss)
            for name, value in contents.items():
                if value is result.update:
                    entry = table_of(entries[name], "a content")
                    entry.setdefault("loss", report)  # unless the entry has a report already
        packet.head["outcome"] = "done"
        return packet

    def _find_in_request(self, task: Task, start: Ref) -> ModelPlace | None:
        """Find the model in a task's request from which the device has trained.

        The answer encodes the update as a change of this model, and names the content of the
        request that has the model.

        Args:
            task: the task.
            start: the model from which the device has trained.

        Returns:
            Position of the model in the request; None if the request has no equal model.
        """
        instruction = TaskContext.of(task).instruction
        for place, model in models_in(instruction.contents):
            if model is start:
                return place
        # ``start`` may be a copy of a model of the request, so the weights are compared
        self._learner.compute_now(start)
        for place, model in models_in(instruction.contents):
            self._learner.compute_now(model)
            if np.array_equal(np.asarray(model.value), np.asarray(start.value)):
                return place
        return None

    def _recall(self, memory: DeviceMemory, head: Mapping[str, Json]) -> bool:
        """Restore the device's state, and call ``Client.on_sent`` if its last answer has arrived.

        Args:
            memory: the device's memory after its last task.
            head: head of the request, with the last task whose answer has arrived.

        Returns:
            Whether the node has lost state of the device. This needs two facts: the server has
            received a later answer than the last one in the memory, as the node was started anew
            since then; and the arrival of answers changes the device's state.
        """
        self._devices.states[self.device] = memory.state
        self._devices.residuals[self.device] = memory.residuals
        if memory.has_base:
            self._devices.with_base.add(self.device)
        self._speed = memory.speed
        arrived = head.get("arrived")
        if arrived is None:  # no answer of the device has arrived so far
            self._labels.restore(memory.labels, has_arrived=False)
            return False
        # compare the last task whose answer has arrived with the last task in the memory
        number, arrival_time = pair_of(arrived, "arrived")
        arrived_count = count_of(number, "the count of a task")
        has_last_arrived = arrived_count == memory.count
        self._labels.restore(memory.labels, has_arrived=has_last_arrived)
        is_memory_outdated = memory.count < arrived_count
        if is_memory_outdated:
            return self._acts_on_arrival or self._stores_residual
        last = memory.last
        if last is None or not has_last_arrived:
            return False
        self._now = finite_of(arrival_time, "the time of an arrival")
        if last.residuals:
            self._devices.residuals[self.device] = dict(last.residuals)
        client = self._side.halves.of(self.device)
        client.on_sent(self._devices.of(self.device), last.instruction, last.reply)
        return False

    def _answer_shift(self) -> dict[str, Json] | None:
        """Return the device's message after a change of its data (``Client.on_shift``).

        Returns:
            Dict from content to number; None if the data have not changed, or if the strategy sends
            no message.
        """
        if not self._labels.has_changed:
            return None
        client = self._side.halves.of(self.device)
        contents = client.on_shift(self._devices.of(self.device))
        if contents is None:
            return None
        return {name: float(value) for name, value in received(contents).items()}

    @property
    def _acts_on_arrival(self) -> bool:
        """Whether the strategy overrides ``Client.on_sent``, called when an answer has arrived."""
        return type(self._side.halves.of(self.device)).on_sent is not Client.on_sent

    def _memory_after(self, task: Task) -> DeviceMemory:
        """Return the values that the node stores for its device after a task.

        Args:
            task: the answered task.
        """
        context = TaskContext.of(task)
        answer = context.answer
        # The answer is stored only if its arrival changes the device's state. The next request
        # tells whether the answer has arrived.
        last: SentAnswer | None = None
        if answer is not None and (self._acts_on_arrival or answer.residuals):
            last = SentAnswer.of(context.instruction, answer)
        return DeviceMemory(
            state=self._devices.states.get(self.device, {}),
            residuals=self._devices.residuals.get(self.device, {}),
            has_base=self.device in self._devices.with_base,
            speed=self._speed,
            count=task.count,
            last=last,
            labels=self._labels.snapshot(),
        )

    def _take_base(self, request: Packet) -> None:
        """Remove the frozen tensors, which no training changes, from a request, and check them.

        The device's memory then stores that the device has them (``DeviceMemory.has_base``).

        Raises:
            SimulationError: the frozen tensors in the request differ from the frozen tensors that
                the device has built.
        """
        payload = request.payloads.pop(BASE, None)
        if payload is None:
            return
        self._devices.with_base.add(self.device)
        if payload != self._learner.frozen().astype("<f4").tobytes():
            raise SimulationError(
                "the server's frozen tensors differ from the tensors that this device has built "
                "from the scenario; install one version of torch and of fedsim on all machines"
            )


def _refuse_base(place: ModelPlace) -> Ref:
    raise SimulationError(
        f"a request has a change of the model {show_value(str(place))}, which no device knows"
    )
