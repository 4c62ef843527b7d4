"""Deadlines: time limits of a round, or of each client's training."""

from collections.abc import Mapping
from typing import Annotated, ClassVar, Literal

from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.returns import find_outside, returns
from fedsim.common.spec import Spec
from fedsim.common.units import PositiveSeconds
from fedsim.strategies.state import PartState
from fedsim.world.population import MeanOver

_HERE = "fedsim.strategies.parts.deadline"
_TOOLS = "fedsim.toolbox.deadlines"
Since = Literal["round", "download"]
DEADLINES = Registry(
    "deadline",
    f"{_HERE}:Deadline",
    {
        "fixed": (f"{_HERE}:Fixed", "the same time in every round"),
        "relative": (f"{_TOOLS}:Relative", "a multiple of the mean training time of all devices"),
        "quantile": (
            f"{_TOOLS}:Quantile",
            "a share of the clients of the last rounds would have been in time",
        ),
    },
    usual="fixed",
    key="strategy.deadline",
)


class Deadline(Spec):
    """Base of the rules for how long the clients of a round may take (``strategy.deadline``).

    A rule stores its memory between rounds in ``state``, an argument of its methods. When the time
    of a round is over, the strategy ends the open tasks as late (``Synchronous._stop_waiting``),
    unless it lets them go on (``Traits.late_goes_on``). A step that is complete at that very time
    still counts, and its task ends at the begin of the next step. If the deadline bounds only the
    training (``bounds_training``), the step ``Train`` of each client decides whether the client is
    late.
    """

    kind: str

    State: ClassVar[type[PartState]] = dict
    """Class of the deadline's ``state``: a plain dict, or a subclass of ``State``."""

    former_hooks: ClassVar[Mapping[str, str]] = {"heard": "on_task_end"}
    """Former names of hooks, which are refused: former name -> present name."""

    @property
    def bounds_training(self) -> bool:
        """Whether the deadline counts from each client's download and bounds only the training."""
        return getattr(self, "since", None) == "download"

    @property
    def mean_over(self) -> MeanOver | None:
        """Speed at which stragglers count in the mean epoch time that is the unit of the rule.

        Some rules give their times in multiples of the mean time of an epoch over the devices.
        ``unslowed``: stragglers count at their usual speed. ``all``: stragglers count at their
        reduced speed. None: the times are in seconds.
        """
        return None

    def among(self, mean_epoch_s: float) -> "Deadline":
        """Return the deadline with its times converted to seconds; by default this object itself.

        Args:
            mean_epoch_s: mean time of an epoch over the devices (s), the unit of some deadlines.
        """
        return self

    @returns("a finite time above 0 (s)", find_outside(above=0.0))
    def least_s(self) -> float:
        """Return the time that clients have in the first round (s).

        If the deadline bounds only the training (``bounds_training``), this time limits each
        training, in all rounds. Otherwise a scenario in which no device could receive the
        model within this time is refused, unless the time depends on the mean time of an epoch.
        """
        raise NotImplementedError

    @returns("a finite time above 0 (s), or None", find_outside(above=0.0))
    def limit_s(self, state: PartState, number: int) -> float | None:
        """Return the time limit of a round's clients (s); None if they have no limit.

        Called when the round begins.

        Args:
            state: state of the deadline.
            number: the round, from 0.
        """
        raise NotImplementedError

    def on_task_end(self, state: PartState, took_s: float, in_time: bool) -> None:
        """Hook after each task of a round has ended, for rules that adapt to the times of clients.

        Args:
            state: state of the deadline.
            took_s: time from the request to the cohort until the end of the task (s).
            in_time: whether the task was done in time; False also if its client has disconnected.
        """


class Fixed(Deadline):
    """Clients have ``time`` (s) in every round; ``deadline = "90 s"`` is short for it.

    Attributes:
        since: ``round``: the time counts from the begin of the round, and limits whole tasks.
            ``download``: the time counts from the end of each client's download, and limits only
            the client's training; the round closes after the last upload. In CATA-Fed the time also
            limits the upload, unless ``upload_time`` is ``ignored``. None: ``download`` in
            CATA-Fed, and otherwise ``round``.
    """

    kind: Literal["fixed"] = "fixed"
    time: PositiveSeconds
    since: Since | None = None

    def least_s(self) -> float:
        return self.time

    def limit_s(self, state: PartState, number: int) -> float | None:
        return self.time


DeadlineSpec = Annotated[Deadline, KindField(DEADLINES, bare="time")]
