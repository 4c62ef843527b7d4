"""Deadlines that follow from earlier rounds."""

import math
from typing import Any, Literal

from pydantic import Field

from fedsim.language.units import PositiveSeconds
from fedsim.strategies.parts.deadline import Deadline


class Quantile(Deadline):
    """The time in which ``share`` of the last ``over`` tasks were done, times ``slack``; a late one counts as longer than all.

    Until ``over`` tasks have ended, and where fewer than ``share`` of them were in time, clients have ``most`` (s), which is
    also the longest that they ever have.

    State: ``took``, the times of the last tasks (s), None for who was not in time.
    """

    kind: Literal["quantile"] = "quantile"
    share: float = Field(default=0.8, gt=0.0, le=1.0)
    over: int = Field(default=50, ge=1, le=1_000_000)
    slack: float = Field(default=1.2, gt=0.0)
    most: PositiveSeconds

    def least_s(self) -> float:
        return self.most

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        took = state.get("took", [])
        in_time: list[float] = sorted(time for time in took if time is not None)
        wanted = math.ceil(self.share * self.over)
        if len(took) < self.over or len(in_time) < wanted:
            return self.most
        return min(self.most, self.slack * in_time[wanted - 1])

    def heard(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        took = state.setdefault("took", [])
        took.append(took_s if in_time else None)
        del took[: -self.over]
