"""Results of verbs as typed objects: what ``--json`` prints, and the JSON schemas of that.

A verb imports this module only to make its result, as pydantic takes a while to load.
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Literal

from pydantic import Field, JsonValue
from pydantic.json_schema import JsonSchemaValue, models_json_schema

from fedsim.cli.result_parts import (
    AnswerResult,
    ResultEntries,
    StudyCostResult,
    TableResult,
    VerbResult,
)
from fedsim.cli.results_of_fetching import FetchResult
from fedsim.cli.results_of_figures import FiguresResult
from fedsim.common.files import read_json, toml
from fedsim.lab.catalogue import catalogue, figures_of, keys_of, specs_titled
from fedsim.lab.compare.critical_path import CriticalPaths, RoundPath
from fedsim.lab.whole_forecast import CostHere, WholeForecast
from fedsim.records.folder import SUMMARY


class RunResult(VerbResult):
    """Result of ``fedsim run``."""

    verb: Literal["run"] = "run"
    folder: str
    """The run folder."""
    status: str
    """``done`` or ``interrupted``, as in the summary."""
    resume: str | None
    """The command that resumes an interrupted run; null if there is no checkpoint."""
    summary: dict[str, JsonValue]
    """Content of the run's ``summary.json``."""


def run_result(folder: Path, resumption: str | None) -> RunResult:
    """Return what ``fedsim run --json`` prints, from the run's folder.

    Args:
        folder: the run folder.
        resumption: the command that resumes the run; None if it has no checkpoint.
    """
    summary = read_json(folder / SUMMARY)
    return RunResult(
        folder=str(folder), status=summary["status"], resume=resumption, summary=summary
    )


class NeedResult(ResultEntries):
    """Memory and disk that a part of a scenario needs at the peak."""

    part: str
    """The part, such as ``personal models``."""
    key: str
    """The key of the scenario on which it depends; "" if there is none."""
    memory_bytes: float
    """Memory (bytes)."""
    disk_bytes: float
    """Size in the run folder (bytes)."""
    scratch_bytes: float
    """Size in the folder for temporary files (bytes)."""


class ForecastResult(ResultEntries):
    """Predicted cost of a run on this machine, from a trial of its beginning."""

    real_s: float
    """Real time of the whole run (s)."""
    build_s: float
    """Real time to load data and build the world (s)."""
    simulation_s: float
    """Real time of the simulation (s)."""
    training_s: float
    """Real time of training (s)."""
    testing_s: float
    """Real time of tests (s)."""
    events: float
    """Count of events."""
    trained_steps: float
    """Count of SGD steps."""
    tests: float
    """Count of tests."""
    memory_bytes: int
    """Peak memory (bytes)."""
    disk_bytes: float
    """Peak size of the run folder (bytes)."""
    scratch_bytes: float
    """Peak size of models in the folder for temporary files (bytes)."""
    needs: list[NeedResult]
    """Memory and disk by the part of the scenario that needs them."""

    @classmethod
    def of(cls, cost: CostHere) -> "ForecastResult":
        return cls(**asdict(cost))


class CheckResult(VerbResult):
    """Result of ``fedsim check`` for a valid scenario; an invalid one is an error."""

    verb: Literal["check"] = "check"
    valid: Literal[True] = True
    lines: list[str]
    """Sizes, estimates and notes, as text for people."""
    forecast: ForecastResult | None
    """The predicted cost here; null with ``--no-trial``, or if no round ended within the trial."""
    scenario: dict[str, JsonValue]
    """The scenario with every default."""


def check_result(scenario: str, whole: WholeForecast) -> CheckResult:
    """Return what ``fedsim check --json`` prints.

    Args:
        scenario: the scenario with every default, as TOML.
        whole: the forecast of the run.
    """
    cost = None
    if whole.cost is not None:
        cost = ForecastResult.of(whole.cost)
    return CheckResult(lines=whole.lines, forecast=cost, scenario=toml(scenario))


class CompareResult(VerbResult):
    """Result of ``fedsim compare``: all figures, and the answers."""

    verb: Literal["compare"] = "compare"
    runs: list[str]
    """The compared folders."""
    answers: list[AnswerResult]
    """One answer per world; empty with ``--published``."""
    tables: list[TableResult]
    """Lines side by side, then their differences to the baseline of a study."""


class CheckedPart(ResultEntries):
    """Check of ``fedsim audit``, with the problems that it found."""

    check: str
    """Title of the check."""
    passed: bool
    """Whether it found no problem."""
    problems: list[str]
    """All problems; empty if the check has passed."""


class UncheckedEntry(ResultEntries):
    """Column, key or entry of a run folder that no check of ``fedsim audit`` covers."""

    name: str
    """The file and its column, key or entry, such as ``rounds.parquet: loss``."""
    reason: str
    """Why no check covers it."""


class AuditResult(VerbResult):
    """Result of ``fedsim audit``."""

    verb: Literal["audit"] = "audit"
    run: str
    """The run folder."""
    passed: bool
    """Whether all checks have passed."""
    status: str
    """Status of the run; the records of a ``failed`` run are checked up to its error."""
    checks: list[CheckedPart]
    """Outcome of each check."""
    not_checked: list[str]
    """Sentences on parts of the user that no check covers."""
    unchecked: list[UncheckedEntry]
    """Entries that no check covers; empty without ``--unchecked``."""


class PathStepResult(ResultEntries):
    """Step of a round's critical path, the chain of steps for which the round waited."""

    step: str
    """Name of the step, such as ``train``; ``wait`` if nothing was under way."""
    device: int | None
    """Device of the step; null if it has none."""
    task: int | None
    """Task of the step; null if it has none."""
    start_s: float
    """Begin (simulated s)."""
    end_s: float
    """End (simulated s)."""
    outcome: str
    """``done``, or the reason why the step was cut short."""
    shared_s: float
    """Time of a transfer that was due to traffic of others (s)."""


class RoundResult(ResultEntries):
    """Round with its critical path. Times are simulated."""

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
        steps = [
            PathStepResult(
                step=step.step,
                device=step.device,
                task=step.task,
                start_s=step.start,
                end_s=step.end,
                outcome=step.outcome,
                shared_s=step.shared,
            )
            for step in path.steps
        ]
        return cls(
            round=path.number,
            start_s=path.start,
            end_s=path.end,
            selected=path.selected,
            late=[*path.late],
            deadline=path.deadline,
            totals_s=path.totals,
            steps=steps,
        )


class WhyResult(VerbResult):
    """Result of ``fedsim why``."""

    verb: Literal["why"] = "why"
    run: str
    """The run folder."""
    sentences: list[str]
    """The explanation in words."""
    totals_s: dict[str, float]
    """Simulated seconds by category of steps, of all rounds or of the one of ``--round``."""
    rounds: list[RoundResult]
    """All rounds, or the one of ``--round``."""


class WhatifResult(VerbResult):
    """Result of ``fedsim whatif``."""

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


class NamedEntry(ResultEntries):
    """Name that a scenario or study can use, with its description."""

    name: str
    """The name, such as ``fedavg``."""
    meaning: str
    """Description in one line."""


class ListResult(VerbResult):
    """Result of ``fedsim list`` without a name."""

    verb: Literal["list"] = "list"
    names: dict[str, list[NamedEntry]]
    """Names by title, such as ``strategies``."""


class KeyResult(ResultEntries):
    """Key of a table in a scenario or study."""

    name: str
    """Name of the key."""
    default: str
    """Default as TOML; empty if there is none."""
    required: bool
    """Whether the table has to have the key."""
    allowed: str
    """Allowed type, unit and bounds, as text for people."""
    meaning: str
    """Description of the key."""


class FigureResult(ResultEntries):
    """Published figure of a kind of device, a preset, a link or a region."""

    key: str
    """Name of the figure."""
    value: JsonValue
    """The figure, with its unit if it is text."""
    source: str
    """Publication of the figure; ``estimate`` and a reason if it is not published."""
    date: str
    """Month of the source."""


class KindResult(ResultEntries):
    """Name that a scenario or study can use, with the keys of its table and its figures."""

    name: str
    """The name, such as ``fedavg``."""
    title: str
    """Title under which ``fedsim list`` has the name."""
    meaning: str
    """Description in one line."""
    keys: list[KeyResult]
    """Keys of its table."""
    figures: list[FigureResult]
    """Published figures; empty for names without figures."""


class DescribeResult(VerbResult):
    """Result of ``fedsim describe``, and of ``fedsim list`` with a name."""

    verb: Literal["describe", "list"] = "describe"
    name: str
    """The name that was asked for."""
    kinds: list[KindResult]
    """Names of the catalogue that equal ``name``."""
    lines: list[str]
    """The whole description, also of tables and keys, as text for people."""


StudyStatus = Literal["done", "interrupted", "incomplete", "dry-run"]


class StudyRunResult(ResultEntries):
    """Run of a study, finished or not."""

    folder: str
    """The run folder, relative to the study's folder."""
    label: str
    """Name of the run for people, with its variant and seed."""
    state: Literal["done", "resume", "anew", "new"]
    """``done``; ``resume`` or ``anew`` if it was begun; ``new``."""
    error: str | None = None
    """Message of the error with which the run failed now."""


class ShardResult(ResultEntries):
    """Share of a study's runs that ``--shard`` selects."""

    number: int
    """Index of the share, from 1."""
    count: int
    """Count of shares."""
    runs: int
    """Count of the share's runs."""
    work: float
    """Predicted part of the study's work, 0 to 1."""


class StudyResult(VerbResult):
    """Result of ``fedsim study``."""

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
    """Predicted cost, of a dry run; null with ``--no-trial``, or if data cannot be read."""
    answers: list[AnswerResult] = Field(default_factory=list)
    """One answer per world; empty for a dry run, an interrupted study and a search."""
    tables: list[TableResult] = Field(default_factory=list)
    """All figures; of a search, its trials; empty for a dry run and an interrupted study."""
    lines: list[str]
    """Notes, and the best trials of a search, as text for people."""


class MergeResult(VerbResult):
    """Result of ``fedsim study merge``. Run folders are relative to the study's folder."""

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


class BenchLineResult(ResultEntries):
    """Strategy in a world of the bench. Costs are null unless all seeds reached the target."""

    strategy: str
    """Name of the strategy."""
    world: str
    """Name of the world."""
    place: int | None
    """Rank among the board and these lines, from 1; null if a seed missed the target."""
    seeds: int
    """Count of seeds."""
    reached: int
    """Count of seeds that reached the target."""
    time_s: float | None
    """Mean simulated time to the target (s)."""
    time_low: float | None
    """Lower end of the 95 % interval of ``time_s`` (s)."""
    time_high: float | None
    """Upper end of the 95 % interval of ``time_s`` (s)."""
    bytes: float | None
    """Traffic until the target, sent and received (bytes)."""
    joules: float | None
    """Energy until the target (J)."""
    accuracy: float | None
    """Test accuracy at the end, 0 to 1."""
    file: str
    """Digest of the world's file."""
    version: str
    """Version of fedsim."""


class BenchResult(VerbResult):
    """Result of ``fedsim bench``."""

    verb: Literal["bench"] = "bench"
    folder: str
    """Folder of the study that holds the runs."""
    lines: list[BenchLineResult]
    """Results, one for each strategy and world."""
    changed: list[str]
    """Tables of worlds that differ from the board's; places mean nothing if there are any."""
    kept: str | None
    """The board on which the lines were put; null without ``--keep``."""


class ErrorDetails(ResultEntries):
    """Error with which a command has failed."""

    message: str
    """The message of the error."""
    key: str | None
    """The key or option at fault; null if the message begins with none."""
    nearest: str | None
    """The valid name that is nearest to a misspelt one; null if there is none."""
    exit_code: int
    """Exit code of the command."""


class ErrorResult(VerbResult):
    """Output of any command that fails."""

    verb: str | None
    """The verb; null if the command line names none."""
    error: ErrorDetails
    """The error."""


RESULTS: tuple[type[VerbResult], ...] = (
    RunResult,
    CheckResult,
    CompareResult,
    AuditResult,
    WhyResult,
    WhatifResult,
    ListResult,
    DescribeResult,
    StudyResult,
    MergeResult,
    BenchResult,
    FiguresResult,
    FetchResult,
    ErrorResult,
)


def output_schema() -> JsonSchemaValue:
    """Return the JSON schema of all that ``--json`` prints; ``$defs`` has one schema per result."""
    _, whole = models_json_schema([(result, "serialization") for result in RESULTS])
    names = [{"$ref": f"#/$defs/{result.__name__}"} for result in RESULTS]
    draft = "https://json-schema.org/draft/2020-12/schema"
    return {"$schema": draft, "title": "Output of fedsim --json", "anyOf": names, **whole}


def rounds_of(paths: CriticalPaths, number: int | None) -> list[RoundResult]:
    """Convert the critical paths of a run's rounds to the form that ``--json`` prints.

    Args:
        paths: the critical paths of the run.
        number: index of the only round to return; None for all rounds.
    """
    rounds: Sequence[RoundPath] = paths.rounds
    if number is not None:
        rounds = [paths.round(number)]
    return [RoundResult.of(path) for path in rounds]


def names_of(titled: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, list[NamedEntry]]:
    """Convert the names of the catalogue to the form that ``--json`` prints.

    Args:
        titled: dict from title to pairs of name and description.
    """
    return {
        title: [NamedEntry(name=name, meaning=meaning) for name, meaning in entries]
        for title, entries in titled.items()
    }


def kinds_called(name: str) -> list[KindResult]:
    """Return the entries of the catalogue with a given name, with their keys and figures.

    Args:
        name: the name, such as ``fedavg``.
    """
    kinds = []
    for title, entries in catalogue().items():
        meaning = dict(entries).get(name)
        if meaning is None:
            continue
        keys = []
        specs = specs_titled(title)
        if name in specs:
            keys = [KeyResult(**key._asdict()) for key in keys_of(specs[name])]
        figures = [
            FigureResult(key=key, value=figure.value, source=figure.source, date=figure.date)
            for key, figure in figures_of(title, name).items()
        ]
        kinds.append(
            KindResult(name=name, title=title, meaning=meaning, keys=keys, figures=figures)
        )
    return kinds
