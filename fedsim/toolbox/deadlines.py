"""Deadlines that follow from the population, or from earlier rounds."""

import math
from collections.abc import Mapping
from typing import Any, ClassVar, Literal

from pydantic import Field

from fedsim.common.errors import ScenarioError
from fedsim.common.spec import Epochs
from fedsim.common.units import PositiveSeconds
from fedsim.strategies.parts.deadline import Deadline, Fixed, Since
from fedsim.world.population import DeadlineBase


class Relative(Deadline):
    """Clients have ``times`` the mean time in which all devices, undisturbed, train ``epochs``
    (CATA-Fed's T, section 5.2).
    """

    instead: ClassVar[Mapping[str, str]] = {"time": "times"}

    kind: Literal["relative"] = "relative"
    times: float = Field(default=1.0, gt=0.0, le=1e9)
    epochs: Epochs = 5
    devices: DeadlineBase = "unslowed"
    """in a population with tentative stragglers, whether the mean is the one without them
    (``unslowed``) or over the devices as they are (``all``).
    """
    since: Since = "download"
    """as of ``Fixed``; by default ``download``."""

    @property
    def mean_over(self) -> DeadlineBase:
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


class Quantile(Deadline):
    """1.2 times the time in which ``share`` of the last ``over`` tasks were done; a late one
    counts as longer than all.

    Until ``over`` tasks have ended, and where fewer than ``share`` of them were in time, clients
    have ``most`` (s), which is also the longest that they ever have.

    State: ``took``, the times of the last tasks (s), None for late ones.
    """

    kind: Literal["quantile"] = "quantile"
    share: float = Field(default=0.8, gt=0.0, le=1.0)
    over: int = Field(default=50, ge=1, le=1_000_000)
    most: PositiveSeconds

    def least_s(self) -> float:
        return self.most

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        took = state.get("took", [])
        in_time: list[float] = sorted(time for time in took if time is not None)
        wanted = math.ceil(self.share * self.over)
        if len(took) < self.over or len(in_time) < wanted:
            return self.most
        return min(self.most, 1.2 * in_time[wanted - 1])

    def heard(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        took = state.setdefault("took", [])
        took.append(took_s if in_time else None)
        del took[: -self.over]
