"""The devices as their own client halves see them: facts of their data, and their state.

The server does not see these.
"""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, lru_cache, partial
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from fedsim.common.training import Places, Training
from fedsim.federation.contents import Contents, Lazy, WireSizes, payloads
from fedsim.learning.functions import Function, spliced, weighted_sum
from fedsim.learning.refs import Ref
from fedsim.world.network.endpoints import Direction

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.world.batteries import Batteries
    from fedsim.world.population import Population


class Device:
    """A device in the hands of its client half: its number, its data's facts, its state and its
    arithmetic.
    """

    __slots__ = ("_devices", "number")

    def __init__(self, number: int, devices: "Devices") -> None:
        self.number = number
        self._devices = devices

    @property
    def samples(self) -> int:
        """Training samples that it holds now."""
        return self._devices.population.samples.item(self.number)

    @property
    def state(self) -> dict[str, Any]:
        """Its memory: JSON-able values and refs."""
        return self._devices.states.setdefault(self.number, {})

    @property
    def epoch_s(self) -> float:
        """Time of an epoch over its samples at its own, undisturbed speed (s); infinite without
        memory for the training.
        """
        population = self._devices.population
        epoch = Training(None)
        if population.failing_s(self.number, epoch, self.samples) is not None:
            return math.inf
        return float(population.training_s(self.number, epoch, self.samples))

    @property
    def clock_s(self) -> float:
        """Present time by its clock (s)."""
        return self._devices.clock()

    def model_s(self, direction: Direction) -> float:
        """Time of a model on its own, otherwise idle link, with decoding or encoding it (s)."""
        return self._devices.model_s(self.number, direction)

    @property
    def battery(self) -> float:
        """Charge of its battery now, 0 to 1; 1 for a device without one."""
        batteries = self._devices.batteries
        return 1.0 if batteries is None else batteries.charge(self.number)

    @property
    def plugged_in(self) -> bool:
        """Whether it is on a charger now; true for a device without a battery."""
        batteries = self._devices.batteries
        return batteries is None or batteries.plugged_in(self.number)

    @property
    def link(self) -> str | None:
        """Kind of its link: the name of its energy preset, such as ``smartphone-4g``; None
        without a preset.
        """
        return self._devices.link_of(self.number)

    @property
    def label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class now; int64 [C]."""
        return self._devices.label_counts(self.number, None)

    @property
    def first_label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class before any shift; int64 [C]."""
        return self._devices.label_counts(self.number, 0)

    @property
    def used_label_counts(self) -> NDArray[np.int64]:
        """Training samples of each class in the data of its last training or test of models;
        int64 [C].
        """
        return self._devices.label_counts(
            self.number, self._devices.used_versions.get(self.number, 0)
        )

    def initial(self, count: int = 0) -> Ref:
        """A freshly initialised model, the one that ``ServerModels.initial(count)`` gives."""
        initial = self._devices.initial
        if count not in initial:
            initial[count] = self._devices.learner.initial(count)
        return initial[count]

    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self._devices.zero

    def mix(self, parts: Sequence[tuple[Ref, float]], otherwise: Ref | None = None) -> Ref:
        """As ``ServerModels.mix``, but nothing is left out: for a model that is not finite
        ``otherwise`` is the result.
        """
        models = [model for model, _ in parts]
        coefficients = [coefficient for _, coefficient in parts]
        return self.apply(weighted_sum, models, otherwise=otherwise, coefficients=coefficients)

    def splice(self, rest: Ref, other: Ref, places: Places) -> Ref:
        """A model with other numbers at some places: those of ``other``, a whole model or what
        is there alone.
        """
        return self.apply(spliced, [rest, other], places=places)

    def apply(self, function: Function, models: Sequence[Ref], **constants: Any) -> Ref:
        """The result of a pure function of models; see ``ServerModels.apply``."""
        return self._devices.learner.apply(function, models, **constants)

    def numbers(
        self, function: Function, models: Iterable[Ref], count: int = 1, **constants: Any
    ) -> Lazy:
        """Numbers that a pure function finds from models, ``count`` of them, to be sent; see
        ``ServerModels.numbers``.
        """
        return Lazy("numbers", self.apply(function, tuple(models), size=count, **constants), count)

    def last_gradient(self, update: Ref) -> Ref:
        """The gradient of an update's last mini-batch, which its training leaves behind at no
        cost.
        """
        return self._devices.learner.last_gradient(update)

    def upload_bytes(self, contents: Contents) -> float:
        """Bytes of a message to the server with these contents."""
        state = self._devices.learner.state_bytes if "update" in contents else 0.0
        return sum(part.bytes for part in payloads(contents, self._devices.sizes)) + state


_REMEMBERED = ("states", "used_versions", "initial", "residuals", "bases", "zero")


class Devices:
    """The devices' knowledge, each of itself; ``label_counts`` is by device and version (None:
    the present data).
    """

    def __init__(
        self,
        population: "Population",
        learner: "Learner",
        label_counts: Callable[[int, int | None], NDArray[np.int64]],
        sizes: WireSizes,
    ) -> None:
        self.population = population
        self.learner = learner
        self.label_counts = label_counts
        self.sizes = sizes
        self.clock: Callable[[], float]  # these four are set when they are known
        self.model_s: Callable[[int, Direction], float]
        self.batteries: Batteries | None = None
        self.link_of: Callable[[int], str | None] = lambda _: None
        self.states: dict[int, dict[str, Any]] = {}  # each device's state
        # of its data, on which each last computed for a task; absent: the first
        self.used_versions: dict[int, int] = {}
        self.initial: dict[int, Ref] = {}
        # errors of lossy codecs, by the names of contents
        self.residuals: dict[int, dict[str, Ref]] = {}
        self.bases: dict[int, bool] = {}  # devices that have the model's frozen tensors
        self.of: Callable[[int], Device] = lru_cache(maxsize=4096)(partial(Device, devices=self))

    @cached_property
    def zero(self) -> Ref:
        """The model whose weights are all 0."""
        return self.learner.zero()

    # Snapshots, between two instants.

    def snapshot(self) -> dict[str, Any]:
        """Memory of all devices, with ``zero`` if anybody has asked for it; ``restore`` takes it
        back.
        """
        return {name: value for name, value in vars(self).items() if name in _REMEMBERED}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore the state from ``snapshot``."""
        vars(self).update(state)
