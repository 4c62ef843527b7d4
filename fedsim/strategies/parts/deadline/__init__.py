"""Deadlines: how long a round waits, or a client may train."""

from typing import Annotated, Any

from pydantic import SerializeAsAny

from fedsim.language.families import Family
from fedsim.language.spec import Spec

_HERE = "fedsim.strategies.parts.deadline"
DEADLINES = Family(
    "deadline",
    f"{_HERE}:Deadline",
    {
        "fixed": (f"{_HERE}.fixed:Fixed", "the same time in every round"),
        "quantile": (f"{_HERE}.quantile:Quantile", "a share of the clients of the last rounds would have been in time"),
    },
    bare="time",
)


class Deadline(Spec):
    """The base of every deadline. What it must remember is in ``state``, JSON-able."""

    kind: str

    def least_s(self) -> float:
        """No round has less time (s): a scenario in which nobody could even receive the model by then is refused."""
        raise NotImplementedError

    def limit_s(self, state: dict[str, Any], number: int) -> float | None:
        """How long clients have in a round (s); None for as long as they need. Called when the round begins."""
        raise NotImplementedError

    def heard(self, state: dict[str, Any], took_s: float, in_time: bool) -> None:
        """A task of a round has ended after so long (s), in time or not."""


DeadlineSpec = Annotated[SerializeAsAny[Deadline], DEADLINES.validator]
