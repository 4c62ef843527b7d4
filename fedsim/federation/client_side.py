"""The device's side of a task: calls of the strategy's code on the device.

The strategy's code returns the device's computations when the device begins to work, and the
device's answer when the computations are done.
"""

from collections.abc import Callable, Collection, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, replace
from typing import Any

from fedsim.clock.simulation import Simulation
from fedsim.common.errors import (
    FedsimError,
    ScenarioError,
    SimulationError,
    place_of,
    show_error,
    show_value,
)
from fedsim.common.training import LocalEpochs, Training
from fedsim.federation.client import BEST, Client, LocalResult, PreviousResult
from fedsim.federation.client_halves import ClientHalves
from fedsim.federation.contents import received
from fedsim.federation.devices import Devices, linear_combination
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.fewer_layers import FewerLayers
from fedsim.federation.local_trainings import LocalTrainings
from fedsim.federation.task_context import TaskContext
from fedsim.learning import Learner
from fedsim.learning.refs import Ref, length_of
from fedsim.learning.spec import Trainer
from fedsim.world.steps import Evaluate, Task, TaskStep, Train

ModelOrResult = Ref | PreviousResult | None
"""Model from which a training starts, or anchor of its proximal term.

None if there is no anchor, or if a start is the best tested model and no model was tested.
"""

ChangeOfStep = Callable[[Task, TaskStep], TaskStep]
"""Function that receives a task and one of its computations, and returns the changed computation.

The device does the changed computation.
"""


@dataclass(slots=True)
class _Results:
    """Results of a device's task so far: names of models that are computed when needed.

    Attributes:
        tested: the model of least loss in the last test; None before a test.
        start: the model from which the last training started; None before a training.
        updates: the models after each training of the task that finished an epoch, in order.
        of_trainings: the model after each training of the task so far, in order; after a training
            that finished no epoch, it is the model from which the training started.
        steps: count of SGD steps of the last training.
    """

    tested: Ref | None = None
    start: Ref | None = None
    updates: tuple[Ref, ...] = ()
    of_trainings: tuple[Ref, ...] = ()
    steps: int = 0


def _result_of(work: Future[object], client: str, device: int) -> object:
    """Return the result of the function of ``Client.real``; wait until it is done.

    Args:
        work: the function's future.
        client: name of the class of the strategy's code on devices.
        device: ID of the device.

    Raises:
        SimulationError: the function has failed.
    """
    try:
        return work.result()
    except (FedsimError, MemoryError):
        raise
    except Exception as error:
        raise SimulationError(
            f"the function of {client}.real failed for device "
            f"{device}{place_of(error)}: {show_error(error)}"
        ) from error


class ClientSide:
    """Calls the strategy's code on devices, and converts its results to steps of tasks.

    ``Dispatch`` calls it for each task.

    Args:
        simulation: the clock.
        learner: trains and tests models.
        envelopes: makes the steps that send answers.
        devices: the devices as the strategy's code sees them.
        trainer: the keys of ``[training]``.
        local: learning rate, batch size and steps of each device's trainings.
        fewer_layers: limits trainings to the layers for which a device has memory; None: trainings
            without enough memory fail.
        attack: changes the answers of malicious devices; None if no device is malicious.
        malicious: IDs of the malicious devices.

    Attributes:
        halves: the strategy's code on each device; set by ``Dispatch.connect``, or in a
            deployment by ``DeviceHalf``.
    """

    halves: ClientHalves

    def __init__(
        self,
        simulation: Simulation,
        learner: Learner,
        envelopes: Envelopes,
        devices: Devices,
        trainer: Trainer,
        local: LocalTrainings,
        fewer_layers: FewerLayers | None = None,
        attack: Any = None,
        malicious: Collection[int] = (),
    ) -> None:
        self._simulation = simulation
        self._learner = learner
        self.envelopes = envelopes
        self.devices = devices
        self._trainer = trainer
        self._batching = trainer.batching  # how trainings divide the samples into batches
        self._local = local  # each device's own settings of training
        self._fewer_layers = fewer_layers  # limits trainings of devices with too little memory
        self.attack = attack  # changes the answers of the devices ``malicious``
        self.malicious = frozenset(malicious)
        self._step_changes = self._build_step_changes()  # applied to each step of ``Client.work``

    def _build_step_changes(self) -> list[ChangeOfStep]:
        """Return the functions that change each step of ``Client.work`` before the device does it.

        They are applied in order. Only the functions that the scenario needs are included.
        """
        changes: list[ChangeOfStep] = []
        if self._local.settings is not None:
            changes.append(self._local.adapt_step)
        if self._fewer_layers is not None:
            changes.append(self._fewer_layers.limit_step)
        if self._trainer.stops_early and self._learner.learns:
            changes.append(self._train_ahead)
        if self.envelopes.takes_time_to_encode:
            changes.append(self._add_time_to_encode)
        return changes

    def begin_real_function(self, device: int, context: TaskContext) -> None:
        """Start the Python function that ``Client.real`` returns for a device's task, if any.

        The function runs on an executor, and takes no simulated time. Nothing happens if the
        function has been started before.

        Args:
            device: ID of the device.
            context: state of the task, where the future of the function's result is stored.
        """
        client = self.halves.of(device)
        if type(client).real is Client.real or context.real is not None:
            return
        real = client.real(self.devices.of(device), context.instruction)
        if real:
            context.real = self._simulation.submit(real.function, *real.arguments, alone=True)

    def next_steps(self, task: Task) -> tuple[TaskStep, ...]:
        """Return the next steps of a device's task when all of its steps so far are done.

        First come the computations that ``Client.work`` returns, then the transfer of the answer;
        at the task's end there are none.
        """
        context = TaskContext.of(task)
        if context.stage == "asked":
            context.stage = "computing"
            steps = self._work(task, context)
            if steps:
                context.has_computed = True
                return steps
        if context.stage == "computing":
            context.stage = "answered"
            return self._answer(task, context)
        return ()

    def _work(self, task: Task, context: TaskContext) -> tuple[TaskStep, ...]:
        """Return the computations that the strategy's code on the device has for a request.

        If ``Client.real`` names a Python function, its result is stored in the instruction first.
        """
        if context.brings_base:
            self.devices.with_base.add(task.device)
        client = self.halves.of(task.device)
        if type(client).real is not Client.real:  # has no effect if the function was begun before
            self.begin_real_function(task.device, context)
        if context.real is not None:  # the simulated time stands still until the work is done
            context.instruction.value = _result_of(context.real, type(client).__name__, task.device)
            context.real = None
        steps = tuple(client.work(self.devices.of(task.device), context.instruction))
        for change in self._step_changes:
            steps = tuple([change(task, step) for step in steps])
        return steps

    def _answer(self, task: Task, context: TaskContext) -> tuple[TaskStep, ...]:
        """Return the steps that send a device's answer; none if the device does not answer.

        The strategy's code may change the result of the computations, and makes the contents of the
        answer from it. The attack of a malicious device then changes both.
        """
        device = self.devices.of(task.device)
        client = self.halves.of(task.device)
        result = client.computed(device, context.instruction, self._result(task, context))
        contents = client.reply(device, context.instruction, result)
        if contents is None:
            return ()
        if task.device in self.malicious:
            result, contents = self.attack.answer(
                self._learner, device, task.count, result, contents
            )
        return self.envelopes.answer(task.device, contents, result, context)

    def _add_time_to_encode(self, _: Task, step: TaskStep) -> TaskStep:
        """Return a training whose time limit also leaves time to encode its result.

        Only a limit that leaves time for the upload (``Limit.reserve_upload``) is changed. A
        training with another limit, and a step that is no training, are returned unchanged.
        """
        if not isinstance(step, Train) or not step.limit.reserve_upload:
            return step
        encoding_s = self.envelopes.encoding_s(step.limit.reserve_upload)
        return replace(step, limit=replace(step.limit, reserve_s=encoding_s))

    def _result(self, task: Task, context: TaskContext) -> LocalResult:
        """Return what a device has computed in a task whose computations are done.

        Its models are names (``Ref``) of models that are computed when their weights are needed.
        """
        results = _Results()
        finished_epochs = iter(task.trained)  # count for each training in the task, in order
        models_ahead = iter(context.ahead)  # models of the trainings that were computed in advance
        for step in task.steps:
            if isinstance(step, Evaluate):
                batch = None if step.samples is None else (step.samples, task.count)
                results.tested = self._learner.best(
                    step.models, task.device, version=task.version, batch=batch
                )
            elif isinstance(step, Train):
                epochs = next(finished_epochs)
                model_ahead = next(models_ahead, None)
                was_cut_off = epochs != step.training.epochs
                if was_cut_off:
                    model_ahead = None  # this model is of the whole training, which was cut off
                if epochs:
                    self._add_training(task, step.training, epochs, model_ahead, results)
                else:
                    start = self._check_start(task, self._start_of(step.training, results))
                    results.of_trainings = (*results.of_trainings, start)
        update = results.updates[-1] if results.updates else None
        return LocalResult(
            task.samples,
            task.epochs,
            results.steps,
            update,
            results.start,
            results.tested,
            earlier=results.updates[:-1],
            trained=update,  # kept even if ``Client.computed`` or an attack replaces ``update``
        )

    def _add_training(
        self,
        task: Task,
        training: Training,
        epochs: int,
        model_ahead: Ref | None,
        results: "_Results",
    ) -> None:
        """Add a training that a device has done, in whole or in part, to the results of its task.

        Args:
            task: the task.
            training: the training as the strategy's code on the device asked for it.
            epochs: count of finished epochs, at least one.
            model_ahead: the result, if ``_train_ahead`` has computed it and the training was not
                cut off; None: the result gets a name now, and is computed when it is needed.
            results: the results so far, which are changed.
        """
        # The start and the anchor may be results of the task's earlier steps. In ``training`` they
        # are replaced by models, and the amount by the amount that was really trained.
        earlier = results.of_trainings
        start = self._start_of(training, results)
        proximal = training.proximal
        anchor = self._resolve(proximal.anchor, earlier)
        if start is not training.start:
            training = replace(training, start=start)
        if anchor is not proximal.anchor:
            training = replace(training, proximal=replace(proximal, anchor=anchor))
        if epochs != training.epochs:
            training = replace(training, amount=LocalEpochs(epochs))
        number = len(earlier)
        update = model_ahead
        if update is None:
            update = self.train(task, training, number, task.version)
        if self._trainer.state == "kept":  # the next task's training continues from this state
            self.devices.of(task.device).state[f"trainer/{number}"] = update
        results.start = start
        results.updates = (*results.updates, update)
        results.of_trainings = (*earlier, update)
        results.steps = training.sgd_steps(task.samples, self._batching)

    def _start_of(self, training: Training, results: "_Results") -> Ref | None:
        """Return the model from which a training of a task starts.

        Args:
            training: the training as the strategy's code on the device asked for it.
            results: the results of the task's steps before it.
        """
        start: ModelOrResult = results.tested if training.start == BEST else training.start
        return self._resolve(start, results.of_trainings)

    def train(self, task: Task, training: Training, number: int, version: int) -> Ref:
        """Register a training of a device, and return the name (``Ref``) of its result.

        The model is computed when its weights are needed.

        Args:
            task: the task of the device that trains.
            training: the training.
            number: index of the training in the task, from 0.
            version: version of the device's data, 0 before the first shift.
        """
        self._check_start(task, training.start)
        # the model with the trainer's state (such as Adam's moments) that this training continues
        before: Ref | None = None
        if self._trainer.state == "kept":  # each device keeps its own state
            before = self.devices.of(task.device).state.get(f"trainer/{number}")
        if self._trainer.state == "sent" and TaskContext.of(task).instruction.job == "train":
            before = training.start  # the server has sent the trainer's state with this model
        return self._learner.train(
            training,
            task.device,
            key=task.count,
            round=task.round or 0,
            version=version,
            before=before,
        )

    def _check_start(self, task: Task, start: object) -> Ref:
        """Return the value from which a training starts, if it is a model of the run.

        Args:
            task: the task of the device that trains.
            start: the value.

        Raises:
            SimulationError: the value is no model of the run.
        """
        parameters = int(self._learner.parameters)
        if isinstance(start, Ref) and length_of(start, parameters) in (None, parameters):
            return start
        mistake = show_value(start)
        if isinstance(start, Ref):
            mistake = f"{start}, an array of {length_of(start, parameters)} numbers"
        raise SimulationError(
            f"device {task.device} is to train from {mistake}; allowed is a model (Ref) of "
            f"{parameters} numbers"
        )

    def _train_ahead(self, task: Task, step: TaskStep) -> TaskStep:
        """Compute a training now, and return its step shortened to the batches that it took.

        Needed for a trainer that may stop early, as the simulated duration depends on the count of
        batches.

        Args:
            task: the task of the device that trains.
            step: the step; one that is no training is returned unchanged.

        Raises:
            ScenarioError: the training starts from a result of the same task.
        """
        if not isinstance(step, Train):
            return step
        training = step.training
        ahead = TaskContext.of(task).ahead
        anchor = training.proximal.anchor
        if not isinstance(training.start, Ref) or isinstance(anchor, PreviousResult):
            raise ScenarioError(
                f"training.kind is {self._trainer.kind!r}, which may stop early, and the "
                "strategy trains from what a device "
                "finds in the same task; allowed are strategies that train from what they "
                "send, or a trainer that takes all "
                "batches"
            )
        version = self.devices.population.version.item(task.device)
        update = self.train(task, training, len(ahead), version)
        self._learner.compute_now(update)
        ahead.append(update)
        # share of the planned batches that the trainer took before it stopped
        share = update.numbers.get("share", 1.0)
        return replace(step, training=replace(training, share=share))

    def _resolve(self, model: ModelOrResult, earlier: tuple[Ref, ...]) -> Ref | None:
        """Return the start or the proximal anchor of a training as a model.

        Args:
            model: a start or anchor. A ``PreviousResult`` becomes the weighted sum of its parts;
                a model, or None for no anchor, is returned unchanged.
            earlier: models after the task's earlier trainings, in order.
        """
        if not isinstance(model, PreviousResult):
            return model
        parts = []
        for part, factor in model.parts:
            source = earlier[part] if isinstance(part, int) else part
            parts.append((source, factor))
        if len(parts) == 1 and parts[0][1] == 1.0:
            return parts[0][0]
        return linear_combination(self._learner, parts)

    def on_answer_arrived(self, task: Task, context: TaskContext) -> Mapping[str, Any]:
        """Update a device's state when its answer has arrived; return what the server receives.

        The device stores the residuals of its codec (what encoding lost), and ``Client.on_sent`` is
        called. If an answer is cut off, this method is not called, and the residuals remain as they
        were.

        Args:
            task: the task, with outcome ``done``.
            context: state of the task, such as the answer.

        Returns:
            The contents of the answer by name; empty if the device sends no answer.
        """
        if context.has_computed and task.version:
            self.devices.used_versions[task.device] = task.version
        answer = context.answer
        if answer is None:
            return {}
        if answer.residuals:
            self.devices.residuals[task.device] = dict(answer.residuals)
        device = self.devices.of(task.device)
        self.halves.of(task.device).on_sent(device, context.instruction, answer.arriving)
        return received(answer.arriving)
