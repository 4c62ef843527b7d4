"""The device's side of a task: the client half decides steps and answer at the instants at which
the device reaches them.
"""

from collections.abc import Collection, Mapping
from dataclasses import replace
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


class ClientSide:
    """Calls the client half of a strategy, and encodes its answers, which ``malicious`` devices
    change by ``attack``.
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
        if real := self.client.real(self.devices.of(device), context.instruction):
            context.real = self._simulation.submit(real.function, *real.arguments, alone=True)

    def next_steps(self, task: Task) -> tuple[TaskStep, ...]:
        """The steps that follow when the device has carried out all that its task had; none at
        its end.
        """
        context: TaskContext = task.context
        if context.replied:
            return ()
        if not context.begun:
            context.begun = True
            if steps := self._work(task, context):
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
            steps = tuple(
                self._trained_ahead(task, step) if isinstance(step, Train) else step
                for step in steps
            )
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
        """A training that must leave time for its upload leaves time for encoding it, too."""
        if not isinstance(step, Train) or not step.limit.reserve_upload:
            return step
        encoding_s = self._envelopes.encoding_s(step.limit.reserve_upload)
        return replace(step, limit=replace(step.limit, reserve_s=encoding_s))

    def _result(self, task: Task) -> LocalResult:
        update: Ref | None = None
        start: Ref | None = None
        tested: Ref | None = None
        steps = 0
        epochs = iter(task.trained)
        ahead = iter(task.context.ahead)
        earlier: tuple[Ref, ...] = ()
        for step in task.steps:
            if isinstance(step, Evaluate):
                batch = None if step.samples is None else (step.samples, task.count)
                tested = self._learner.best(
                    step.models, task.device, version=task.version, batch=batch
                )
            elif isinstance(step, Train):
                known = next(ahead, None)
                if not (finished := next(epochs)):
                    continue
                training = step.training
                before = earlier if update is None else (*earlier, update)
                start = self._found(tested if training.start == BEST else training.start, before)
                anchor = self._found(training.anchor, before)
                if (
                    start is not training.start
                    or anchor is not training.anchor
                    or finished != training.epochs
                ):
                    training = replace(training, start=start, anchor=anchor, epochs=finished)
                known = known if finished == step.training.epochs else None  # else it was cut off
                earlier = before
                update = known or self._train(task, training, len(before), task.version)
                if self._trainer.state == "kept":
                    self.devices.of(task.device).state[f"trainer/{len(before)}"] = update
                steps = training.sgd_steps(task.samples, self._trainer.batching)
        return LocalResult(
            task.samples, task.epochs, steps, update, start, tested, earlier, trained=update
        )

    def _train(self, task: Task, training: Training, number: int, version: int) -> Ref:
        before = (
            self.devices.of(task.device).state.get(f"trainer/{number}")
            if self._trainer.state == "kept"
            else None
        )
        if self._trainer.state == "sent" and task.context.instruction.job == "train":
            before = training.start
        how: dict[str, Any] = {
            "key": task.count,
            "round": task.round or 0,
            "version": version,
            "before": before,
        }
        return self._learner.train(training, task.device, **how)

    def _trained_ahead(self, task: Task, step: Train) -> Train:
        """A training that may stop early, computed now: it takes as long as the batches that the
        trainer took.
        """
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
        update = self._train(
            task, training, len(ahead), self.devices.population.version.item(task.device)
        )
        self._learner.compute_now(update)
        ahead.append(update)
        return replace(step, training=replace(training, share=update.numbers.get("share", 1.0)))

    def _found(self, model: Any, earlier: tuple[Ref, ...]) -> Any:
        """A model that a training starts from or is held to, where it follows from the trainings
        before.
        """
        if type(model) is not PreviousResult:
            return model
        parts = [
            (earlier[part] if isinstance(part, int) else part, factor)
            for part, factor in model.parts
        ]
        return (
            parts[0][0] if len(parts) == 1 and parts[0][1] == 1.0 else self.devices.of(0).mix(parts)
        )

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
