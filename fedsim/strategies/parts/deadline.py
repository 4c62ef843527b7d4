"""Deadlines: how long a round waits, or a client may train."""

import math
from typing import Annotated, Any, Literal

from pydantic import Field

from fedsim.language.registry import Registry
from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds

_HERE = "fedsim.strategies.parts.deadline"
DEADLINES = Registry(
    "deadline",
    f"{_HERE}:Deadline",
    {
        "fixed": (f"{_HERE}:Fixed", "the same time in every round"),
        "quantile": (f"{_HERE}:Quantile", "a share of the clients of the last rounds would have been in time"),
    },
    bare="time",
    usual="fixed",
)


class Deadline(Spec):
    """The base of every deadline. What it must remember is in ``state``, JSON-able."""

    kind: str

    def least_s(self) -> float:
        """The limit by which a scenario is checked (s): it is refused if nobody could receive the model within it."""
        raise NotImplementedError

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        """The time that clients have in a round (s); None if unlimited. Called when the round begins."""
        raise NotImplementedError

    def heard(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        """A task of a round has ended after so long (s), in time or not."""


class Fixed(Deadline):
    """Clients have ``time`` (s) in every round; ``deadline = "90 s"`` is short for it."""

    kind: Literal["fixed"] = "fixed"
    time: PositiveSeconds

    @classmethod
    def of(cls, time: float) -> "Fixed":
        """From a number (s), which a scenario may not give without its unit."""
        return cls.model_construct(kind="fixed", time=time)

    def least_s(self) -> float:
        return self.time

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        return self.time


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


DeadlineSpec = Annotated[Deadline, DEADLINES]
