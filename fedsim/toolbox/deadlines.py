"""Deadlines that are computed from the devices' speeds, or from the durations of earlier tasks."""

import math
from dataclasses import dataclass, field
from typing import ClassVar, Literal

from pydantic import Field

from fedsim.common import former_keys
from fedsim.common.errors import ScenarioError
from fedsim.common.former_keys import Former
from fedsim.common.spec import Epochs
from fedsim.common.units import PositiveSeconds
from fedsim.strategies.parts.deadline import Deadline, Fixed, Since
from fedsim.strategies.state import State
from fedsim.world.population import MeanOver


class Relative(Deadline):
    """Deadline that is a multiple of the devices' mean training time, as in CATA-Fed.

    The multiple is ``times`` x ``epochs`` x the mean time of an epoch over all devices. Random
    variation of this time is not counted.

    Attributes:
        times: the factor.
        epochs: number of epochs in the training time.
        devices: whether the devices that ``population.stragglers`` slows down are counted at their
            reduced speed (``all``), or at their speed before the reduction (``unslowed``).
        since: moment at which the time until the deadline begins: ``download``, the end of each
            client's download; or ``round``, the begin of the round.
    """

    instead: ClassVar[Former] = {"time": "times"}

    kind: Literal["relative"] = "relative"
    times: float = Field(default=1.0, gt=0.0, le=1e9)
    epochs: Epochs = 5
    devices: MeanOver = "unslowed"
    since: Since = "download"

    @property
    def mean_over(self) -> MeanOver:
        return self.devices

    def among(self, mean_epoch_s: float) -> Deadline:
        if not 0 < mean_epoch_s < math.inf:
            raise ScenarioError(
                f"strategy.deadline.times is {self.times:g} in units of the mean training "
                f"time, which is {mean_epoch_s:g} s in "
                "this population; give 'population.speed' values above 0 and finite, or a time "
                "as 'deadline'"
            )
        return Fixed.model_construct(time=self.times * self.epochs * mean_epoch_s)


@dataclass
class QuantileState(State):
    """State of the deadline ``quantile``: the durations of the latest tasks.

    Attributes:
        times: Durations of the latest tasks, at most ``Quantile.over`` of them, the latest last
            (s); None for a task that missed its deadline.
    """

    times: list[float | None] = field(default_factory=list)


class Quantile(Deadline):
    """Deadline of 1.2 times the ``share`` quantile of the durations of the last ``over`` tasks.

    A late task counts as longer than every task that met the deadline. The deadline is ``most``
    until ``over`` tasks have ended, and whenever less than ``share`` of the last ``over`` tasks met
    the deadline. It never exceeds ``most``.

    Attributes:
        share: the quantile, above 0 and at most 1; 0.8 covers four of five tasks.
        over: number of latest tasks whose durations are used.
        most: longest deadline (s).
    """

    instead: ClassVar[Former] = former_keys.QUANTILE

    kind: Literal["quantile"] = "quantile"
    share: float = Field(default=0.8, gt=0.0, le=1.0)
    over: int = Field(default=50, ge=1, le=1_000_000)
    most: PositiveSeconds

    def least_s(self) -> float:
        return self.most

    State = QuantileState

    def limit_s(self, state: QuantileState, number: int) -> float | None:
        in_time = sorted(time for time in state.times if time is not None)
        needed = math.ceil(self.share * self.over)
        if len(state.times) < self.over or len(in_time) < needed:
            return self.most
        return min(self.most, 1.2 * in_time[needed - 1])

    def on_task_end(self, state: QuantileState, took_s: float, in_time: bool) -> None:
        state.times.append(took_s if in_time else None)
        del state.times[: -self.over]
