"""Content of ``summary.json``, from a run and the counts of its recorder."""

from typing import TYPE_CHECKING, Any

from fedsim.common.errors import SimulationError
from fedsim.common.round_words import ROUND
from fedsim.federation.unseen import ACCURACY
from fedsim.records.chain import ROWS_A_BLOCK
from fedsim.records.recorder import Recorder
from fedsim.records.schema import ASKED
from fedsim.running.packages import packages_of
from fedsim.version import __version__

if TYPE_CHECKING:
    from fedsim.running.assembly import Run


def summarise(
    run: "Run",
    recorder: Recorder,
    status: str,
    stopped: str,
    models_sha256: str | None,
    wall_s: float,
) -> dict[str, Any]:
    """Return the content of ``summary.json``, except for the checksums of files.

    Args:
        run: the run.
        recorder: the run's recorder, which has the rows of rounds and the bytes.
        status: the run's status, such as ``done`` or ``failed``.
        stopped: why the run ended, as text for the user.
        models_sha256: SHA-256 of the final models; None in a summary of a run that has not ended.
        wall_s: real time of the run (s).

    Raises:
        SimulationError: ``Strategy.facts`` returns an entry that fedsim itself adds.
    """
    scenario = run.scenario
    summary: dict[str, object] = {
        "fedsim": __version__,
        "name": scenario.name,
        "seed": scenario.seed,
        "strategy": scenario.strategy.kind,
        "status": status,
        "stopped": stopped,
        "rounds": len(recorder.rounds),
    }
    if run.strategy.round_word != ROUND:
        summary["round_word"] = run.strategy.round_word
    if not run.lists_all_devices:
        summary["device_rows"] = ASKED
    summary["simulated_s"] = recorder.last_time
    summary["accuracy"] = _accuracy(run, recorder)
    metrics = _metrics(run, recorder)
    if metrics:
        summary["metrics"] = metrics
    summary.update(run.ending.summary)
    summary["bytes"] = recorder.ledger.summary()
    summary.update(recorder.meters.summary())
    acts = run.processes.acts  # counts of what the world's processes did
    if acts or scenario.world.processes:
        summary["acts"] = dict(sorted(acts.items()))
    last_entries = _last_entries(run, recorder, models_sha256, wall_s)
    facts = run.strategy.facts()  # entries that the strategy adds to the summary
    for name in facts:
        if name in summary or name in last_entries:
            raise SimulationError(
                f"{type(run.strategy).__name__}.facts returns {name!r}, an entry of summary.json "
                "that fedsim itself adds; allowed are other names"
            )
    return {**summary, **facts, **last_entries}


def _accuracy(run: "Run", recorder: Recorder) -> dict[str, float | None]:
    """Return the entry ``accuracy`` of the summary: the accuracies of the last and the best test.

    ``unseen`` is the last accuracy of devices that never train, if the run has such devices.
    """
    accuracies = values_of(recorder, "accuracy")
    entry = {
        "final": accuracies[-1] if accuracies else None,
        "best": max(accuracies, default=None),
    }
    if run.scenario.population.tested_only is not None:
        unseen = values_of(recorder, ACCURACY)
        entry["unseen"] = unseen[-1] if unseen else None
    return entry


def _last_entries(
    run: "Run", recorder: Recorder, models_sha256: str | None, wall_s: float
) -> dict[str, object]:
    """Return the entries of the summary that come after the strategy's entries.

    Args:
        run: the run.
        recorder: the run's recorder.
        models_sha256: SHA-256 of the final models; None in a summary of a run that has not ended.
        wall_s: real time of the run (s).
    """
    entries: dict[str, object] = {}
    if run.estimates:
        entries["estimates"] = run.estimates
    if run.outside_of_rules:
        entries["outside_of_rules"] = run.outside_of_rules
    packages = packages_of(run.scenario)
    if packages:
        entries["packages"] = packages
    fingerprint = recorder.fingerprint()
    entries["events"] = fingerprint.count
    entries["events_sha256"] = fingerprint.hexdigest()
    entries["events_block"] = ROWS_A_BLOCK
    entries["models_sha256"] = models_sha256
    entries["wall_s"] = wall_s
    return entries


def values_of(recorder: Recorder, column: str) -> list[float]:
    """Return the values of a column of ``rounds.parquet`` that are not None, in order of rounds.

    Args:
        recorder: recorder of the run.
        column: name of the column.
    """
    values = [row[column] for row in recorder.rounds]
    return [value for value in values if value is not None]


def _metrics(run: "Run", recorder: Recorder) -> dict[str, dict[str, object]]:
    """Return the entry ``metrics`` of the summary: a table for each metric, by the metric's name.

    In a table, ``final`` is the metric's last value, and ``best`` its best value. ``best_is`` is
    ``most`` if the largest value is the best, else ``least``. ``final`` and ``best`` are None if
    the metric was never measured.
    """
    entries: dict[str, dict[str, object]] = {}
    for metric in run.metrics:
        values = values_of(recorder, metric.name)
        best = max if metric.more_is_better else min
        entries[metric.name] = {
            "final": values[-1] if values else None,
            "best": best(values, default=None),
            "best_is": "most" if metric.more_is_better else "least",
        }
    return entries
