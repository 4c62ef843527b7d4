"""Results of ``fedsim compare`` and ``fedsim whatif``."""

from typing import Literal

from pydantic import Field

from fedsim.cli.results.parts import AnswerResult, TableResult, VerbResult


class CompareResult(VerbResult):
    """JSON output of ``fedsim compare``, which compares lines: variants of a study, or run folders.

    It has tables of all measures, and for each world (set of devices, network and data) sentences
    on the best lines.
    """

    verb: Literal["compare"] = "compare"
    runs: list[str]
    """The compared folders."""
    answers: list[AnswerResult]
    """One answer per world; empty with ``--published``."""
    tables: list[TableResult]
    """Lines side by side, then their differences to the baseline of a study."""


class WhatifResult(VerbResult):
    """JSON output of ``fedsim whatif``, which repeats a run with changes to its scenario.

    Attributes:
        run, changed: run folders of the original run and of the repeated run.
        status: status of the repeated run.
        changes: the changed keys, each as ``key=value``.
        page: path of the HTML page with both timelines; None if none was written.
        answers: results of the comparison in sentences.
        tables: measures of both runs, side by side.
        totals_s: run folder -> activity -> simulated time on the run's critical path (s).
    """

    verb: Literal["whatif"] = "whatif"
    run: str
    """Folder of the unchanged run."""
    changed: str
    """Folder of the changed run."""
    status: str
    """Status of the changed run."""
    changes: list[str]
    """Values of ``--set``."""
    page: str | None = None
    """The HTML page with both timelines; null if the changed run was interrupted."""
    answers: list[AnswerResult] = Field(default_factory=list)
    tables: list[TableResult] = Field(default_factory=list)
    """Both runs side by side."""
    totals_s: dict[str, dict[str, float]] = Field(default_factory=dict)
    """Simulated seconds by folder and category of steps on the critical path."""
