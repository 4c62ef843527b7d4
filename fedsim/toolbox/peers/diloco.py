"""Periodic averaging without a server: local SGD, DiLoCo, and DiLoCo whose fragments stream while devices train."""

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from fedsim.errors import ScenarioError
from fedsim.federation import Device, Instruction, Partial, Peer
from fedsim.language.spec import OnlyWith
from fedsim.learning.refs import Ref
from fedsim.toolbox.peers.base import PeerClient, Peers
from fedsim.toolbox.peers.collective import CollectiveHalf, CollectiveParams
from fedsim.training import Places, Training


class DiLoCoParams(CollectiveParams):
    """Parameters of DiLoCo.

    Attributes:
        local_steps: SGD steps between two synchronisations; None: ``local_epochs`` passes.
        outer_lr: the outer learning rate.
        outer_momentum: of the outer Nesterov momentum; 0: none.
        fragments: the model is cut into so many parts of equal size, and each synchronisation is of one of them, in turn.
        overlap: whether an all-reduce goes on while devices train, and its result is taken at the next synchronisation.
        mixing: share of its own fragment that a device keeps then: it has moved on since it sent it.
    """

    kind: Literal["diloco"] = "diloco"
    local_steps: int | None = Field(default=None, ge=1, le=1_000_000)
    outer_lr: float = Field(default=0.7, gt=0.0, le=1e6)
    outer_momentum: float = Field(default=0.9, ge=0.0, lt=1.0)
    fragments: int = Field(default=1, ge=1, le=10_000)
    overlap: bool = False
    mixing: Annotated[float, Field(ge=0.0, lt=1.0), OnlyWith("overlap")] = 0.5

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.local_steps is not None and "local_epochs" in self.model_fields_set:
            raise ScenarioError("strategy.local_steps and strategy.local_epochs both say how long a device trains; give one")


class _DiLoCoClient(PeerClient):
    """Trains for ``local_steps``, if these are given."""

    def training(self, device: Device, instruction: Instruction) -> Training:
        steps = self.params.local_steps  # type: ignore[attr-defined]
        return Training(instruction["model"], steps=steps) if steps else super().training(device, instruction)


class DiLoCoHalf(CollectiveHalf[DiLoCoParams]):
    """Trains, averages what training has changed of a fragment, makes an outer step, and again.

    State besides ``CollectiveHalf``'s: ``outer``, the model after the last outer steps; ``velocity``; ``trained``, whether it
    waits for the all-reduce before; ``fresh``, whether that one's result is not taken yet.
    """

    def on_start(self, device: Peer) -> None:
        super().on_start(device)
        state = device.state
        state |= {"outer": state["model"], "velocity": device.zero(), "trained": False, "fresh": False}
        self._train(device)

    def _train(self, device: Peer) -> None:
        if self.setting.planned_rounds is None or device.state["round"] < self.setting.planned_rounds:
            self.train(device, device.state["model"])

    def on_trained(self, device: Peer, update: Ref | None) -> None:
        state = device.state
        state["trained"] = True
        if update is not None:
            state["model"] = device.mix([(update, 1.0)], otherwise=state["model"])
        if state["reducing"] is None:
            self._synchronise(device)

    def _synchronise(self, device: Peer) -> None:
        state = device.state
        number, state["trained"] = state["round"], False
        if state["fresh"]:
            self._take(device, number - 1, self.params.mixing)
        change = device.mix([(state["model"], 1.0), (state["outer"], -1.0)], otherwise=device.zero())
        places = self._places(number)
        self.reduce(device, number, Partial(change, device.zero(), places) if places else change)
        if self._goes_on(number):
            self._next(device)

    def _next(self, device: Peer) -> None:
        device.state["round"] += 1
        self._train(device)

    def _goes_on(self, number: int) -> bool:
        """Whether devices train during the all-reduce of this number: not during the last."""
        return self.params.overlap and number + 1 != self.setting.planned_rounds

    def reduced(self, device: Peer, number: int, contributions: list[Ref]) -> None:
        state, params = device.state, self.params
        share, zero = 1.0 / len(contributions), device.zero()
        change = device.mix([(each, share) for each in contributions], otherwise=zero)
        velocity = device.mix([(state["velocity"], params.outer_momentum), (change, 1.0)], otherwise=zero)
        step = [(change, params.outer_lr), (velocity, params.outer_lr * params.outer_momentum)]
        outer = device.mix([(state["outer"], 1.0), *step], otherwise=state["outer"])
        places = self._places(number)
        for name, value in (("velocity", velocity), ("outer", outer)):
            state[name] = device.splice(state[name], value, places) if places else value
        state["fresh"] = True
        if not self._goes_on(number):
            self._take(device, number, 0.0)
            self._next(device)
        elif state["trained"]:
            self._synchronise(device)

    def _take(self, device: Peer, number: int, mixing: float) -> None:
        """Take a synchronised fragment, and keep a share of its own."""
        state, places = device.state, self._places(number)
        model = device.mix([(state["model"], mixing), (state["outer"], 1.0 - mixing)], otherwise=state["outer"])
        state["model"] = device.splice(state["model"], model, places) if places else model
        state["fresh"] = False

    def _places(self, number: int) -> Places:
        """The fragment of a synchronisation; none for the whole model."""
        count, size = self.params.fragments, self.setting.parameters
        part = number % count
        return ((part * size // count, (part + 1) * size // count),) if count > 1 else ()


class DiLoCo(Peers[DiLoCoParams]):
    """Douillard et al. 2023 (DiLoCo), Algorithm 1; with fragments and ``overlap`` Douillard et al. 2025 (Streaming DiLoCo).

    Each device makes H SGD steps. An all-reduce then averages what they have changed (d / fragments parameters, ``part``),
    which an outer step with Nesterov momentum adds to the model before: v <- m v + change; x <- x + lr (change + m v). With one
    fragment and no overlap all begin from x again. ``messages.up`` says in which form the changes are sent; sums are exact. A
    round of the run is a synchronisation. The inner optimiser is SGD, where the papers have AdamW.
    """

    Params: ClassVar[type[DiLoCoParams]] = DiLoCoParams
    Client = _DiLoCoClient
    Half = DiLoCoHalf


class LocalSGDParams(DiLoCoParams):
    """Parameters of local SGD: an outer step that takes the mean."""

    kind: Literal["local-sgd"] = "local-sgd"  # type: ignore[assignment]
    outer_lr: float = Field(default=1.0, gt=0.0, le=1e6)
    outer_momentum: float = Field(default=0.0, ge=0.0, lt=1.0)


class LocalSGD(DiLoCo):
    """Stich 2019 (local SGD): DiLoCo whose outer step takes the mean of all models.

    Each device makes H SGD steps, and then all take the mean of their models by an all-reduce (d parameters, ``part``).
    """

    Params = LocalSGDParams
