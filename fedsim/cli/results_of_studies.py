"""Results of the verbs that run many scenarios, made from their studies."""

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from fedsim.cli.result_parts import StudyCostResult, answers_of, tables_of
from fedsim.cli.results import (
    BenchLineResult,
    BenchResult,
    ShardResult,
    StudyResult,
    StudyRunResult,
    StudyStatus,
)
from fedsim.lab.bench import BoardLine, places
from fedsim.lab.compare.lines import read_lines
from fedsim.lab.compare.show import compare_published
from fedsim.lab.compare.table import Comparison
from fedsim.lab.reading.study_folder import PUBLISHED
from fedsim.lab.study.conduct import Conductor
from fedsim.lab.study.costs import StudyForecast
from fedsim.lab.study.folder import states
from fedsim.lab.study.shards import work_of_share


def study_result(
    conductor: Conductor, status: StudyStatus, forecast: StudyForecast | None = None
) -> StudyResult:
    """Return what ``fedsim study --json`` prints about a study.

    Args:
        conductor: the conductor of the study.
        status: how the study ended.
        forecast: the predicted cost of the study; None for none.
    """
    cost = None
    if forecast is not None:
        cost = StudyCostResult(**asdict(forecast))
    result = StudyResult(
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


def _runs_of(conductor: Conductor) -> list[StudyRunResult]:
    errors = {ended.order.folder: ended.error for ended in conductor.failed}
    now = states(conductor.out, conductor.study)
    state_of = dict(zip((run.folder for run in conductor.study.runs), now, strict=True))
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
    share = conductor.shard
    if share is None:
        return None
    runs = [run for run, _ in conductor.selected_runs]
    work = work_of_share(runs, conductor.study.runs)
    return ShardResult(number=share.number, count=share.count, runs=len(runs), work=work)


def bench_result(
    folder: Path,
    lines: Sequence[BoardLine],
    board: Sequence[BoardLine],
    changed: list[str],
    kept: Path | None,
) -> BenchResult:
    """Return what ``fedsim bench --json`` prints.

    Args:
        folder: folder of the study that holds the runs.
        lines: the lines of the bench.
        board: lines of the board, among which the new lines are ranked.
        changed: names of the worlds' tables that differ from the tables of the board.
        kept: file of the board into which the lines were written; None if they were not.
    """
    by_name = {(line.strategy, line.world): line for line in (*board, *lines)}
    ranks = places([*by_name.values()])
    results = [
        BenchLineResult(**asdict(line), place=ranks.get((line.strategy, line.world)))
        for line in lines
    ]
    board_path = None if kept is None else str(kept)
    return BenchResult(folder=str(folder), lines=results, changed=changed, kept=board_path)
