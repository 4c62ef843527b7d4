"""Results of ``fedsim study`` and ``fedsim study merge``."""

from dataclasses import asdict
from typing import Literal

from pydantic import Field

from fedsim.cli.results.parts import (
    AnswerResult,
    ResultEntries,
    StudyCostResult,
    TableResult,
    VerbResult,
    answers_of,
    tables_of,
)
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.show import compare_published
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import PUBLISHED
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.costs import StudyForecast
from fedsim.lab.study.folder import states
from fedsim.lab.study.shards import work_of_share

StudyStatus = Literal["done", "interrupted", "incomplete", "dry-run"]


class StudyRunResult(ResultEntries):
    """Run of a study in the JSON output of ``fedsim study``: its folder, name, state and error."""

    folder: str
    """The run folder, relative to the study's folder."""
    label: str
    """Name of the run for people, with its variant and seed."""
    state: Literal["done", "resume", "anew", "new"]
    """``done``; ``resume``: to be resumed from a checkpoint; ``anew``: begun, but to be run from the
    start; ``new``: not begun."""
    error: str | None = None
    """Error message, if the run failed in this command; otherwise null."""


class ShardResult(ResultEntries):
    """Shard of a study in the JSON output of ``fedsim study --shard I/N``.

    It has I and N, the count of the shard's runs, and their predicted part of the study's work.
    """

    number: int
    """Index of the share, from 1."""
    count: int
    """Count of shares."""
    runs: int
    """Count of the share's runs."""
    work: float
    """Predicted part of the study's work, 0 to 1."""


class StudyResult(VerbResult):
    """JSON output of ``fedsim study``: the state of each run, and the comparison of all runs.

    With ``--dry-run`` it has the predicted cost of the runs instead of a comparison.
    """

    verb: Literal["study"] = "study"
    folder: str
    """Folder of the study."""
    status: StudyStatus
    """``incomplete`` if runs failed, or a search found no best trial."""
    runs: list[StudyRunResult]
    """Selected runs, in the order of the study."""
    shard: ShardResult | None
    """The share of ``--shard``; null without it."""
    most_runs: int | None = None
    """Budget of runs of ``--until-sure``, which may add runs; null without it."""
    cost: StudyCostResult | None = None
    """Predicted cost, only for ``--dry-run``; null with ``--no-trial``, or if data cannot be read."""
    answers: list[AnswerResult] = Field(default_factory=list)
    """One answer per world; empty for a dry run, an interrupted study and a search."""
    tables: list[TableResult] = Field(default_factory=list)
    """All figures; of a search, its trials; empty for a dry run and an interrupted study."""
    lines: list[str]
    """Notes, and the best trials of a search, as text for people."""

    @classmethod
    def of(
        cls, conductor: Conductor, status: StudyStatus, forecast: StudyForecast | None = None
    ) -> "StudyResult":
        """Return the JSON output of a study from the state of its runs and their comparison.

        Args:
            conductor: object that has planned and carried out the study's runs.
            status: status of the study.
            forecast: predicted cost of the study; None without a forecast.
        """
        cost = None
        if forecast is not None:
            cost = StudyCostResult(**asdict(forecast))
        result = cls(
            folder=str(conductor.out),
            status=status,
            runs=_runs_of(conductor),
            shard=_shard_result(conductor),
            cost=cost,
            lines=[*conductor.notes],
        )
        trials = conductor.trials
        if conductor.seeding is not None:
            result.most_runs = conductor.seeding.most_runs
            result.lines += conductor.seeding.lines_of_text()
        if trials is not None:
            result.lines += trials.lines_of_text()
        if status in ("dry-run", "interrupted"):
            return result
        if trials is not None:
            result.tables = tables_of([trials.table()])
            return result
        comparison = Comparison(read_lines([conductor.out]).begun())
        result.answers = answers_of(comparison)
        tables = comparison.tables()
        if conductor.study.spec.published is not None:
            tables += compare_published(conductor.out, conductor.out / PUBLISHED)
        result.tables = tables_of(tables)
        return result


class MergeResult(VerbResult):
    """JSON output of ``fedsim study merge``, which copies runs of several folders into one study.

    It names the run folders that were copied, and the run folders that are missing. Their paths are
    relative to the study's folder.
    """

    verb: Literal["study merge"] = "study merge"
    folder: str
    """The merged folder."""
    copied: list[str]
    """Run folders that were copied."""
    present: list[str]
    """Run folders that were there before."""
    repeated: list[str]
    """Run folders that several sources have, with equal results."""
    missing: list[str]
    """Run folders that are finished nowhere; the exit code is then 1."""


def _runs_of(conductor: Conductor) -> list[StudyRunResult]:
    """Return the selected runs of a study with their present states and errors."""
    errors = {ended.order.folder: ended.error for ended in conductor.failed}
    folders = [run.folder for run in conductor.study.runs]
    present_states = states(conductor.out, conductor.study)
    state_of = dict(zip(folders, present_states, strict=True))
    return [
        StudyRunResult(
            folder=str(run.folder),
            label=run.label,
            state=state_of[run.folder],
            error=errors.get((conductor.out / run.folder).absolute()),
        )
        for run, _ in conductor.selected_runs
    ]


def _shard_result(conductor: Conductor) -> ShardResult | None:
    shard = conductor.shard
    if shard is None:
        return None
    runs = [run for run, _ in conductor.selected_runs]
    work = work_of_share(runs, conductor.study.runs)
    return ShardResult(number=shard.number, count=shard.count, runs=len(runs), work=work)
