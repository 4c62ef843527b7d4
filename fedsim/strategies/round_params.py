"""Parameters of strategies in rounds: bases with selection, over-selection and aggregation."""

import math
from typing import Annotated, ClassVar

from pydantic import Discriminator, Field, Tag

from fedsim.common import former_keys
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs
from fedsim.common.units import PositiveSeconds, show_seconds
from fedsim.strategies.params import StrategyParams
from fedsim.strategies.parts.aggregation import AggregationSpec, Weighted
from fedsim.strategies.parts.deadline import DEADLINES, Deadline, DeadlineSpec, Fixed
from fedsim.strategies.parts.secure import SecureAggregation
from fedsim.strategies.parts.selection import Random, SelectionSpec
from fedsim.strategies.parts.server_optimizer import ServerOptimizerSpec
from fedsim.world.population import MeanOver


def _deadline_tag(value: object) -> str:
    """Return the tag by which pydantic reads a value of the key ``deadline`` as a rule or a time.

    Args:
        value: the key's value in the scenario.

    Returns:
        ``~rule`` if the value is a ``Deadline``, its name or its table, else ``~time``.
    """
    is_rule = isinstance(value, Deadline | dict)
    if isinstance(value, str):
        is_rule = DEADLINES.is_kind(value)
    return "~rule" if is_rule else "~time"


def _needs_mean(deadline: Deadline | float | None) -> bool:
    """Return whether a deadline's time depends on the mean time of an epoch over the devices."""
    if not isinstance(deadline, Deadline):
        return False
    converts_times = type(deadline).among is not Deadline.among
    return deadline.mean_over is not None or converts_times


DeadlineKey = Annotated[
    Annotated[PositiveSeconds | None, Tag("~time")] | Annotated[DeadlineSpec, Tag("~rule")],
    Discriminator(_deadline_tag),
]


class RoundParams(StrategyParams):
    """Keys of ``[strategy]`` that all strategies in rounds have.

    Attributes:
        clients_per_round: K, the wanted count of updates in a round.
        local_epochs: E, passes of a client over its data.
        deadline: time after which unfinished clients are late (s), or a rule (``parts/deadline``).
            None: no limit.
        retry: time (s) after which the server looks for clients again if none is available.
        min_available: clients are selected only while this many can be reached, idle or busy;
            otherwise the server looks again after ``retry``. None: with any number.
        every: each round begins at the first multiple of this time (s) after the preceding round
            has closed. None: each round begins when the preceding round has closed.
    """

    instead: ClassVar[Former] = former_keys.ROUNDS
    clients_per_round: int = Field(default=10, ge=1)
    local_epochs: Epochs = 1
    deadline: DeadlineKey = None
    retry: PositiveSeconds = 60.0
    min_available: int | None = Field(default=None, ge=1)
    every: PositiveSeconds | None = None

    @property
    def mean_epoch_over(self) -> MeanOver:
        if isinstance(self.deadline, Deadline) and self.deadline.mean_over:
            return self.deadline.mean_over
        return "unslowed"

    @property
    def bounds_training(self) -> bool:
        return isinstance(self.deadline, Deadline) and self.deadline.bounds_training

    def deadline_rule(self, mean_epoch_s: float) -> Deadline | None:
        """Return the deadline as a rule with times in seconds; None if there is no deadline.

        Args:
            mean_epoch_s: mean time of an epoch over the devices (s), the unit of some deadlines.
        """
        if self.deadline is None:
            return None
        if isinstance(self.deadline, float):
            return Fixed.model_construct(time=self.deadline).among(mean_epoch_s)
        return self.deadline.among(mean_epoch_s)

    def first_deadline_s(self, mean_epoch_s: float) -> float | None:
        """Return the time that clients have until the deadline in the first round (s).

        If the deadline bounds only the training (``bounds_training``), it is the time for each
        training, in all rounds.

        Args:
            mean_epoch_s: mean time of an epoch over the devices (s), the unit of some deadlines.

        Returns:
            The time; None if there is no deadline.
        """
        rule = self.deadline_rule(mean_epoch_s)
        return None if rule is None else rule.least_s()

    def training_limit_s(self, mean_epoch_s: float) -> float | None:
        """Return the time that each client has for its training from the end of its download (s).

        Args:
            mean_epoch_s: mean time of an epoch over the devices (s), the unit of some deadlines.

        Returns:
            The time; None if no deadline bounds the training (``bounds_training``).
        """
        return self.first_deadline_s(mean_epoch_s) if self.bounds_training else None

    @property
    def asked_per_round(self) -> int:
        """Count of clients that a round asks; 0 for all devices."""
        return self.clients_per_round or 0

    @property
    def turns(self) -> int:
        """Count of trainings that each client of a round does one after the other; usually 1."""
        return 1

    @property
    def enough(self) -> float:
        """Count of received updates at which a round ends; infinity if it waits for all clients."""
        return math.inf

    def cohort_size(self, devices: int) -> int:
        """Return the count of clients in a round if all devices are available.

        Args:
            devices: count of devices in the population.
        """
        return min(self.asked_per_round or devices, devices)

    def combined_at_once(self, devices: int) -> int:
        """Return how many updates are combined into one model, if no client disconnects.

        The aggregation's keys are checked with this count, the smallest if rounds differ.

        Args:
            devices: count of devices in the population.
        """
        return self.cohort_size(devices)

    def check(self, devices: int) -> None:
        self.refuse_more("clients_per_round", devices)
        self.refuse_more("min_available", devices)

    def check_deadline(self, fastest_download_s: float) -> None:
        if self.bounds_training or _needs_mean(self.deadline):
            return
        least = self.first_deadline_s(mean_epoch_s=math.nan)  # NaN, as this deadline uses no mean
        if least is not None and least <= fastest_download_s:
            raise ScenarioError(
                f"strategy.deadline is {show_seconds(least)}, but the fastest device needs "
                f"{show_seconds(fastest_download_s)} for its download alone; allowed is more "
                "than that"
            )


class SelectingParams(RoundParams):
    """Keys of strategies in rounds that let the scenario choose the selection.

    Attributes:
        selection: selection of the cohort, the clients of a round (``parts/selection``).
    """

    selection: SelectionSpec = Random()


class SynchronousParams(SelectingParams):
    """Keys of strategies in rounds with over-selection: more clients are asked than are waited for.

    Attributes:
        over_selection: factor of K, the key ``clients_per_round``. A round asks this many times K
            clients, and closes when K updates have arrived. 1: it asks K clients and waits for all.
    """

    over_selection: float = Field(default=1.0, ge=1.0, le=1_000_000)

    @property
    def asked_per_round(self) -> int:
        # 1e-9 is subtracted, because a rounding error could add a client: 10 * 1.1 is
        # 11.000000000000002
        return math.ceil(super().asked_per_round * self.over_selection - 1e-9)

    @property
    def enough(self) -> float:
        return self.clients_per_round if self.over_selection > 1 else math.inf

    def combined_at_once(self, devices: int) -> int:
        return self.selection.fewest(self.cohort_size(devices))

    def check(self, devices: int) -> None:
        if self.over_selection > 1 and self.asked_per_round > devices:
            raise ScenarioError(
                f"strategy.clients_per_round is {self.clients_per_round}, with over_selection "
                f"{self.over_selection:g} asks {self.asked_per_round}, more than the population's "
                f"{devices} devices; "
                f"allowed are both where their product is at most {devices}"
            )
        super().check(devices)


class CombiningParams(RoundParams):
    """Keys of strategies in rounds that let the scenario choose aggregation and server optimiser.

    Attributes:
        aggregation: rule that combines the updates of a cohort or group into one
            (``parts/aggregation``).
        server: server optimiser for the combined update (``parts/server_optimizer``). None:
            the combined update is the new model.
    """

    aggregation: AggregationSpec = Weighted()
    server: ServerOptimizerSpec | None = None

    def check(self, devices: int) -> None:
        super().check(devices)
        self.aggregation.check(self.combined_at_once(devices))


class AggregatingParams(SynchronousParams, CombiningParams):
    """Keys of strategies in rounds that let the scenario choose every part.

    The parts are selection, aggregation, server optimiser, deadline and secure aggregation.

    Attributes:
        secure_aggregation: costs of secure aggregation (``parts/secure``), which shows the server
            only the sum of the updates; refused if single updates are needed. None: the server sees
            each update.
    """

    secure_aggregation: SecureAggregation | None = None

    def check(self, devices: int) -> None:
        super().check(devices)
        if self.secure_aggregation is not None:
            self.secure_aggregation.check(self.cohort_size(devices))
