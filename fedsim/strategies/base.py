"""Base class of every strategy's code on the server: its hooks, and its state.

A hook begins and ends in one instant of simulated time. Only ``state`` is saved with a run.
"""

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

from fedsim.common.arrays import AnyArray
from fedsim.common.returns import returns
from fedsim.common.round_words import ROUND
from fedsim.federation import Carried, Client, Contents, PeerMessage, RunInfo, Server, TaskEnd
from fedsim.federation.round_checks import MODELS_IN_WORDS, find_wrong_model
from fedsim.federation.round_result import ModelAssignment
from fedsim.strategies.hook_checks import (
    FACTS_IN_WORDS,
    GROUP_IN_WORDS,
    GROUPS_IN_WORDS,
    TENSORS_IN_WORDS,
    find_wrong_facts,
    find_wrong_group,
    find_wrong_groups,
    find_wrong_tensors,
)
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.parts.keeping import KeepingClient
from fedsim.strategies.parts.secure import SecureClient
from fedsim.strategies.parts.selection import SelectionClient
from fedsim.strategies.state import PartState, new_state

P = TypeVar("P", bound=StrategyParams)
ClientHalf = Client[Any]  # Strategy.Client shadows Client


def _find_wrong_models(
    models: Mapping[str, object], strategy: "Strategy[Any]", *_: object, **__: object
) -> str:
    server = strategy.server
    return find_wrong_model(models, server.devices, server.setting.parameters)


class Strategy(Generic[P]):
    """Base of a federated learning algorithm's code on the server: it selects, asks and aggregates.

    A subclass implements ``on_start``, ``on_task_end`` and ``models``, stores its memory in
    ``state``, and acts only through ``server``. The subclass calls ``Server.begin_round`` and
    ``Server.finish_round`` once for each round, and asks devices in between.

    Attributes:
        score: The definition of accuracy: ``pooled`` over all test samples, or ``device-mean``, the
            mean of the devices' accuracies. A scenario may replace it (``evaluation.score``).
        params: the keys of the scenario, a ``Params``.
        server: API of the run: devices, models, timers and records, a ``Server``.
        setting: properties of the run, such as the count of devices, a ``RunInfo``.
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
    """Singular noun for a round in reports and messages, such as "round" or "version"."""

    Params: ClassVar[type[StrategyParams]] = StrategyParams
    """The class of the strategy's keys."""

    Client: ClassVar[type[ClientHalf]] = Client
    """The class of the strategy's code on devices."""

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
            setting: properties of the run, such as the count of devices.
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

        It is an entry of the strategy's ``state`` under the part's name, created at its first use.

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
        """Called when a message between an edge server and the server has ended, once per message.

        Args:
            message: the ended message, sent by ``ServerEdges.carry``.
        """

    async def on_peer_message(self, message: PeerMessage) -> None:
        """Called when a message from device to device has ended, once per message.

        Args:
            message: the ended message.
        """

    async def on_edge_lost(self, edge: int) -> None:
        """Called when an edge server is lost.

        The messages of the edge server and the tasks of its devices end afterwards, all ``lost``.

        Args:
            edge: ID of the edge server.
        """

    async def on_timer(self, name: str) -> None:
        """Called at the time of a timer that ``Server.timer`` has set.

        Args:
            name: name of the timer.
        """

    async def on_return(self, device: int) -> None:
        """Called as soon as a device can be reached, if ``Clients.await_return`` was called for it.

        Args:
            device: ID of the device.
        """

    async def on_arrival(self, device: int) -> None:
        """Called when a device that joins during the run can be reached for the first time.

        ``Clients.sample`` may draw the device in this and later instants.

        Args:
            device: ID of the device.
        """

    async def on_shift(self, device: int, contents: Contents) -> None:
        """Called when a device's message about changed data (``Client.on_shift``) has arrived.

        Args:
            device: ID of the device.
            contents: contents of the message, by name.
        """

    @returns(MODELS_IN_WORDS, _find_wrong_models)
    def models(self) -> ModelAssignment:
        """Return the current models: name -> (model, IDs of the devices that the model serves).

        None in place of IDs stands for all devices, as in ``{"global": (model, None)}``. Models are
        tested on the devices that they serve. A name may be ``family/index``, such as ``group/0``:
        the models of a family are stored in one file.
        """
        raise NotImplementedError

    @returns(TENSORS_IN_WORDS, find_wrong_tensors)
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

        If there is a reason, ``run --more`` is refused. A continued run must have the same results
        as a run that planned all these rounds from its start. A strategy that has used the planned
        count (``RunInfo.planned_rounds``) therefore returns a reason. By default there is none.

        Args:
            planned: the count of rounds that was planned until now.

        Returns:
            The reason; None if the run can be continued.
        """
        return None

    @returns(FACTS_IN_WORDS, find_wrong_facts)
    def facts(self) -> dict[str, object]:
        """Return entries about the strategy for ``summary.json``, which are also shown to the user.

        Returns:
            Any of ``algorithm``, the name of the algorithm, and ``notes`` and ``warnings``, lists
            of sentences; by default empty. Any other entry must be JSON-able, and must differ in
            name from the entries that fedsim adds.
        """
        return {}

    def on_end(self) -> None:
        """Hook at the end of the run, to release threads and files; records are impossible then."""

    @returns(GROUP_IN_WORDS, find_wrong_group)
    def group_of(self, device: int) -> int | None:
        """Return the present group of a device; None if the strategy has no groups.

        Args:
            device: ID of the device.
        """
        return None

    @returns(GROUPS_IN_WORDS, find_wrong_groups)
    def groups_of(self, devices: Sequence[int]) -> list[int | None]:
        """Return the present group of each of several devices; None for a device without group.

        Args:
            devices: IDs of the devices.
        """
        if type(self).group_of is Strategy.group_of:
            return [None] * len(devices)  # no call per device, as a run may have millions
        return [self.group_of(device) for device in devices]
