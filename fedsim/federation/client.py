"""Base of a strategy's code on devices, the client half of the strategy.

The code on a device reads only the state of that device and the messages of the server.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Generic, NamedTuple, TypeVar

from fedsim.common.errors import show_value
from fedsim.common.returns import returns
from fedsim.common.saved import saved
from fedsim.common.spec import Spec
from fedsim.common.training import NO_LIMIT, CutBy, Limit, Training
from fedsim.federation.client_checks import (
    CONTENTS_IN_WORDS,
    RESULT_IN_WORDS,
    STEPS_IN_WORDS,
    find_wrong_contents,
    find_wrong_field,
    find_wrong_result,
    find_wrong_steps,
)
from fedsim.federation.contents import Contents, Header, missing_content
from fedsim.federation.devices import Device
from fedsim.federation.previous_result import PreviousResult as PreviousResult
from fedsim.learning.architecture import Tensor
from fedsim.learning.refs import Ref
from fedsim.world.steps import TaskStep, Train

P = TypeVar("P", bound=Spec)

BEST = "best"
"""Value of ``Training.start``: the model of least loss in the task's last ``Evaluate`` step."""


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Properties of a run that a strategy's code knows from the start, such as its sizes.

    A strategy's code on the server and on devices reads it as ``self.setting``.

    Attributes:
        devices: count of devices.
        parameters: count of trained parameters of the model, d.
        classes: count of outputs of the model, M.
        mean_epoch_s: time of an undisturbed local epoch, mean over all devices (s). Relative
            deadlines are multiples of it.
        lr_in: function of a round's index (from 0) that returns the learning rate of the round.
        planned_rounds: count of rounds after which the run stops; None if no such stop is planned.
        momentum: momentum of local SGD.
        tensors: function without arguments that returns the model's tensors (``Tensor``: name, size
            and shape), in their order in the flat array of all parameters; an empty sequence if
            only the model's size is known.
        keeps: whether the scenario sets ``model.keep`` or ``model.send``, so that some tensors may
            stay on the devices.
        cut: function that returns the tensors of a smaller model, in order. The arguments of the
            function are the kind of cut (``width``, ``rank`` or ``adapters``) and the size, as in
            ``ModelCut``.
        adapter_scale: scale of the model's adapters (LoRA), alpha divided by their rank; 1 without
            adapters.
        kinds: names of the kinds of devices (hardware, such as a phone or a board), in the order of
            the scenario; empty if devices have no kind.
        kind_of: function of a device's ID that returns the name of the device's kind, which the
            device reports when it joins; the result is None if devices have no kind.
        learns: whether models have weights; false for ``learning = "off"``.
    """

    devices: int
    parameters: int
    classes: int
    mean_epoch_s: float
    lr_in: Callable[[int], float]
    planned_rounds: int | None
    momentum: float = 0.0
    tensors: Callable[[], Sequence[Tensor]] = tuple
    keeps: bool = False
    cut: Callable[[CutBy, float], Sequence[Tensor]] = lambda by, size: ()
    adapter_scale: float = 1.0
    kinds: Sequence[str] = ()
    kind_of: Callable[[int], str | None] = lambda device: None
    learns: bool = True


@saved()
@dataclass(slots=True)
class Instruction:
    """Message of the server as a client receives it: the job to do, and contents such as a model.

    ``instruction["model"]`` is short for ``instruction.contents["model"]``.

    Attributes:
        job: ``train``, or another name on which the strategy's code on server and devices agrees
            (argument ``job`` of ``Server.ask``).
        contents: name -> received content, such as a model (``Ref``) or a number.
        round: the round for which the device works; None if it works for no round.
        value: what the function of ``Client.real`` returned, set before ``Client.work`` is called.
    """

    job: str
    contents: dict[str, Any]
    round: int | None
    value: Any = None

    def __getitem__(self, name: str) -> Any:
        try:
            return self.contents[name]
        except KeyError:
            raise missing_content(self, self.contents, name) from None


class Real(NamedTuple):
    """Python function, with its arguments, that is run for a device's task; see ``Client.real``.

    The function may for example train a model of the user's own. It takes no simulated time. It may
    run in another process, on copies of the arguments. No other function of a ``Real`` runs in the
    same process at the same time.

    The function must be defined at the top of a module. If it uses global random generators, it
    must restore their states before it returns.

    Attributes:
        function: the function.
        arguments: positional arguments of the function, picklable.
    """

    function: Callable[..., object]
    arguments: tuple[object, ...]


def _find_wrong_real(real: Real | None, *_: object, **__: object) -> str:
    if real is None:
        return ""
    if not callable(real.function):
        return f"a Real whose function is {show_value(real.function)}"
    if not isinstance(real.arguments, tuple | list):
        return f"a Real whose arguments are {show_value(real.arguments)}"
    return ""


class LocalResult(NamedTuple):
    """Outcome of a device's computations for one request of the server: models and counts.

    ``Client.computed`` and ``Client.reply`` receive it. Models are names (``Ref``) whose weights
    are computed when needed.

    Attributes:
        samples: count of training samples on which the device has computed.
        epochs: count of local epochs in the update.
        steps: count of SGD steps in the update.
        update: the model after the last training; None if no training finished an epoch.
        start: the model from which the update was trained; None if there is no update.
        tested: the model of least loss among the models that the last ``Evaluate`` step has tested;
            None if the task has no such step.
        earlier: models after the earlier trainings that finished an epoch, in order.
        trained: the model after the last training, before ``Client.computed`` or an attack changed
            the update.
    """

    samples: int
    epochs: int
    steps: int
    update: Ref | None
    start: Ref | None
    tested: Ref | None
    earlier: tuple[Ref, ...] = ()
    trained: Ref | None = None


class Client(Generic[P]):
    """Base of a strategy's code on devices: what a device computes for a request, and its answer.

    Each device's memory is in ``Device.state``. An attribute of this object is lost when a run is
    resumed. For each task the hooks are called in this order: ``real``, ``work`` (by default
    ``training`` and ``limit``), ``computed``, ``reply``, and ``on_sent`` if the answer arrives.

    Attributes:
        params: the keys of ``[strategy]``.
        setting: properties of the run, such as the count of devices, a ``RunInfo``.
    """

    former_hooks: ClassVar[Mapping[str, str]] = {"sent": "on_sent"}
    """Former names of hooks, which are refused: former name -> present name."""

    def __init__(self, params: P, setting: RunInfo) -> None:
        self.params = params
        self.setting = setting

    @returns("a Real of a function and its arguments, or None", _find_wrong_real)
    def real(self, device: Device, instruction: Instruction) -> Real | None:
        """Return a Python function to run for real before the device's work; by default none.

        The function takes no simulated time.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.

        Returns:
            The function and its arguments; None for no such function. The result of the function is
            ``instruction.value`` when ``work`` is called.
        """
        return None

    @returns(STEPS_IN_WORDS, find_wrong_steps)
    def work(self, device: Device, instruction: Instruction) -> Sequence[TaskStep]:
        """Return the steps that the device computes for a message; by default it trains.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.

        Returns:
            ``Train``, ``Evaluate``, ``Work`` and ``Pause`` steps, or steps of a ``TaskStep`` of your
            own, in order; empty if the device answers without a computation.
        """
        return (Train(self.training(device, instruction), self.limit(device, instruction)),)

    @returns("a Training", find_wrong_field)
    def training(self, device: Device, instruction: Instruction) -> Training:
        """Return the local training that ``work`` does, unless a subclass overrides ``work``.

        By default it starts from the received content ``model`` and has ``local_epochs`` epochs, or
        one epoch if the strategy has no such key.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.

        Returns:
            The training: start model, epochs and terms of the loss.
        """
        return Training(instruction["model"], getattr(self.params, "local_epochs", 1))

    @returns("a Limit", find_wrong_field)
    def limit(self, device: Device, instruction: Instruction) -> Limit:
        """Return the time limit of the training in the default ``work``; by default there is none.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.

        Returns:
            A deadline (simulated time) or a budget of computing time (s); ``Limit()`` for none.
        """
        return NO_LIMIT

    @returns(RESULT_IN_WORDS, find_wrong_result)
    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        """Hook to change the result of the device's computations before ``reply`` receives it.

        By default the result is unchanged.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.
            result: models and counts of the steps that ``work`` returned.

        Returns:
            The result that ``reply`` receives.
        """
        return result

    @returns(CONTENTS_IN_WORDS, find_wrong_contents)
    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return the answer of the device; by default its update, samples and epochs.

        The answer may be cut off on its way. A change of ``Device.state`` in this method is kept
        nevertheless; make a change in ``on_sent`` if it requires that the server has the answer.
        To report the training loss, include the content ``Lazy("loss", result.update)``.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to the device.
            result: the result that ``computed`` returned.

        Returns:
            Contents by name; None sends no answer. ``Synchronous`` and ``Asynchronous``
            strategies need ``update`` and ``samples`` in the answer to a job ``train``.
        """
        return {
            "update": result.update,
            "samples": Header(result.samples),
            "epochs": Header(result.epochs),
        }

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """Hook after the device's answer has arrived, for changes of the device's state.

        By default nothing is done. The method is not called if the answer is cut off.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message to which the device has answered.
            reply: the contents of the answer, as they were sent.
        """

    @returns(CONTENTS_IN_WORDS, find_wrong_contents)
    def on_shift(self, device: Device) -> Contents | None:
        """Return a message to the server about the device's changed data; by default there is none.

        Called when the device's data have shifted, as soon as the device can be reached. The
        message takes no time and no bytes.

        Args:
            device: the device on which this code runs, with its data and its state.

        Returns:
            Contents by name; None sends no message.
        """
        return None
