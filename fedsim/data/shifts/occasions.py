"""When data shift: at rounds, or at simulated times."""

from typing import Self

from pydantic import Field, model_validator

from fedsim.language.spec import Spec
from fedsim.language.units import PositiveSeconds, Seconds


class Occasions(Spec):
    """``at``: the occasions on which a rule of data shift is applied. Exactly one of the keys is given.

    Attributes:
        rounds: at the begin of these rounds (from 0), before anybody is asked in them.
        every_rounds: at the begin of every so many rounds, the first included; 1 is every round.
        times: at these simulated times.
        every: every so much simulated time.
    """

    rounds: list[int] | None = None
    every_rounds: int | None = Field(default=None, ge=1)
    times: list[Seconds] | None = None
    every: PositiveSeconds | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> Self:
        given = [key for key in ("rounds", "every_rounds", "times", "every") if getattr(self, key) is not None]
        if len(given) != 1:
            found = f"{' and '.join(given)} are" if given else "none of them is"
            raise ValueError(f"one of 'rounds', 'every_rounds', 'times' and 'every' says when; {found} given")
        for key in ("rounds", "times"):
            values = getattr(self, key)
            if values is not None and (not values or min(values) < 0 or list(values) != sorted(set(values))):
                raise ValueError(f"'{key}' is {list(values)}; allowed are ascending numbers, none below 0, at least one")
        return self

    def has_round(self, number: int) -> bool:
        """Whether round ``number`` begins with an occasion."""
        if self.every_rounds is not None:
            return number % self.every_rounds == 0
        return self.rounds is not None and number in self.rounds

    def time(self, index: int) -> float | None:
        """The time (s) of the ``index``-th timed occasion; None if there are not so many."""
        if self.every is not None:
            return (index + 1) * self.every
        return self.times[index] if self.times is not None and index < len(self.times) else None


EVERY_ROUND = Occasions(every_rounds=1)
