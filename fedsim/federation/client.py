"""The client half of a strategy, which runs on a device.

It knows only that device and the messages of the server.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fedsim.common.spec import Spec
from fedsim.common.training import NO_LIMIT, CutBy, Limit, Training
from fedsim.federation.contents import Contents, Header
from fedsim.federation.devices import Device
from fedsim.learning.architecture import Tensor
from fedsim.learning.refs import Ref
from fedsim.world.steps import Computation, Train

P = TypeVar("P", bound=Spec)

BEST = "best"
"""A ``start`` of a ``Training``: the best of the models that the device has just tested, in the
``Evaluate`` step before.
"""


@dataclass(frozen=True, slots=True)
class PreviousResult:
    """A ``start`` or ``anchor`` of a ``Training``: a combination with earlier results of its task.

    Attributes:
        parts: pairs of a model and its coefficient; a number stands for the result of that
            training, from 0.
    """

    parts: tuple[tuple[Ref | int, float], ...]


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts of a run that both halves know before it begins (``self.setting``).

    Attributes:
        devices: number of devices.
        parameters: trained numbers of the model, d.
        classes: outputs of the model, M.
        mean_epoch_s: mean over all devices of an undisturbed epoch's time (s), the unit of
            relative deadlines.
        lr_in: function of a round's number (from 0) that returns its learning rate.
        planned_rounds: number of rounds after which the run is to stop; None without such a stop.
        momentum: momentum of local SGD.
        tensors: function without arguments that returns the tensors (``Tensor``) of a flat
            model, in order; none if only its size is known.
        keeps: whether the scenario says which tensors stay on the devices.
        cut: function of a way (``width``, ``rank`` or ``adapters``) and a size that returns the
            tensors of a smaller model.
        adapter_scale: alpha over the rank of the model's adapters.
        kinds: names of the kinds of devices, in the order of the scenario; none where devices
            have no kind.
        kind_of: function of a device that returns its kind, which it says when it joins; None
            without kinds.
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


@dataclass(slots=True)
class Instruction:
    """Request of the server to a device. ``instruction["model"]`` is one of its contents.

    Attributes:
        job: ``train``, or another name that the two halves of a strategy agree on (``Server.ask``).
        contents: what the device received, by name.
        round: the round for which it works; None: for none.
        value: the result of its real work (``Client.real``), from ``Client.work`` on.
    """

    job: str
    contents: dict[str, Any]
    round: int | None
    value: Any = None

    def __getitem__(self, name: str) -> Any:
        return self.contents[name]


class Real(NamedTuple):
    """Real work for a device's answer: a function at the top of a module, and its arguments.

    It runs alone, maybe in another process and on copies, and restores the states of global
    generators that it uses.

    Attributes:
        function: the function.
        arguments: its arguments; they can be pickled.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class LocalResult(NamedTuple):
    """Results of a device's computations in one task.

    Attributes:
        samples: training samples computed on.
        epochs: local epochs behind the update.
        steps: SGD steps behind the update.
        update: the model that the last training gave; None without a finished epoch.
        start: the model from which it was trained.
        tested: the best of the tested models; None without an ``Evaluate`` step.
        earlier: the models of earlier trainings that finished an epoch.
        trained: the model that the last training gave, before any change by the device.
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
    """Client half of a strategy. One object serves all devices.

    The memory of each device is in its ``state``; an attribute of this object is lost when a run is
    resumed. For each task the hooks are called in this order: ``real``, ``work`` (by default
    ``training`` and ``limit``), ``computed``, ``reply``, and ``sent`` if the answer arrives.

    Attributes:
        params: the strategy's keys.
        setting: facts of the run, a ``RunInfo``.
    """

    def __init__(self, params: P, setting: RunInfo) -> None:
        self.params = params
        self.setting = setting

    def real(self, device: Device, instruction: Instruction) -> Real | None:
        """Return real work that begins after the message is sent; by default there is none.

        Args:
            device: the device.
            instruction: the message to the device.

        Returns:
            The function and its arguments; its result is ``instruction.value`` from ``work`` on.
        """
        return None

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        """Return the steps that the device computes for a message; by default it trains.

        Args:
            device: the device.
            instruction: the message to the device.

        Returns:
            ``Train``, ``Evaluate``, ``Work`` and ``Pause`` steps, in order; empty: it answers at
            once.
        """
        return (Train(self.training(device, instruction), self.limit(device, instruction)),)

    def training(self, device: Device, instruction: Instruction) -> Training:
        """Return the training of the default ``work``, from the received ``model``.

        It has ``local_epochs`` epochs, or one if the strategy has no such key.

        Args:
            device: the device.
            instruction: the message to the device.
        """
        return Training(instruction.contents["model"], getattr(self.params, "local_epochs", 1))

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        """Return the limit of the training's time; by default there is none.

        Args:
            device: the device.
            instruction: the message to the device.
        """
        return NO_LIMIT

    def computed(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> LocalResult:
        """Change the result before the device answers; by default it stays as it is.

        Args:
            device: the device.
            instruction: the message to the device.
            result: the result of the steps.

        Returns:
            The result that ``reply`` receives.
        """
        return result

    def reply(
        self, device: Device, instruction: Instruction, result: LocalResult
    ) -> Contents | None:
        """Return the answer of the device; by default its update, samples and epochs.

        The answer may be cut off on its way, so this method changes no state.
        ``Lazy("loss", result.update)`` as a content reports the training loss.

        Args:
            device: the device.
            instruction: the message to the device.
            result: the result of the steps.

        Returns:
            Contents by name; None sends no answer. Strategies in rounds and without rounds need
            ``update`` and ``samples`` of a ``train``.
        """
        return {
            "update": result.update,
            "samples": Header(result.samples),
            "epochs": Header(result.epochs),
        }

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """Called when the answer has arrived; the place to change the device's state.

        An answer that is cut off does not arrive, and the device knows that.

        Args:
            device: the device.
            instruction: the message to the device.
            reply: the contents that were sent.
        """

    def on_shift(self, device: Device) -> Contents | None:
        """Return a message about changed data, free of cost; by default there is none.

        Called when the device's data have changed and the device can be reached.

        Args:
            device: the device.

        Returns:
            Contents by name; None sends no message.
        """
        return None
