"""The client half of a strategy, which runs on a device. It knows only that device and the messages of the server."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

from fedsim.federation.contents import Contents, Header
from fedsim.federation.devices import Device
from fedsim.language.spec import Spec
from fedsim.learning.architecture import Tensor
from fedsim.learning.refs import Ref
from fedsim.training import NO_LIMIT, CutBy, Limit, Training
from fedsim.world.task import Computation, Train

P = TypeVar("P", bound=Spec)

BEST = "best"
"""``Training.start``: the best of the models that the device has just tested, in the ``Evaluate`` step before."""


@dataclass(frozen=True, slots=True)
class PreviousResult:
    """``Training.start`` or ``anchor``: a linear combination with the results of trainings before in the same task."""

    parts: tuple[tuple[Ref | int, float], ...]  #: models and coefficients; a number stands for that training, from 0


@dataclass(frozen=True, slots=True)
class RunInfo:
    """Facts of a run that both halves know before it begins."""

    devices: int
    parameters: int  #: trained numbers of the model, d
    classes: int  #: outputs of the model, M
    mean_epoch_s: float  #: mean over all devices of an undisturbed epoch's time (s), the unit of relative deadlines
    lr_in: Callable[[int], float]  #: the learning rate of a round
    planned_rounds: int | None  #: when the run is to stop
    momentum: float = 0.0  #: of local SGD
    tensors: Callable[[], Sequence[Tensor]] = tuple  #: of a flat model, in order; none where only its size is known
    keeps: bool = False  #: whether the scenario says which tensors stay on the devices
    cut: Callable[[CutBy, float], Sequence[Tensor]] = lambda by, size: ()  #: the tensors of a smaller model (``Model.cut``)
    adapter_scale: float = 1.0  #: alpha over the rank of the model's adapters
    kinds: Sequence[str] = ()  #: names of the kinds of devices, in the order of the scenario; none where they have no kind
    kind_of: Callable[[int], str | None] = lambda device: None  #: the kind of a device, which it says when it joins


@dataclass(slots=True)
class Instruction:
    """Request of the server to a device."""

    job: str  #: the job: ``train``, or another name that the two halves of a strategy agree on
    contents: dict[str, Any]  #: received contents by name
    round: int | None
    value: Any = None  #: the result of its real work (``Client.real``), from ``Client.work`` on

    def __getitem__(self, name: str) -> Any:
        return self.contents[name]


class Real(NamedTuple):
    """Real work for a device's answer: a function at the top of a module, and its arguments.

    It runs alone, maybe in another process and on copies, and restores the states of global generators that it uses.
    """

    function: Callable[..., Any]
    arguments: tuple[Any, ...]


class LocalResult(NamedTuple):
    """Results of a device's computations in one task."""

    samples: int  #: training samples computed on
    epochs: int  #: local epochs behind the update
    steps: int  #: SGD steps behind the update
    update: Ref | None  #: the model that the last training gave; None without a finished epoch
    start: Ref | None  #: the model from which it was trained
    tested: Ref | None  #: the best of the tested models; None without an ``Evaluate`` step
    earlier: tuple[Ref, ...] = ()  #: the models of the trainings before the last, of those with a finished epoch
    trained: Ref | None = None  #: the model that the last training gave, before any change by the device


class Client(Generic[P]):
    """Client half of a strategy. One object serves all devices: the memory of each is in that device's ``state``."""

    def __init__(self, params: P, setting: RunInfo) -> None:
        self.params, self.setting = params, setting

    def real(self, device: Device, instruction: Instruction) -> Real | None:
        """Real work, if any, begun after the message is sent; its result is ``instruction.value`` from ``work`` on."""
        return None

    def work(self, device: Device, instruction: Instruction) -> Sequence[Computation]:
        """Steps that the device computes when it has received the message; by default it trains."""
        return (Train(self.training(device, instruction), self.limit(device, instruction)),)

    def training(self, device: Device, instruction: Instruction) -> Training:
        """The training, by default of ``local_epochs`` from the received model."""
        return Training(instruction.contents["model"], getattr(self.params, "local_epochs", 1))

    def limit(self, device: Device, instruction: Instruction) -> Limit:
        """Limit of the training's time."""
        return NO_LIMIT

    def computed(self, device: Device, instruction: Instruction, result: LocalResult) -> LocalResult:
        """Change the result before the device answers; by default it stays as it is."""
        return result

    def reply(self, device: Device, instruction: Instruction, result: LocalResult) -> Contents | None:
        """Answer of the device when it has computed; None for none. By default its update, samples and epochs."""
        return {"update": result.update, "samples": Header(result.samples), "epochs": Header(result.epochs)}

    def sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        """The answer has arrived; one that is cut off has not, and the device knows."""

    def on_shift(self, device: Device) -> Contents | None:
        """Message to the server, free of cost, when the device's data have changed and it can be reached; None for none."""
        return None
