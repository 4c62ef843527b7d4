"""API of a strategy's code on devices: labels and sizes of a device's data, and its state.

The server sees neither data nor state.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedsim.common.arguments import (
    CALLABLE,
    COUNT,
    ArgumentRule,
    instance,
    list_of,
    number,
    optional,
    takes,
)
from fedsim.common.training import LocalSteps, Places, Training
from fedsim.federation.argument_rules import (
    CONTENTS,
    DIRECTION,
    MODEL,
    MODELS,
    WEIGHTED_MODELS,
)
from fedsim.federation.contents import Contents, EncodedSizes, Lazy, is_range, payloads
from fedsim.learning.functions import DataFunction, Function, spliced, weighted_sum
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.world.batteries import Batteries
    from fedsim.world.population import Population


def linear_combination(
    learner: "Learner", parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None
) -> Ref:
    """Return the sum of models, each times its coefficient.

    ``Learner.mix`` leaves out models that are not finite; this function leaves out none.

    Args:
        learner: creates references to models (``Ref``), and computes models.
        parts: pairs of a model and its coefficient.
        otherwise: the model that replaces the sum if a model is not finite; None: the sum, which
            is then not finite either.
    """
    models = [model for model, _ in parts]
    coefficients = [coefficient for _, coefficient in parts]
    return learner.apply(weighted_sum, models, otherwise=otherwise, coefficients=coefficients)


_ITERABLE = instance(Iterable, "a list of models")
_PLACES = list_of(ArgumentRule(lambda _, value: is_range(value), "a range (begin, end)"), "ranges")


class Device:
    """API of a strategy's code on one device: its ID, data, state, and arithmetic with models.

    A call with a wrong argument raises ``SimulationError``, which names the argument and its value.

    Attributes:
        number: ID of the device.
    """

    __slots__ = ("_devices", "number")

    def __init__(self, number: int, devices: "Devices") -> None:
        self.number = number
        self._devices = devices

    @property
    def samples(self) -> int:
        """Count of training samples that the device has now; data shifts may change it."""
        return self._devices.population.samples.item(self.number)

    @property
    def state(self) -> dict[str, Any]:
        """Memory of the device between tasks: a dict that the strategy's code may change.

        Values are JSON-able, or models (``Ref``). The dict is saved in checkpoints.
        """
        return self._devices.states.setdefault(self.number, {})

    @property
    def epoch_s(self) -> float:
        """Time of an epoch over the device's samples without slow phases or random variation (s).

        Infinite if the training does not fit into the device's memory.
        """
        population = self._devices.population
        epoch = population.fit(self.number, Training(None), self.samples)
        if population.failing_s(self.number, epoch, self.samples) is not None:
            return math.inf
        return float(population.training_s(self.number, epoch, self.samples))

    @takes(epochs=number(least=0.0))
    def training_s(self, epochs: int) -> float:
        """Return the time of a training over the device's samples (s).

        Slow phases and random variation are not included. The time is infinite if the training does
        not fit into the device's memory.

        Args:
            epochs: count of epochs; not used if ``population.local`` gives the device a count of
                SGD steps.
        """
        population = self._devices.population
        steps = 0  # count of SGD steps by ``population.local``; 0 if it gives none
        if population.own is not None:
            steps = population.own.steps.item(self.number)
        if not steps:
            return self.epoch_s * epochs
        # a device with little memory may train only its model's last layers
        training = population.fit(self.number, Training(None, LocalSteps(steps)), self.samples)
        if population.failing_s(self.number, training, self.samples) is not None:
            return math.inf
        return float(population.training_s(self.number, training, self.samples))

    @property
    def clock_s(self) -> float:
        """Present time by the device's clock (s), which always shows the simulated time."""
        return self._devices.clock()

    @takes(direction=DIRECTION)
    def model_s(self, direction: Direction) -> float:
        """Return the time to transfer a whole model and to encode or decode it (s).

        The device's link is taken as free of other messages.

        Args:
            direction: ``down`` with the time to decode, or ``up`` with the time to encode.
        """
        return self._devices.model_s(self.number, direction)

    @property
    def battery(self) -> float:
        """Charge of the device's battery now, 0 to 1; 1 for a device without a battery."""
        batteries = self._devices.batteries
        return 1.0 if batteries is None else batteries.charge(self.number)

    @property
    def plugged_in(self) -> bool:
        """Whether the device is on a charger now; true for a device without a battery."""
        batteries = self._devices.batteries
        return batteries is None or batteries.plugged_in(self.number)

    @property
    def link(self) -> str | None:
        """Name of the preset of the link's energy use, such as ``smartphone-4g``, or None."""
        return self._devices.link_of(self.number)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Count of the device's present training samples by class; int64 [classes]."""
        return self._devices.label_counts(self.number, None)

    @property
    def first_label_counts(self) -> NDArray[np.int64]:
        """Count of the device's training samples by class at the run's start; int64 [classes]."""
        return self._devices.label_counts(self.number, 0)

    @property
    def used_label_counts(self) -> NDArray[np.int64]:
        """Count of samples by class, int64 [classes], in the data that the device used last.

        The counts are of the training samples that the device had at its last training or test, or
        at the run's start if it has done neither.
        """
        return self._devices.label_counts(
            self.number, self._devices.used_versions.get(self.number, 0)
        )

    @takes(count=COUNT)
    def initial(self, count: int = 0) -> Ref:
        """Return the name (``Ref``) of a freshly initialised model.

        ``ServerModels.initial`` returns the same model for the same ``count``.

        Args:
            count: index of the initialisation, from 0; each index has other weights.
        """
        initial_models = self._devices.initial  # index of the initialisation -> model
        if count not in initial_models:
            initial_models[count] = self._devices.learner.initial(count)
        return initial_models[count]

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self._devices.zero

    @takes(parts=WEIGHTED_MODELS, otherwise=optional(MODEL))
    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None) -> Ref:
        """Return the sum of models, each times its coefficient.

        ``ServerModels.mix`` leaves out models that are not finite; this method leaves out none.

        Args:
            parts: pairs of a model and its coefficient.
            otherwise: the result if a model is not finite; None: the result is not finite.
        """
        return linear_combination(self._devices.learner, parts, otherwise)

    @takes(rest=MODEL, other=MODEL, places=_PLACES)
    def splice(self, rest: Ref, other: Ref, places: Places) -> Ref:
        """Return a copy of a model with some of its parameters replaced by another model's.

        Args:
            rest: the model that is copied.
            other: the model whose parameters replace: a whole model, or only the parameters at
                ``places``.
            places: ranges (start, end) of the replaced parameters in the array of all parameters of
                the model.
        """
        return self.apply(spliced, [rest, other], places=places)

    @takes(function=CALLABLE, models=MODELS)
    def apply(self, function: Function, models: Sequence[Ref], **constants: Any) -> Ref:
        """Return the result of a pure function of models; see ``ServerModels.apply``.

        Args:
            function: a function that the decorator ``pure`` marks as free of side effects.
            models: the models that the function receives, in this order.
            constants: the function's keyword arguments, JSON-able.
        """
        return self._devices.learner.apply(function, models, **constants)

    @takes(function=CALLABLE, models=_ITERABLE, count=COUNT)
    def numbers(
        self, function: Function, models: Iterable[Ref], count: int = 1, **constants: Any
    ) -> Lazy:
        """Return a content of a message: values that a pure function computes from models.

        The server reads it by ``ServerModels.numbers``.

        Args:
            function: a function that returns ``count`` values, and that the decorator ``pure``
                marks as free of side effects.
            models: the models that the function receives, in this order.
            count: count of values that are sent, 4 bytes each.
            constants: the function's keyword arguments, JSON-able.
        """
        return Lazy("numbers", self.apply(function, tuple(models), size=count, **constants), count)

    @property
    def features(self) -> int:
        """Count of numbers in a sample: the product of its shape."""
        return math.prod(self._devices.learner.shape)

    @takes(function=CALLABLE, count=COUNT)
    def of_data(self, function: DataFunction, count: int, **constants: object) -> Lazy:
        """Return a content of a message: values that a function computes from the training samples.

        The server reads it by ``ServerModels.numbers``. The computation takes no simulated time,
        unless ``Client.work`` returns a step ``Work`` for it.

        Args:
            function: a function of the samples [n, ...], their labels [n] and ``constants``, which
                returns ``count`` values; not called with ``learning = "off"``.
            count: count of values that are sent, 4 bytes each.
            constants: keyword arguments of the function.
        """
        devices = self._devices
        version = devices.population.version.item(self.number)
        ref = devices.learner.of_data(function, self.number, version, constants)
        return Lazy("numbers", ref, count)

    @takes(update=MODEL)
    def last_gradient(self, update: Ref) -> Ref:
        """Return the gradient of the last mini-batch of a training, as the name (``Ref``) of an array [d].

        The training has computed the gradient, so the call takes no simulated time.

        Args:
            update: the model after the training, which this device has done.
        """
        return self._devices.learner.last_gradient(update)

    @takes(contents=CONTENTS)
    def upload_bytes(self, contents: Contents) -> float:
        """Return the size of a message to the server (bytes).

        Args:
            contents: contents by name. The size includes a trainer's state that is sent with an
                ``update``.
        """
        state = self._devices.learner.state_bytes if "update" in contents else 0.0
        return sum(part.bytes for part in payloads(contents, self._devices.sizes)) + state


class DevicesState(TypedDict):
    """State of ``Devices`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        states: device -> its ``Device.state``.
        used_versions: device -> version of its data in its last computation; each shift of a
            device's data makes a new version.
        initial: index of an initialisation (``Device.initial``) -> the model.
        residuals: device -> name of a content -> residual, the part of the last message that its
            encoding has left out.
        with_base: IDs of the devices that have received the model's frozen tensors, which no
            training changes; ascending.
        zero: the model whose weights are all 0; missing if it was never used.
    """

    states: dict[int, dict[str, Any]]
    used_versions: dict[int, int]
    initial: dict[int, Ref]
    residuals: dict[int, dict[str, Ref]]
    with_base: list[int]
    zero: NotRequired[Ref]


class Devices:
    """Data and states of all devices, and the clock, which their ``Device`` objects read.

    Args:
        population: the devices.
        learner: creates references to models (``Ref``), and computes models.
        label_counts: function of a device and a version of its data (None: the present version)
            that returns the count of training samples by class, int64 [classes].
        sizes: sizes of encoded models.

    Attributes:
        clock: returns the present time (s); set by ``Run`` or, in a deployment, by ``DeviceHalf``.
        model_s: function of a device and a direction that returns the time to transfer and to
            encode or decode a model (s); set by ``Dispatch.connect`` or by ``DeviceHalf``.
        batteries: the batteries; None if devices have none; set by ``Run``.
        link_of: function of a device that returns the energy preset of its link, or None; set by
            ``Run``.
        states: device -> its ``Device.state``.
        used_versions: device -> version of its data in its last computation for a task. A version
            is an index from 0, as each shift of data makes a new version. A device without an entry
            has used version 0.
        initial: index of an initialisation (``Device.initial``) -> the model.
        residuals: device -> name of a content -> residual, the part of the last message that its
            encoding has left out.
        with_base: IDs of the devices that have received the model's frozen tensors, which no
            training changes.
        of: function of an ID that returns the ``Device``.
    """

    def __init__(
        self,
        population: "Population",
        learner: "Learner",
        label_counts: Callable[[int, int | None], NDArray[np.int64]],
        sizes: EncodedSizes,
    ) -> None:
        self.population = population
        self.learner = learner
        self.label_counts = label_counts
        self.sizes = sizes
        # the next four attributes are set later, when the rest of the run has been built
        self.clock: Callable[[], float]
        self.model_s: Callable[[int, Direction], float]
        self.batteries: Batteries | None = None
        self.link_of: Callable[[int], str | None] = lambda _: None
        self.states: dict[int, dict[str, Any]] = {}  # device -> its ``Device.state``
        self.used_versions: dict[int, int] = {}  # device -> version of the data that it used last
        self.initial: dict[int, Ref] = {}  # index of the initialisation -> model
        # device -> name of a content -> what encoding has left out of the last message
        self.residuals: dict[int, dict[str, Ref]] = {}
        self.with_base: set[int] = set()  # devices that have received the frozen tensors
        # a ``Device`` only reads this object, so it can be built again when it is needed
        self.of: Callable[[int], Device] = lru_cache(maxsize=4096)(partial(Device, devices=self))

    @cached_property
    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self.learner.zero()

    def snapshot(self) -> DevicesState:
        """Return the state of all devices for ``restore``.

        ``zero`` is included if the zero model was used.
        """
        state: DevicesState = {
            "states": self.states,
            "used_versions": self.used_versions,
            "initial": self.initial,
            "residuals": self.residuals,
            "with_base": sorted(self.with_base),
        }
        if "zero" in vars(self):  # the cached property ``zero`` has been read
            state["zero"] = self.zero
        return state

    def restore(self, state: DevicesState) -> None:
        """Set the state that ``snapshot`` returned, when a run is resumed from a checkpoint."""
        self.states = state["states"]
        self.used_versions = state["used_versions"]
        self.initial = state["initial"]
        self.residuals = state["residuals"]
        self.with_base = set(state["with_base"])
        if "zero" in state:
            self.zero = state["zero"]
