"""The base of every strategy: explicit state, and handlers that begin and end in one instant."""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, Self, TypeVar

from pydantic import model_validator

from fedsim.common.arrays import AnyArray
from fedsim.common.errors import ScenarioError
from fedsim.common.round_words import ROUND
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.training import Training
from fedsim.federation import Carried, Client, Contents, PeerMessage, RunInfo, Server, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.architecture import Tensor
from fedsim.strategies.parts.aggregation import PROTECTS, Aggregation, Protection
from fedsim.strategies.parts.keeping import KeepingClient, Split
from fedsim.strategies.parts.secure import SecureAggregation, SecureClient
from fedsim.strategies.parts.selection import Selection, SelectionClient
from fedsim.strategies.parts.server import ServerOptimizer
from fedsim.strategies.state import PartState, new_state
from fedsim.world.population import DeadlineBase
from fedsim.world.population_spec import PopulationSpec

KeyPart = TypeVar("Part", bound=Spec)


class StrategyParams(Spec):
    """Base of the keys of ``[strategy]``; each strategy has a subclass as ``Params``.

    Its methods check the keys before a run, and tell further parts of a run what the strategy
    does. A few keys have one meaning in all strategies: ``local_epochs`` is read by
    ``Client.training`` and by selections, ``selection`` (``SelectionSpec``) by ``client_half``,
    ``aggregation`` (``AggregationSpec``), ``server`` (``ServerOptimizerSpec``) and
    ``secure_aggregation`` by ``Synchronous``, and ``concurrency`` by forecasts.
    """

    kind: str

    at_edges: ClassVar[bool] = False
    """Whether the strategy needs edge servers in the network."""

    serverless: ClassVar[bool] = False
    """Whether devices send models to each other, without a server (``Peers``)."""

    brings_learning: ClassVar[bool] = False
    """Whether the strategy has its own models and data; sections about learning are refused."""

    needs_labels: ClassVar[bool] = False
    """Whether the strategy uses ``Device.label_counts``; refused for data without labels."""

    plain_down: ClassVar[bool] = False
    """Whether the strategy sends no model down that a codec could encode."""

    sends_models: ClassVar[bool] = True
    """Whether the strategy sends models, so that codecs have something to encode."""

    only_own_models: ClassVar[bool] = False
    """Whether each device has a model of its own, and no model serves several devices.

    Such a strategy has no model for devices that never train.
    """

    mixes_states: ClassVar[bool] = False
    """Whether each new model is the plain mean of a round's updates; not inherited.

    ``training.state = "sent"`` needs such a strategy.
    """

    added_up: ClassVar[tuple[str, ...]] = ()
    """Names of contents that device and server each sum, so that codecs store no residuals."""

    kept_by: ClassVar[Literal["nobody", "scenario", "strategy"]] = "nobody"
    """The side that decides which tensors stay on the devices.

    The scenario decides by ``model.keep`` or ``model.send``.
    """

    beside: ClassVar[str | None] = None
    """Description of a use of answers outside the aggregation; None if there is no such use.

    A private aggregation does not protect this use, and is refused.
    """

    @property
    def unforeseen(self) -> str:
        """Why a trial without weights does not show all models of a run; empty if it does."""
        return ""

    def final_models(self, devices: int) -> int | None:
        """Return the greatest count of the models at a run's end; None if a trial shows it.

        Args:
            devices: count of devices.
        """
        return None

    @property
    def not_by_device(self) -> Mapping[str, str]:
        """Keys of ``[population.local]`` that the strategy refuses: all devices must train alike.

        Returns:
            Key -> why the strategy refuses it, as text for the user; by default empty.
        """
        return {}

    def usual_training(self, kind: str) -> Training:
        """Return the training that devices of a kind usually do, to check their memory and speed.

        By default it is plain local SGD on the whole model.

        Args:
            kind: name of the device's kind, such as a model of phone.
        """
        return Training(None)

    @property
    def resizes(self) -> bool:
        """Whether a device's updates may differ in size from round to round.

        Codecs then cannot store what was lost in encoding one update for the next one.
        """
        return False

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return whether each tensor of the model stays on the devices instead of being sent.

        By default the tensors stay that the scenario keeps (``model.keep``, ``model.send``).

        Args:
            tensors: the tensors of the model, in order.

        Returns:
            A bool for each tensor, in the same order.
        """
        return [tensor.kept for tensor in tensors]

    def split_of(self, setting: RunInfo) -> Split | None:
        """Return which parameters of the model are sent to the server, and which stay on devices.

        Both are ranges of indices in the flat array of all parameters.

        Args:
            setting: facts about the run, with the model's tensors.

        Returns:
            The ranges; None if the whole model is sent.

        Raises:
            ScenarioError: no tensor would be sent, or the model has no tensors.
        """
        if self.kept_by == "scenario" and setting.keeps:
            key = "model.keep or model.send is given"
        elif self.kept_by == "strategy":
            key = f"strategy.kind is {self.kind!r}"
        else:
            return None
        tensors = setting.tensors()
        if tensors:
            return Split.of(tensors, self.stays(tensors), key)
        if self.kept_by == "strategy":
            raise ScenarioError(
                f"{key}, which tells the tensors of a model apart, and model.kind is 'size', which "
                "has none; allowed is any other model"
            )
        return None

    def unprotected(self, protection: Protection) -> str | None:
        """Return the reason why an aggregation's protection would not cover all answers of devices.

        If there is a reason, a scenario with such an aggregation is refused.

        Args:
            protection: the aim of the aggregation: ``private``, which bounds how far one update can
                move a model, or ``robust`` against malicious devices.

        Returns:
            The reason, as text for the user; None if all answers are protected.
        """
        if protection == "private":
            return self.beside
        return None

    def _part(self, key: str, part_class: type[KeyPart]) -> KeyPart | None:
        """Return the part that a key holds; None if the strategy has no such key, or it is empty."""
        part = getattr(self, key, None)
        return part if isinstance(part, part_class) else None

    @property
    def selected_by(self) -> Selection | None:
        """Selection of the clients (key ``selection``); None if the strategy selects by itself."""
        return self._part("selection", Selection)

    @property
    def aggregated_by(self) -> Aggregation | None:
        """Rule that combines updates (key ``aggregation``); None without such a key."""
        return self._part("aggregation", Aggregation)

    @property
    def optimised_by(self) -> ServerOptimizer | None:
        """Server optimiser for combined updates (key ``server``); None if there is none."""
        return self._part("server", ServerOptimizer)

    @property
    def secured_by(self) -> SecureAggregation | None:
        """Costs of secure aggregation (key ``secure_aggregation``); None if there is none."""
        return self._part("secure_aggregation", SecureAggregation)

    @property
    def counts_steps(self) -> str | None:
        """Reason why the trainer must make SGD steps, as text for the user; None if it need not."""
        selection = self.selected_by
        if selection is None:
            return None
        return selection.counts_steps

    @property
    def unaccounted(self) -> str | None:
        """Reason why a privacy account would be too small, as text; None if it is complete.

        An aggregation that keeps such an account (``Aggregation.accounts``) is refused if there is
        a reason. By default the reason is a selection that uses results from clients' data.
        """
        selection = self.selected_by
        if selection is None or not selection.looks_at_data:
            return None
        return (
            f"the selection {selection.kind!r} goes by what clients find in their data, which no "
            "account counts"
        )

    @property
    def aggregations(self) -> dict[str, Aggregation]:
        """Rules by which the strategy combines updates: key of ``[strategy]`` -> rule."""
        return {key: value for key, value in self if isinstance(value, Aggregation)}

    @model_validator(mode="after")
    def _aggregation_keeps_its_promises(self) -> Self:
        aggregation = self.aggregated_by
        if aggregation is None:
            return self
        protection = aggregation.protection
        if protection is not None:
            unprotected = self.unprotected(protection)
            if unprotected:
                raise ValueError(
                    f"'aggregation' is {aggregation.kind!r}, which {PROTECTS[protection]}, but "
                    f"{unprotected}; allowed are 'weighted' and 'mean'"
                )
        if aggregation.accounts:
            unaccounted = self.unaccounted
            if unaccounted:
                raise ValueError(
                    f"'aggregation.account' is true, but {unaccounted}; allowed is false"
                )
        return self

    @property
    def needs_accuracy(self) -> str | None:
        """Key whose value needs accuracies, as text "key is value"; None if no key does.

        Such a value is refused with an objective that has no accuracy.
        """
        selection = self.selected_by
        if selection and selection.needs_accuracy:
            return f"strategy.selection is {selection.kind!r}"
        return None

    @property
    def called(self) -> str:
        """Name of the strategy in messages to users, such as "the strategy 'fedavg'"."""
        return f"the strategy {self.kind!r}"

    @property
    def notes(self) -> list[str]:
        """Remarks (str) that are shown to the user before a run begins."""
        return []

    @property
    def expected_steps(self) -> float | None:
        """Count of SGD steps of a local training; None if it is given in epochs, as by default."""
        return None

    def horizon(self, stop: StopSpec) -> StopSpec:
        """Return the planned end of a run, from which its remaining time is estimated for display.

        Args:
            stop: the keys of ``[stop]``; by default they are returned unchanged.
        """
        return stop

    @property
    def not_restorable(self) -> str | None:
        """Reason why a run of the strategy cannot be resumed, as text for the user; None if it can."""
        return None

    @property
    def mean_epoch_over(self) -> DeadlineBase:
        """Set of devices over which the mean time of an epoch (``RunInfo.mean_epoch_s``) is taken.

        ``unslowed``: all devices at their usual speed; ``all``: stragglers count at their reduced
        speed.
        """
        return "unslowed"

    def check(self, devices: int) -> None:
        """Check that the values of the keys work with the count of devices.

        Args:
            devices: count of devices.

        Raises:
            ScenarioError: a value does not work with ``devices`` devices.
        """

    def refuse_more(self, key: str, devices: int) -> None:
        """Check that the value of a key is not above the count of devices.

        Args:
            key: name of the key; its value is a number or None.
            devices: count of devices.

        Raises:
            ScenarioError: the value is above ``devices``.
        """
        value = getattr(self, key) or 0
        if value > devices:
            origin = "" if key in self.model_fields_set else " by default"
            raise ScenarioError(
                f"strategy.{key} is {value}{origin}, more than the population's {devices} devices; "
                f"allowed are 1 to {devices}"
            )

    def check_edges(self, edges: int) -> None:
        """Check that the values of the keys work with the network's edge servers.

        Called only if ``at_edges`` is true.

        Args:
            edges: count of edge servers.

        Raises:
            ScenarioError: a value does not work with ``edges`` edge servers.
        """

    def check_population(self, population: PopulationSpec) -> None:
        """Check that the devices can do the strategy's jobs.

        Args:
            population: the keys of ``[population]``.

        Raises:
            ScenarioError: a device cannot do a job of the strategy.
        """

    def check_samples(self, most: int) -> None:
        """Check that the values of the keys work with the devices' amounts of data.

        Args:
            most: the largest count of training samples on a device.

        Raises:
            ScenarioError: a value does not work with such data.
        """

    def check_deadline(self, fastest_download_s: float) -> None:
        """Check that the deadline allows at least the fastest download of the model.

        Args:
            fastest_download_s: time of the fastest download (s).

        Raises:
            ScenarioError: the deadline ends before the fastest download.
        """


P = TypeVar("P", bound=StrategyParams)
ClientHalf = Client[Any]  # Strategy.Client shadows Client


class Strategy(Generic[P]):
    """Base of a federated learning algorithm's code on the server: it selects, asks and aggregates.

    A subclass implements ``on_start``, ``on_task_end`` and ``models``, stores its memory in
    ``state``, and acts only through ``server``. The subclass calls ``Server.begin_round`` and
    ``Server.finish_round`` once for each round, and asks devices in between.

    Attributes:
        score: The definition of accuracy: over all test samples, or the mean of devices'
            accuracies. A scenario may replace it.
        params: the keys of the scenario, a ``Params``.
        server: API of the run: devices, models, timers and records, a ``Server``.
        setting: facts about the run, such as the count of devices, a ``RunInfo``.
        state: memory of the strategy, a ``State``: JSON-able values and refs, saved with a run. Any
            other attribute is lost when a run is resumed.

    Example:
        A strategy that asks every device once, in ``mine.py``:

        >>> from fedsim.plugin import Strategy
        >>> class Once(Strategy):
        ...     async def on_start(self):
        ...         self.state |= {"model": self.server.models.initial(), "answers": 0}
        ...         for device in self.server.clients.idle_devices():
        ...             self.server.ask(device, {"model": self.state["model"]}, "train")
        ...     async def on_task_end(self, message):
        ...         self.state["answers"] += message.outcome == "done"
        ...         if self.state["answers"] == self.server.devices:
        ...             self.server.stop("all have answered")
        ...     def models(self):
        ...         return {"global": (self.state["model"], None)}

        A scenario names it by its file and class:

        >>> import fedsim
        >>> samples = {"low": 50, "high": 50}
        >>> result = fedsim.run(
        ...     fedsim.Scenario(
        ...         learning="off",
        ...         population={"devices": 3, "speed": "10 samples/s", "samples": samples},
        ...         strategy={"kind": "mine:Once"},
        ...     )
        ... )
        >>> result.summary["stopped"], result.summary["simulated_s"]
        ('all have answered', 5.0)
    """

    round_word: ClassVar[str] = ROUND
    """Singular noun for a row of the run's table of rounds, in texts for people."""

    Params: ClassVar[type[StrategyParams]] = StrategyParams
    """The class of the strategy's keys."""

    Client: ClassVar[type[ClientHalf]] = Client
    """The class of the strategy's client half."""

    State: ClassVar[type[PartState]] = dict
    """The class of the strategy's ``state``: a plain dict, or a subclass of ``State``."""

    state: PartState

    score: Literal["pooled", "device-mean"] = "pooled"

    @classmethod
    def client_half(cls, params: P, setting: RunInfo) -> ClientHalf:
        """Build the object that runs on devices: the strategy's ``Client``, wrapped by its parts.

        Parts are a selection, secure aggregation, and tensors that stay on devices. Each handles
        its own jobs, and passes other jobs on.

        Args:
            params: the keys of ``[strategy]``.
            setting: facts about the run.
        """
        client = cls.Client(params, setting)
        split = params.split_of(setting)
        if split is not None:
            client = KeepingClient(client, split)
        selection = params.selected_by
        if selection and selection.talks:
            client = SelectionClient(client, selection)
        if params.secured_by is not None:
            client = SecureClient(client, params.secured_by)
        return client

    def __init__(self, params: P, server: Server) -> None:
        self.params = params
        self._selection = params.selected_by
        self.server = server
        self.setting = server.setting
        self.state = self.State()

    def remembered(self, part: str) -> PartState:
        """Return the state of a part of the strategy, such as its selection.

        The part's state is an entry of the strategy's ``state``, under the part's name.

        The state is created at its first use.

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
        """Called when the run begins; the place to make the first model and ask the first devices."""
        raise NotImplementedError

    async def on_task_end(self, message: TaskEnd) -> None:
        """Called once for each task, when it has ended with any outcome.

        Args:
            message: the task, its outcome, and the device's answer.
        """
        raise NotImplementedError

    async def on_carried(self, message: Carried) -> None:
        """Called once for each message between an edge server and the server, when it has ended.

        Args:
            message: the ended message, sent by ``ServerEdges.carry``.
        """

    async def on_peer_message(self, message: PeerMessage) -> None:
        """Called when a message from device to device has ended, once for each message.

        Args:
            message: the ended message.
        """

    async def on_edge_lost(self, edge: int) -> None:
        """Called when an edge server is lost.

        Its messages and its devices' tasks end afterwards, all ``lost``.

        Args:
            edge: ID of the edge server.
        """

    async def on_timer(self, name: str) -> None:
        """Called when the time of a timer has come that was set by ``Server.timer``.

        Args:
            name: name of the timer.
        """

    async def on_return(self, device: int) -> None:
        """Called when a device that ``Clients.await_return`` waits for can be reached.

        Args:
            device: ID of the device.
        """

    async def on_arrival(self, device: int) -> None:
        """Called when a newcomer can be reached for the first time.

        ``Clients.sample`` may draw the newcomer in this and later instants.

        Args:
            device: ID of the device.
        """

    async def on_shift(self, device: int, contents: Contents) -> None:
        """Called when a device's message about changed data (``Client.on_shift``) has arrived.

        Args:
            device: ID of the device.
            contents: contents of the message, by name.
        """

    def models(self) -> ModelAssignment:
        """Return the current models by name, each with the IDs of the devices that it serves.

        None in place of IDs stands for all devices. Models are tested on the devices that they
        serve. A name may be ``family/index``, such as ``group/0``.
        """
        raise NotImplementedError

    def tensors(self) -> Mapping[str, Mapping[str, AnyArray]]:
        """Return arrays to save at the end of the run, in addition to the models of ``models``.

        Returns:
            Name of a file -> its arrays by name; by default empty.
        """
        return {}

    def why_no_accuracy(self) -> str | None:
        """Return the reason why the run has no accuracy, as text for the user.

        Only a strategy that tests its own models returns a reason.

        Returns:
            The reason; None if fedsim tests the models.
        """
        return None

    def why_not_more(self, planned: int) -> str | None:
        """Return the reason why a finished run cannot be continued with more rounds, as text.

        If there is a reason, ``run --more`` is refused. A run that goes on must do what a run does
        that had as many rounds from the start. The default None holds for a strategy that has done
        nothing so far that depends on ``RunInfo.planned_rounds``.

        Args:
            planned: ``RunInfo.planned_rounds`` so far.

        Returns:
            The reason; None if the run can go on.
        """
        return None

    def facts(self) -> dict[str, object]:
        """Return entries about the strategy for ``summary.json``, which are also shown to the user.

        Returns:
            Any of ``algorithm``, the name of the algorithm, and ``notes`` and ``warnings``, lists
            of sentences; by default empty.
        """
        return {}

    def on_end(self) -> None:
        """Hook at the end of the run, to release threads and files; records are impossible then."""

    def group_of(self, device: int) -> int | None:
        """Return the present group of a device; None if the strategy has no groups.

        Args:
            device: ID of the device.
        """
        return None

    def groups_of(self, devices: Sequence[int]) -> list[int | None]:
        """Return the present group of each of several devices; None for a device without group.

        Args:
            devices: IDs of the devices.
        """
        if type(self).group_of is Strategy.group_of:  # a run may have millions of devices
            return [None] * len(devices)
        return [self.group_of(device) for device in devices]
