"""The device's side of a task: the client half decides steps and answer at the instants at which
the device reaches them.
"""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import ScenarioError
from fedsim.common.training import Training
from fedsim.federation.client import BEST, Client, LocalResult, PreviousResult
from fedsim.federation.contents import received
from fedsim.federation.devices import Devices
from fedsim.federation.envelopes import Envelopes, TaskContext
from fedsim.learning import Learner
from fedsim.learning.refs import Ref
from fedsim.learning.spec import Trainer
from fedsim.world.steps import Computation, Evaluate, TaskStep, Train
from fedsim.world.task import Task


@dataclass(slots=True)
class _Results:
    """Results of the computations of a task so far.

    Attributes:
        tested: the best of the tested models.
        start: the model from which the last training started.
        update: the result of the last training.
        earlier: results of the trainings before the last one.
        steps: SGD steps of the last training.
    """

    tested: Ref | None = None
    start: Ref | None = None
    update: Ref | None = None
    earlier: tuple[Ref, ...] = ()
    steps: int = 0

    @property
    def updates(self) -> tuple[Ref, ...]:
        """Results of all trainings."""
        return self.earlier if self.update is None else (*self.earlier, self.update)


class ClientSide:
    """Calls the client half of a strategy, for all devices.

    Args:
        simulation: the clock.
        learner: trains and tests models.
        envelopes: builds the messages of answers.
        devices: the devices as their client halves see them.
        trainer: ``[training]`` of the scenario.
        attack: changes the answers of malicious devices; None without.
        malicious: numbers of the malicious devices.
    """

    client: Client[Any]

    def __init__(
        self,
        simulation: Simulation,
        learner: Learner,
        envelopes: Envelopes,
        devices: Devices,
        trainer: Trainer,
        attack: Any = None,
        malicious: Collection[int] = (),
    ) -> None:
        self._simulation = simulation
        self._learner = learner
        self._envelopes = envelopes
        self.devices = devices
        self._trainer = trainer
        self.attack = attack
        self.malicious = frozenset(malicious)

    def begin_real(self, device: int, context: TaskContext) -> None:
        """Begin a task's real work, if it has any that is not begun."""
        if type(self.client).real is Client.real or context.real is not None:
            return
        real = self.client.real(self.devices.of(device), context.instruction)
        if real:
            context.real = self._simulation.submit(real.function, *real.arguments, alone=True)

    def next_steps(self, task: Task) -> tuple[TaskStep, ...]:
        """The steps that follow when a task has carried out its steps; empty at the task's end."""
        context: TaskContext = task.context
        if context.replied:
            return ()
        if not context.begun:
            context.begun = True
            steps = self._work(task, context)
            if steps:
                context.computed = True
                return steps
        context.replied = True
        return self._answer(task, context)

    def _work(self, task: Task, context: TaskContext) -> tuple[TaskStep, ...]:
        if context.brings_base:
            self.devices.bases[task.device] = True
        self.begin_real(task.device, context)
        if context.real is not None:  # the clock stands still until it is done
            context.instruction.value = context.real.result()
            context.real = None
        steps = tuple(self.client.work(self.devices.of(task.device), context.instruction))
        if self._trainer.stops_early and self._learner.learns:
            steps = tuple(self._train_ahead(task, step) for step in steps)
        if self._envelopes.takes_time_to_encode:
            return tuple(map(self._with_time_to_encode, steps))
        return steps

    def _answer(self, task: Task, context: TaskContext) -> tuple[TaskStep, ...]:
        device = self.devices.of(task.device)
        result = self.client.computed(device, context.instruction, self._result(task))
        contents = self.client.reply(device, context.instruction, result)
        if contents is None:
            return ()
        if task.device in self.malicious:
            result, contents = self.attack.answer(
                self._learner, device, task.count, result, contents
            )
        return self._envelopes.answer(task.device, contents, result, context)

    def _with_time_to_encode(self, step: Computation) -> Computation:
        """The step; a training that reserves time for its upload reserves time to encode, too."""
        if not isinstance(step, Train) or not step.limit.reserve_upload:
            return step
        encoding_s = self._envelopes.encoding_s(step.limit.reserve_upload)
        return replace(step, limit=replace(step.limit, reserve_s=encoding_s))

    # Results of a task's steps.

    def _result(self, task: Task) -> LocalResult:
        """The result of all computations of a task, as refs."""
        results = _Results()
        epochs = iter(task.trained)
        ahead = iter(task.context.ahead)
        for step in task.steps:
            if isinstance(step, Evaluate):
                batch = None if step.samples is None else (step.samples, task.count)
                results.tested = self._learner.best(
                    step.models, task.device, version=task.version, batch=batch
                )
            elif isinstance(step, Train):
                finished = next(epochs)
                computed = next(ahead, None)
                if finished != step.training.epochs:
                    computed = None  # the training was cut off
                if finished:
                    self._add_training(task, step.training, finished, computed, results)
        return LocalResult(
            task.samples,
            task.epochs,
            results.steps,
            results.update,
            results.start,
            results.tested,
            results.earlier,
            trained=results.update,
        )

    def _add_training(
        self,
        task: Task,
        training: Training,
        epochs: int,
        computed: Ref | None,
        results: "_Results",
    ) -> None:
        """Add the result of a training that has finished ``epochs``, or is ``computed`` already."""
        earlier = results.updates
        start = results.tested if training.start == BEST else training.start
        start = self._resolve(start, earlier)
        anchor = self._resolve(training.anchor, earlier)
        is_changed = start is not training.start or anchor is not training.anchor
        if is_changed or epochs != training.epochs:
            training = replace(training, start=start, anchor=anchor, epochs=epochs)
        number = len(earlier)
        update = computed
        if update is None:
            update = self._train(task, training, number, task.version)
        if self._trainer.state == "kept":
            self.devices.of(task.device).state[f"trainer/{number}"] = update
        results.start = start
        results.earlier = earlier
        results.update = update
        results.steps = training.sgd_steps(task.samples, self._trainer.batching)

    def _train(self, task: Task, training: Training, number: int, version: int) -> Ref:
        """The result of training ``number`` of a task, on a version of the device's data."""
        before: Any = None  # the trainer's state
        if self._trainer.state == "kept":
            before = self.devices.of(task.device).state.get(f"trainer/{number}")
        if self._trainer.state == "sent" and task.context.instruction.job == "train":
            before = training.start
        return self._learner.train(
            training,
            task.device,
            key=task.count,
            round=task.round or 0,
            version=version,
            before=before,
        )

    def _train_ahead(self, task: Task, step: Computation) -> Computation:
        """The step; a training is computed now, and takes as long as the batches that it took."""
        if not isinstance(step, Train):
            return step
        training = step.training
        ahead = task.context.ahead
        if not isinstance(training.start, Ref) or isinstance(training.anchor, PreviousResult):
            raise ScenarioError(
                f"training.kind is {self._trainer.kind!r}, which may stop early, and the "
                "strategy trains from what a device "
                "finds in the same task; allowed are strategies that train from what they "
                "send, or a trainer that takes all "
                "batches"
            )
        version = self.devices.population.version.item(task.device)
        update = self._train(task, training, len(ahead), version)
        self._learner.compute_now(update)
        ahead.append(update)
        share = update.numbers.get("share", 1.0)
        return replace(step, training=replace(training, share=share))

    def _resolve(self, model: Any, earlier: tuple[Ref, ...]) -> Any:
        """The start or anchor of a training, computed if it follows from earlier trainings."""
        if type(model) is not PreviousResult:
            return model
        parts = []
        for part, factor in model.parts:
            source = earlier[part] if isinstance(part, int) else part
            parts.append((source, factor))
        if len(parts) == 1 and parts[0][1] == 1.0:
            return parts[0][0]
        return self.devices.of(0).mix(parts)

    def arrived(self, task: Task) -> Mapping[str, Any]:
        """The contents that the server receives from a task that is done, by name."""
        context: TaskContext = task.context
        if context.computed and task.version:
            self.devices.used_versions[task.device] = task.version
        if context.reply is None:
            return {}
        if context.keeping:
            self.devices.residuals[task.device] = dict(context.keeping)
        self.client.sent(self.devices.of(task.device), context.instruction, context.reply)
        return received(context.reply)
