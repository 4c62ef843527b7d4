"""Result of ``fedsim why``."""

from typing import Literal

from fedsim.cli.results.parts import ResultEntries, VerbResult
from fedsim.lab.compare.critical_path import PathStep, RoundPath


class PathStepResult(ResultEntries):
    """Step of a round's critical path, such as a device's training, with its start and end.

    The critical path is the chain of steps of tasks that determined when the round ended.
    """

    step: str
    """Name of the step, such as ``train``; ``wait`` if nothing was under way."""
    device: int | None
    """Device of the step; null if it has none."""
    task: int | None
    """Task of the step; null if it has none."""
    start_s: float
    """Start (simulated s)."""
    end_s: float
    """End (simulated s)."""
    outcome: str
    """``done``, or the reason why the step was cut short."""
    shared_s: float
    """Time by which the traffic of others delayed a transfer (s)."""

    @classmethod
    def of(cls, step: PathStep) -> "PathStepResult":
        return cls(
            step=step.step,
            device=step.device,
            task=step.task,
            start_s=step.start,
            end_s=step.end,
            outcome=step.outcome,
            shared_s=step.shared,
        )


class RoundResult(ResultEntries):
    """Round of a run in the JSON output of ``fedsim why``, with its critical path.

    The critical path is the chain of steps that determined when the round ended. Times are
    simulated.
    """

    round: int
    """Index of the round."""
    start_s: float
    """End of the previous round (s)."""
    end_s: float
    """End of the round (s)."""
    selected: int
    """Count of selected clients; 0 for strategies without rounds."""
    late: list[int]
    """Devices whose tasks were cut off at the end of the round."""
    deadline: bool
    """Whether the deadline ended the round."""
    totals_s: dict[str, float]
    """Seconds by category of steps."""
    steps: list[PathStepResult]
    """The critical path: steps in order of time, without gaps."""

    @classmethod
    def of(cls, path: RoundPath) -> "RoundResult":
        return cls(
            round=path.number,
            start_s=path.start,
            end_s=path.end,
            selected=path.selected,
            late=[*path.late],
            deadline=path.by_deadline,
            totals_s=path.totals,
            steps=[PathStepResult.of(step) for step in path.steps],
        )


class WhyResult(VerbResult):
    """JSON output of ``fedsim why``, which explains how long the rounds of a run took.

    It has sentences for people, and the critical path of each round.
    """

    verb: Literal["why"] = "why"
    run: str
    """The run folder."""
    sentences: list[str]
    """The explanation in words."""
    totals_s: dict[str, float]
    """Simulated seconds by category of steps, of all rounds or of the one of ``--round``."""
    rounds: list[RoundResult]
    """All rounds, or the one of ``--round``."""
