"""A task's messages in both directions: the server's request, and the device's answer.

As steps of the task, a request is a download and the time to decode it; an answer is the time to
encode it and an upload. The contents pass through the codecs of ``[messages]``.
"""

from collections.abc import Collection
from typing import NamedTuple

from fedsim.federation.client import Instruction, LocalResult
from fedsim.federation.contents import BASE, STATE, Contents, Partial, has_model, payloads, received
from fedsim.federation.devices import Devices
from fedsim.federation.direction_codec import DirectionCodec
from fedsim.federation.task_context import TaskContext
from fedsim.learning import Learner
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Download, Payload, TaskStep, Upload


class Request(NamedTuple):
    """Server's request to a device: the first steps of the device's task, and the task's context.

    Attributes:
        steps: the steps that deliver the request; empty if it costs no bytes.
        context: the state of the task from now on.
    """

    steps: tuple[TaskStep, ...]
    context: TaskContext


class Envelopes:
    """Builder of the messages of tasks: requests of the server, and answers of devices.

    It encodes the contents, and determines the bytes of each message.

    Args:
        learner: gives the sizes of frozen tensors, which no training changes, and of optimiser
            states.
        down: codec of the messages to devices.
        up: codec of the messages from devices.
        devices: holds the residuals of codecs, and which devices have the frozen tensors.
        added_up: names of contents that device and server each add up over rounds.
    """

    def __init__(
        self,
        learner: Learner,
        down: DirectionCodec,
        up: DirectionCodec,
        devices: Devices,
        added_up: Collection[str] = (),
    ) -> None:
        self._learner = learner
        self.down = down
        self.up = up
        self._devices = devices
        self._added_up = added_up  # names of contents that both sides add up over rounds

    def codec_of(self, direction: Direction) -> DirectionCodec:
        """Return the codec of a direction: the attribute ``down`` or ``up``."""
        return self.down if direction == "down" else self.up

    def parts(
        self, contents: Contents, direction: Direction, *, has_base: bool
    ) -> tuple[Payload, ...]:
        """Return name and size (bytes) of each part of a message; parts of size 0 are left out.

        A message with a model has the model's frozen tensors as a further part if the receiver
        lacks them.

        Args:
            contents: the contents by name.
            direction: the direction of the message.
            has_base: whether the receiver has the model's frozen tensors already.

        Raises:
            SimulationError: a content has a type or a size that cannot be sent.
        """
        parts = payloads(contents, self.codec_of(direction))
        if self._lacks_base(contents, has_base=has_base):
            return (Payload(BASE, self._learner.base_bytes), *parts)
        return parts

    def _lacks_base(self, contents: Contents, *, has_base: bool) -> bool:
        """Whether a message also brings the model's frozen tensors, as the receiver lacks them."""
        return self._learner.base_bytes > 0 and not has_base and has_model(contents)

    # from the server to a device

    def request(
        self, device: int, contents: Contents, job: str, round_number: int | None
    ) -> Request:
        """Build the server's request to a device, with which a task of the device begins.

        Args:
            device: ID of the device.
            contents: the contents by name, as the strategy's server code has passed them to
                ``Server.ask``.
            job: name of what the device is asked to do, such as ``train``.
            round_number: the round for which the device works; None for no round.

        Returns:
            The steps of the task in which the device downloads and decodes the request, and the
            task's context.

        Raises:
            SimulationError: a content has a type or a size that cannot be sent.
        """
        parts = payloads(contents, self.down)
        brings_base = self._lacks_base(contents, has_base=device in self._devices.with_base)
        if brings_base:  # the device does not have the frozen tensors yet
            parts = (Payload(BASE, self._learner.base_bytes), *parts)
        # the trainer's state is sent with the model that it belongs to, for a training
        if self._learner.state_bytes and job == "train" and contents["model"].state is not None:
            parts = (*parts, Payload(STATE, self._learner.state_bytes))
        steps: tuple[TaskStep, ...] = ()
        if parts:  # a request without bytes arrives immediately
            steps = (Download(parts),)
            if self.down.model_s:
                steps += self.down.coding_steps(contents, "decode")
        # a model to a device is encoded whole, without a base model and a residual
        coded = self.down.encode_and_decode(contents, {}, {})
        instruction = Instruction(job, received(coded.arriving), round_number)
        return Request(steps, TaskContext(instruction, brings_base=brings_base))

    # from a device to the server

    def answer(
        self, device: int, contents: Contents, result: LocalResult, context: TaskContext
    ) -> tuple[TaskStep, ...]:
        """Build the steps that deliver a device's answer; store the decoded answer in ``context``.

        Args:
            device: ID of the device.
            contents: the contents by name, as ``Client.reply`` has returned them.
            result: the result of the device's computations.
            context: context of the task; its attribute ``answer`` is set.

        Raises:
            SimulationError: a content has a type or a size that cannot be sent.
        """
        parts = payloads(contents, self.up)
        encoding = self.up.coding_steps(contents, "encode") if self.up.model_s else ()
        update = result.update
        is_training = update is not None and context.instruction.job == "train"
        if self._learner.state_bytes and is_training:  # the update brings the trainer's state
            parts = (*parts, Payload(STATE, self._learner.state_bytes))
        bases: dict[Ref, Ref] = {}  # update -> the model from which it was trained
        if update is not None and result.start is not None:
            bases[update] = result.start
        # name of a content -> what encoding has left out of the device's last message
        residuals = self._devices.residuals.get(device, {})
        coded = self.up.encode_and_decode(contents, bases, residuals, self._added_up)
        context.answer = coded
        _copy_loss(contents, coded.arriving, result)
        return (*encoding, Upload(parts)) if parts else ()

    def encoding_s(self, size: float) -> float:
        """Return the time (s) to encode models whose total encoded size is ``size`` bytes."""
        return size / self.up.model_bytes * self.up.model_s

    @property
    def takes_time_to_encode(self) -> bool:
        """Whether devices take simulated time to encode models, by the costs of the codec."""
        return bool(self.up.model_s)


def _copy_loss(contents: Contents, arriving: Contents, result: LocalResult) -> None:
    """Set the training loss of a decoded update to the loss of the update before encoding.

    The decoded update is a new model, of which no training has measured a loss.

    Args:
        contents: the contents as the device gave them.
        arriving: the decoded contents, whose update is changed.
        result: the result of the device's computations, with the update before encoding.
    """
    update = result.update
    if result.trained is None or update is None:
        return
    if update is result.trained and arriving is contents:
        return  # the server receives the trained model itself, so the loss is already set
    for name, value in contents.items():
        # a ``Partial`` has some tensors of a model
        model = value.model if type(value) is Partial else value
        if model is update and arriving[name].loss is None:
            arriving[name].loss = result.trained.loss
