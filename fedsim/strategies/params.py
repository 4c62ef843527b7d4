"""Base of the keys of ``[strategy]``, with properties that other parts of a run read."""

from collections.abc import Sequence
from typing import ClassVar, Self, TypeVar

from pydantic import model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Spec
from fedsim.common.stop import StopSpec
from fedsim.common.training import Training
from fedsim.federation import RunInfo
from fedsim.learning.architecture import Tensor
from fedsim.strategies.former_traits import FormerNames
from fedsim.strategies.parts.aggregation import Aggregation
from fedsim.strategies.parts.keeping import Split
from fedsim.strategies.parts.secure import SecureAggregation
from fedsim.strategies.parts.selection import Selection
from fedsim.strategies.parts.server_optimizer import ServerOptimizer
from fedsim.strategies.refusals import Reasons
from fedsim.strategies.traits import Traits
from fedsim.world.population import MeanOver
from fedsim.world.population_spec import PopulationSpec

KeyPart = TypeVar("KeyPart", bound=Spec)


class StrategyParams(FormerNames):
    """Base of the keys of ``[strategy]``; each strategy has a subclass as ``Params``.

    Its methods check the keys before a run, and describe the strategy to other parts of the run,
    such as forecasts and the checks of other sections of the scenario. A few keys have one meaning
    in all strategies that have them:

    - ``local_epochs`` is read by ``Client.training`` and by selections.
    - ``selection`` (``SelectionSpec``) is read by ``Strategy.client_half``.
    - ``aggregation`` (``AggregationSpec``), ``server`` (``ServerOptimizerSpec``) and
      ``secure_aggregation`` are read by ``Synchronous``.
    - ``concurrency`` is read by forecasts.
    """

    kind: str

    traits: ClassVar[Traits] = Traits()
    """Facts about the strategy that do not depend on the keys' values.

    A subclass that changes only some of them derives its traits from the traits of its base, by
    ``dataclasses.replace``.
    """

    @property
    def why_not(self) -> Reasons:
        """Reasons why the strategy refuses settings of a scenario; by default there are none.

        Reasons that a selection has are not repeated here.
        """
        return Reasons()

    @model_validator(mode="after")
    def _fit_together(self) -> Self:
        refusals = self.why_not.refusals(
            self.aggregated_by,
            self.selected_by,
            bounds_training=self.bounds_training,
            is_secured=self.secured_by is not None,
        )
        first_refusal = next(refusals, None)
        if first_refusal is not None:
            raise ValueError(first_refusal)
        return self

    @property
    def averages_updates(self) -> bool:
        """Whether each new model is the plain mean of a round's updates.

        It is ``traits.averages_updates`` if the class itself declares ``traits``, and else False,
        as a subclass may aggregate differently. Only such a strategy can also average the states of
        trainers that clients send with their updates (``training.state = "sent"``).
        """
        return "traits" in vars(type(self)) and self.traits.averages_updates

    @property
    def unforeseen(self) -> str:
        """Text for the user that names models which a prediction of memory misses; empty if none.

        ``fedsim check`` predicts the memory of a run from a trial without weights. Models that do
        not exist in such a trial are missed; ``fedsim check`` prints the text that names them.
        """
        return ""

    def final_models(self, devices: int) -> int | None:
        """Return the greatest possible count of models at a run's end, to predict memory.

        Args:
            devices: count of devices.

        Returns:
            The count; by default None, so that ``fedsim check`` counts the models at the end of a
            trial of the run.
        """
        return None

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

        A codec (encoding of messages) then cannot add the encoding error of one update to the next
        update.
        """
        return False

    def stays(self, tensors: Sequence[Tensor]) -> list[bool]:
        """Return whether each tensor of the model stays on the devices instead of being sent.

        By default the scenario decides by ``model.keep`` and ``model.send``.

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
            setting: properties of the run, with the model's tensors.

        Returns:
            The ranges; None if the whole model is sent.

        Raises:
            ScenarioError: all tensors or no tensors would be sent, or the strategy itself decides
                which tensors stay and the model has none.
        """
        if self.traits.kept_by == "scenario" and setting.keeps:
            key = "model.keep or model.send is given"
        elif self.traits.kept_by == "strategy":
            key = f"strategy.kind is {self.kind!r}"
        else:
            return None
        tensors = setting.tensors()
        if tensors:
            return Split.of(tensors, self.stays(tensors), key)
        if self.traits.kept_by == "strategy":
            raise ScenarioError(
                f"{key}, which tells the tensors of a model apart, and model.kind is 'size', which "
                "has none; allowed is any other model"
            )
        return None

    def _part(self, key: str, part_class: type[KeyPart]) -> KeyPart | None:
        """Return the part, such as a selection, that is the value of a key of ``[strategy]``.

        None if the strategy has no such key, or if the value is no ``part_class``.
        """
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
    def aggregations(self) -> dict[str, Aggregation]:
        """Rules by which the strategy combines updates: key of ``[strategy]`` -> rule."""
        return {key: value for key, value in self if isinstance(value, Aggregation)}

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
        """Count of SGD steps of a local training; None, as by default, if trainings have epochs."""
        return None

    def horizon(self, stop: StopSpec) -> StopSpec:
        """Return the stop conditions from which the display of a run estimates its remaining time.

        Args:
            stop: the keys of ``[stop]`` of the scenario; by default they are returned unchanged.
        """
        return stop

    @property
    def bounds_training(self) -> bool:
        """Whether the deadline limits only each client's training, from the end of its download."""
        return False

    @property
    def mean_epoch_over(self) -> MeanOver:
        """Rule for stragglers in the mean time of an epoch on all devices (``RunInfo.mean_epoch_s``).

        ``unslowed``: they count at their usual speed. ``all``: they count at their reduced speed.
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

        Called only if ``Traits.at_edges`` is true.

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
