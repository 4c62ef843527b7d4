"""The base of every strategy: explicit state, and handlers that begin and end in one instant."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from numpy.typing import NDArray
from pydantic import model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.federation import Carried, Client, PeerMessage, RunInfo, Server, TaskEnd
from fedsim.federation.evaluator import ModelAssignment
from fedsim.learning.architecture import Tensor
from fedsim.strategies.parts.aggregation import PROTECTS, Aggregation, Protection
from fedsim.strategies.parts.keeping import KeepingClient, Split
from fedsim.strategies.parts.secure import SecureClient
from fedsim.strategies.parts.selection import Selection, SelectionClient
from fedsim.strategies.state import new_state
from fedsim.world.population import DeadlineBase, PopulationSpec


class StrategyParams(Spec):
    """``[strategy]``: the keys of a strategy; each has a subclass as ``Params``. Checks raise
    ``ScenarioError``.

    A few keys mean the same in every strategy, if it has them: ``local_epochs`` is read by
    ``Client.training`` and by selections, ``selection`` (``SelectionSpec``) by ``client_half``,
    ``aggregation`` (``AggregationSpec``), ``server`` (``ServerOptimiserSpec``) and
    ``secure_aggregation`` by ``Synchronous``, and ``concurrency`` by forecasts.
    """

    kind: str

    at_edges: ClassVar[bool] = False
    """Whether it needs edge servers in the network."""

    serverless: ClassVar[bool] = False
    """Whether devices send to each other, without a server (``Peers``)."""

    brings_learning: ClassVar[bool] = False
    """Whether it has models and data of its own; sections about learning are refused."""

    needs_labels: ClassVar[bool] = False
    """Whether it uses the labels of devices (``Device.label_counts``); refused for data without."""

    plain_down: ClassVar[bool] = False
    """Whether it sends no model down that a codec could encode."""

    sends_models: ClassVar[bool] = True
    """Whether it sends models, so that codecs have something to encode."""

    mixes_states: ClassVar[bool] = False
    """Whether a model is just the mean of a round's updates, as ``training.state = "sent"``
    needs; not inherited.
    """

    added_up: ClassVar[tuple[str, ...]] = ()
    """Contents of answers that device and server each add up, so that the next one has what a
    lossy codec left out.
    """

    kept_by: ClassVar[Literal["nobody", "scenario", "strategy"]] = "nobody"
    """The side that decides which tensors stay on the devices; the scenario by ``model.keep`` or
    ``model.send``.
    """

    beside: ClassVar[str | None] = None
    """A use of answers beside the aggregation, which a private one does not protect."""

    @property
    def resizes(self) -> bool:
        """Whether updates of one device differ in size, so that nothing that was left out can be
        in the next one.
        """
        return False

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Whether each tensor never leaves a device, [tensors]; by default as the scenario says."""
        return [tensor.kept for tensor in tensors]

    def split_of(self, setting: RunInfo) -> Split | None:
        """Ranges of a flat model that are sent, and that stay on the devices; None: all are sent.

        Refuses to send nothing.
        """
        if self.kept_by == "scenario" and setting.keeps:
            tensors = setting.tensors()
            key = "model.keep or model.send is given"
        elif self.kept_by == "strategy":
            tensors = setting.tensors()
            key = f"strategy.kind is {self.kind!r}"
            if not tensors:
                has_none = (
                    "which tells the tensors of a model apart, and model.kind is 'size', which has "
                    "none"
                )
                raise ScenarioError(f"{key}, {has_none}; allowed is any other model")
        else:
            return None
        return Split.of(tensors, self.stays(tensors), key) if tensors else None

    def unprotected(self, protection: Protection) -> str | None:
        """Why an aggregation with this protection does not protect all that is made of answers,
        so that it is refused.
        """
        return self.beside if protection == "private" else None

    @property
    def selected_by(self) -> Selection | None:
        """None: the strategy selects by itself."""
        selection = getattr(self, "selection", None)
        return selection if isinstance(selection, Selection) else None

    @property
    def counts_steps(self) -> str | None:
        """Why steps must be those of SGD, each lr along a gradient; None: other trainers will
        do.
        """
        return self.selected_by.counts_steps if self.selected_by else None

    @property
    def unaccounted(self) -> str | None:
        """Why an account (``Aggregation.accounts``) would not count all that is given away; None
        if it does.
        """
        if (selection := self.selected_by) is None or not selection.looks_at_data:
            return None
        return (
            f"the selection {selection.kind!r} goes by what clients find in their data, which no "
            "account counts"
        )

    @property
    def aggregations(self) -> dict[str, Aggregation]:
        """Its aggregations, by their keys."""
        return {key: value for key, value in self if isinstance(value, Aggregation)}

    @model_validator(mode="after")
    def _aggregation_keeps_its_promises(self) -> Self:
        aggregation: Aggregation | None = getattr(self, "aggregation", None)
        if aggregation is None:
            return self
        if (protection := aggregation.protection) is not None and (
            why := self.unprotected(protection)
        ):
            raise ValueError(
                f"'aggregation' is {aggregation.kind!r}, which {PROTECTS[protection]}, but "
                f"{why}; allowed are 'weighted' and "
                "'mean'"
            )
        if aggregation.accounts and (why := self.unaccounted):
            raise ValueError(f"'aggregation.account' is true, but {why}; allowed is false")
        return self

    @property
    def needs_accuracy(self) -> str | None:
        """Why it does not go with an objective without right answers, as "key is value"; None if
        it does.
        """
        selection = self.selected_by
        return (
            f"strategy.selection is {selection.kind!r}"
            if selection and selection.needs_accuracy
            else None
        )

    @property
    def called(self) -> str:
        """The strategy's name in messages to users."""
        return f"the strategy {self.kind!r}"

    @property
    def notes(self) -> list[str]:
        """Remarks for the user before a run begins."""
        return []

    def horizon(self, stop: StopSpec) -> StopSpec:
        """The known end of a run, for the display of the time left."""
        return stop

    @property
    def not_restorable(self) -> str | None:
        """Why a run cannot be resumed; None if it can."""
        return None

    @property
    def mean_epoch_over(self) -> DeadlineBase:
        """The devices over which ``RunInfo.mean_epoch_s`` is the mean."""
        return "unslowed"

    def check(self, devices: int) -> None:
        """Refuse values that cannot work with so many devices, by a ``ScenarioError``."""

    def refuse_more(self, key: str, devices: int) -> None:
        """Refuse a number that is greater than that of the devices."""
        if (value := getattr(self, key) or 0) > devices:
            raise ScenarioError(
                f"strategy.{key} is {value}, more than the population's {devices} devices; "
                f"allowed are 1 to {devices}"
            )

    def check_edges(self, edges: int) -> None:
        """Refuse values that cannot work with so many edge servers; called only for strategies
        ``at_edges``.
        """

    def check_population(self, population: PopulationSpec) -> None:
        """Refuse devices that are unable to do their jobs."""

    def check_samples(self, most: int) -> None:
        """Refuse values that cannot work if no device holds more than ``most`` training samples."""

    def check_deadline(self, fastest_download_s: float) -> None:
        """Refuse a deadline before which no device can have downloaded the model (the fastest
        takes that many seconds).
        """


P = TypeVar("P", bound=StrategyParams)
ClientHalf = Client[Any]  # Strategy.Client shadows Client


class Strategy(Generic[P]):
    """The server half of a federated learning algorithm.

    A subclass has ``on_start``, ``on_task_end`` and ``models``, keeps its memory in ``state`` and
    acts through ``server`` alone. It calls ``Server.begin_round`` and ``Server.finish_round`` once
    for each round, and asks devices in between.

    Attributes:
        params: the keys of the scenario, a ``Params``.
        server: all that it can see and do, a ``Server``.
        setting: facts of the run, a ``RunInfo``.
        state: its memory, a ``State``: JSON-able values and refs, saved with a run. Any other
            attribute is lost when it resumes.
    """

    Params: ClassVar[type[StrategyParams]] = StrategyParams
    """The class of its keys."""

    Client: ClassVar[type[Client[Any]]] = Client
    """The class of its client half."""

    State: ClassVar[type[Any]] = dict
    """The class of its memory: a plain dict, or a subclass of ``State``."""

    state: Any

    score: Literal["pooled", "device-mean"] = "pooled"
    """The definition of accuracy unless a scenario has another: over all test samples, or the
    mean of devices' accuracies.
    """

    @classmethod
    def client_half(cls, params: P, setting: RunInfo) -> ClientHalf:
        """Its ``Client``, with the jobs of kept tensors, selection and secure aggregation."""
        own = cls.Client(params, setting)
        if (split := params.split_of(setting)) is not None:
            own = KeepingClient(own, split)
        if params.selected_by and params.selected_by.talks:
            own = SelectionClient(own, params.selected_by)
        secure = getattr(params, "secure_aggregation", None)
        return own if secure is None else SecureClient(own, secure)

    def __init__(self, params: P, server: Server) -> None:
        self.params = params
        self._selection = params.selected_by
        self.server = server
        self.setting = server.setting
        self.state = self.State()

    def remembered(self, part: str) -> Any:
        """Memory of a part, kept in ``state`` under the part's name and created at its first use.

        Args:
            part: the part's key in ``params``, such as ``selection``, or any other name.

        Returns:
            The part's ``State``, or a dict if it declares none.
        """
        memory = self.state.get(part)
        if memory is None:
            memory = new_state(getattr(self.params, part, None))
            self.state[part] = memory
        return memory

    async def on_start(self) -> None:
        """The run begins: make the first model, and ask the first devices."""
        raise NotImplementedError

    async def on_task_end(self, message: TaskEnd) -> None:
        """A task has ended, with any outcome; each does so once.

        Args:
            message: which task, how it ended, and the device's answer.
        """
        raise NotImplementedError

    async def on_carried(self, message: Carried) -> None:
        """A message between an edge server and the server (``ServerEdges.carry``) has ended;
        each does so once.
        """

    async def on_peer_message(self, message: PeerMessage) -> None:
        """A message from device to device has ended; each does so once."""

    async def on_edge_lost(self, edge: int) -> None:
        """An edge server is lost; then follow the ends of its messages and of its devices'
        tasks, all ``lost``.
        """

    async def on_timer(self, name: str) -> None:
        """A timer set by ``Server.timer`` has gone off."""

    async def on_return(self, device: int) -> None:
        """A device for which ``Clients.await_return`` was called can be reached."""

    async def on_arrival(self, device: int) -> None:
        """A newcomer can be reached for the first time; by default it may be drawn from now on,
        like any other.
        """

    async def on_shift(self, device: int, contents: Mapping[str, Any]) -> None:
        """The message of a device whose data have changed (``Client.on_shift``) has arrived."""

    def models(self) -> ModelAssignment:
        """The current models by name, each with the devices that it serves (None: all).

        A name may be ``family/number``.
        """
        raise NotImplementedError

    def tensors(self) -> Mapping[str, Mapping[str, NDArray[Any]]]:
        """Models that the strategy keeps as arrays of its own, by file name: named tensors, in
        addition to ``models``.
        """
        return {}

    def why_no_accuracy(self) -> str | None:
        """Why it has measured no accuracy, of a strategy that measures itself."""
        return None

    def facts(self) -> dict[str, Any]:
        """Entries of its own in ``summary.json``: ``algorithm``, and the lines ``notes`` and
        ``warnings``, which are shown.
        """
        return {}

    def on_end(self) -> None:
        """Release threads and files at the end of the run, which records nothing any more."""

    def group_of(self, device: int) -> int | None:
        """The group that a device belongs to now, where the strategy has groups."""
        return None

    def groups_of(self, devices: Sequence[int]) -> list[int | None]:
        """The groups of several devices."""
        no_groups = type(self).group_of is Strategy.group_of  # a run may have millions of devices
        return [None] * len(devices) if no_groups else [self.group_of(device) for device in devices]
