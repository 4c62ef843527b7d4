"""Goals of a comparison: the figure that its cells are ranked by, and limits of what a run may cost."""

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field, ValidationError

from fedsim.errors import ScenarioError, nearest
from fedsim.language.spec import Spec
from fedsim.language.stop import MORE_IS_BETTER
from fedsim.language.units import Bytes, Joules, PositiveSeconds
from fedsim.language.wording import explain

GOALS = ("time", "bytes", "energy", "carbon", "money", "rounds", "battery", "flat", "accuracy", "budget", *MORE_IS_BETTER)
"""The goals of a study: least of a cost to the target, of a battery's charge or flat devices; the best accuracy or metric."""


class Budget(Spec):
    """Limits of what a run may cost until it has reached its best accuracy.

    Attributes:
        time: simulated.
        bytes: moved, both ways.
        joules: drawn, where energy is counted.
        cost: in the currency of [costs].
    """

    time: PositiveSeconds | None = None
    bytes: Bytes | None = None
    joules: Joules | None = None
    cost: float | None = Field(default=None, gt=0)

    @property
    def limits(self) -> dict[str, float]:
        """The limits that are given, by cost."""
        return {name: limit for name, limit in vars(self).items() if limit is not None}


def read_goal(goal: str | None, limits: Sequence[str]) -> tuple[str | None, Mapping[str, float] | None]:
    """A goal and a budget as the command line says them; each None where it says nothing.

    Args:
        goal: one of ``GOALS``.
        limits: ``KEY=VALUE`` texts of the budget.

    Raises:
        ScenarioError: there is no such goal, or no such limit.
    """
    if goal is not None and goal not in GOALS:
        raise ScenarioError(f"--goal is {goal!r}; allowed are {', '.join(GOALS)}{nearest(goal, GOALS)}")
    tables: dict[str, Any] = {}
    for key, _, value in (text.partition("=") for text in limits):
        tables[key.strip()] = float(value) if value.strip().replace(".", "", 1).isdigit() else value.strip()
    if (goal == "budget") > bool(tables) or (tables and goal not in (None, "budget")):
        raise ScenarioError(f"--goal is {goal!r}; with --budget it is 'budget', and without one another")
    try:
        return "budget" if tables else goal, Budget(**tables).limits or None
    except ValidationError as error:
        raise ScenarioError(explain(error, tables, "--budget")) from None
