"""Trials of a study's search, planned in batches that follow from the results of earlier trials.

A trial is a variant with certain values of the searched keys, which runs once with each seed. A
trial is over when each of its runs is done or has failed. A run whose process was lost is repeated.
Results are read from the run folders, in the order of the trials. If the process of a search was
killed, the search is planned again from the beginning. The finished runs then lead to the trials
that were planned before.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from fedsim.common.errors import ScenarioError
from fedsim.common.round_words import counted
from fedsim.common.units import show_bytes, show_seconds, show_share
from fedsim.lab.compare.columns import Cell, ComparedTable
from fedsim.lab.compare.lines import format_value, short_key
from fedsim.lab.compare.measures import BEST, measure
from fedsim.lab.compare.show import to_csv
from fedsim.lab.reading.study_folder import BEST_OF, TRIALS, is_done
from fedsim.lab.reading.targets import Target
from fedsim.lab.study.plan import PlannedRun, Study, find_searched, plan_run
from fedsim.lab.study.search import Search, TrialResult, importances, measure_of
from fedsim.lab.study.spec import TRIAL
from fedsim.lab.study.variant import Variant
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder

_ORDER_OF_STATES = {"done": 0, "pruned": 1, "failed": 2, "refused": 2, "open": 2}
# with at most this count of trials, none is stopped early, as their median says little
_MOST_UNPRUNED = 4
TrialState = Literal["open", "done", "pruned", "failed", "refused"]
Build = Callable[[PlannedRun], None]


@dataclass
class Trial:
    """Trial of a search: a variant with certain values of the searched keys, and its results.

    Attributes:
        variant: the variant with the values of this trial.
        number: index of the trial, from 1.
        values: the trial's values, by searched key of the scenario.
        state: ``open`` (not over), ``done``, ``pruned`` (stopped early), ``failed`` or ``refused``
            (invalid).
        figures: the searched metric of each finished run, in the order of the seeds; None for a run
            without the metric.
        nearest: best accuracy of each run, which ranks runs that miss a target.
        error: message of the error if the trial is refused.
    """

    variant: Variant
    number: int
    values: Mapping[str, object]
    state: TrialState = "open"
    figures: list[float | None] = field(default_factory=list)
    nearest: list[float] = field(default_factory=list)
    error: str = ""

    @classmethod
    def of(cls, variant: Variant, number: int, values: Mapping[str, object]) -> "Trial":
        """Make a new trial, without results, of a variant for which a search tries values.

        Args:
            variant: the variant, without values of the searched keys.
            number: index of the trial, from 1.
            values: the trial's values, by searched key of the scenario.
        """
        return cls(variant.at({TRIAL: number} | dict(values)), number, values)

    @property
    def value(self) -> float | None:
        """Mean of the searched metric over the trial's seeds; None unless all runs have it."""
        figures = [figure for figure in self.figures if figure is not None]
        if not figures or len(figures) < len(self.figures):
            return None
        return sum(figures) / len(figures)

    def final_rank(self, *, is_maximised: bool) -> "TrialRank":
        """Return the key by which trials are sorted, the best one first.

        Trials that are done come before other trials. The results of all runs count.

        Args:
            is_maximised: whether greater values of the metric are better.
        """
        rank = self.rank_after(len(self.figures), is_maximised=is_maximised)
        return rank._replace(state=_ORDER_OF_STATES[self.state])

    def rank_after(self, runs: int, *, is_maximised: bool) -> "TrialRank":
        """Return the key by which trials are sorted after some of their runs, the best one first.

        Args:
            runs: count of runs to compare, from the first seed on.
            is_maximised: whether greater values of the metric are better.
        """
        figures = self.figures[:runs]
        missing_count = figures.count(None)
        if missing_count:
            merit = sum(self.nearest[:runs])
        else:
            total = sum(figure for figure in figures if figure is not None)
            merit = total if is_maximised else -total
        return TrialRank(0, -len(figures), missing_count, -merit)


class TrialRank(NamedTuple):
    """Sort key of a trial, which compares the attributes in their order: the least key is the best.

    Attributes:
        state: 0 for a trial that is done, 1 if it was stopped early, 2 for other states; always 0
            if trials are compared after some of their runs (``Trial.rank_after``).
        fewer_runs: minus the count of the trial's runs.
        missing: count of these runs that lack the searched metric.
        loss: sum of the metric over these runs, times -1 if greater values are better. If a run
            lacks the metric, -1 times the sum of the runs' best accuracies.
    """

    state: int
    fewer_runs: int
    missing: int
    loss: float


TrialRun = tuple[Trial, Path]
"""Run of a search: its trial, and its folder."""


@dataclass(frozen=True)
class SearchedVariant:
    """Variant of a study, at a point of its grid, for which a search tries values.

    Attributes:
        variant: the variant, without values of the searched keys.
        trials: its trials so far.
    """

    variant: Variant
    trials: list[Trial] = field(default_factory=list)


class Trials:
    """Plans the trials of a search, reads their results, and finds the best ones.

    ``grow`` adds the runs of the next trials to the study whenever runs have finished.

    Args:
        study: the study, to which planned trials are added.
        search: the search of the study.

    Attributes:
        lines: the searched variants with their trials.
        batches: count of the times that runs were planned for this process. If it has grown, there
            are new runs to carry out.
    """

    def __init__(self, study: Study, search: Search) -> None:
        self.study = study
        self.search = search
        spec = study.spec
        metric = measure_of(search.metric, spec.target)
        assert metric is not None
        self._metric = metric
        self._is_maximised = metric.best == "most"
        self.lines = [SearchedVariant(variant) for variant in find_searched(spec)]
        # groups of seeds that are run together; after each group, bad trials are stopped
        self._seed_groups = [[seed] for seed in spec.seeds] if search.prune else [spec.seeds]
        # the trials that were proposed last, and the index of the group of seeds that the open ones
        # among them run
        self._batch: list[Trial] = []
        self._group_index = 0
        self.batches = 0

    @property
    def is_over(self) -> bool:
        if self._batch:
            return False
        return all(len(line.trials) == self.search.trials for line in self.lines)

    def runs_of_others(self) -> set[Path]:
        """Return the folders of planned runs that another process carries out.

        The set is empty if this process does not share the search with others.
        """
        return set()

    def begin(self, path: Path, try_to_build: Build) -> None:
        """Plan the next trials when a study is begun or resumed, without writing files.

        Args:
            path: the study's folder.
            try_to_build: function that builds a run. It raises ``ScenarioError`` if the run is
                invalid, and the run's trial is then refused.
        """
        self.grow(path, try_to_build)

    def read(self, path: Path) -> None:
        """Read the results that other processes have added to the search.

        It is called under the lock of the study's folder.

        Args:
            path: the study's folder.
        """
        if self.search.is_planned_ahead:
            # all trials are planned already, so ``grow`` builds no run
            self.grow(path, lambda run: None)

    def close(self) -> None:
        """Release the locks of this process's trials, so that other processes may take them.

        The call has no effect if this process does not share the search with others.
        """

    def grow(self, path: Path, try_to_build: Build) -> None:
        """Read the results of finished runs, and plan the trials that follow from them.

        Nothing is planned as long as a planned run has neither finished nor failed.

        Args:
            path: the study's folder.
            try_to_build: function that builds a run. It raises ``ScenarioError`` if the run is
                invalid, and the run's trial is then refused.

        Raises:
            ScenarioError: all trials of a variant are refused, as their scenarios are invalid.
        """
        while not self.is_over:
            runs = self._find_unread_runs(path)
            if not are_over(runs):
                return
            self._store_results(runs)
            has_next_group = self._group_index + 1 < len(self._seed_groups)
            if not self._batch:
                self._propose_trials()
                self._plan_runs(path, try_to_build)
            elif has_next_group:
                self._group_index += 1
                self._prune_trials()
                self._plan_runs(path, try_to_build)
            else:  # all seeds of the batch are run: the next pass proposes another batch
                for trial in self._open:
                    trial.state = "done"
                self._batch = []
                self._group_index = 0

    @property
    def _open(self) -> list[Trial]:
        return [trial for trial in self._batch if trial.state == "open"]

    def _find_unread_runs(self, path: Path) -> list[TrialRun]:
        """Return the runs of open trials whose results are not stored yet, also unfinished runs."""
        runs = []
        for trial in self._open:
            planned_runs = self.study.runs_of[trial.variant.folder]
            runs += [(trial, path / run.folder) for run in planned_runs[len(trial.figures) :]]
        return runs

    def _store_results(self, runs: Sequence[TrialRun]) -> None:
        """Store the searched metric of runs in their trials; a failed run makes its trial fail.

        Args:
            runs: trial and folder of each run, which is done or has failed.
        """
        spec = self.study.spec
        targets = [*map(Target.read, spec.target)]
        for trial, folder in runs:
            if has_failed(folder):
                trial.state = "failed"
            elif trial.state == "open":
                values = measure(RunFolder(folder), targets, budget=spec.budget.limits)
                trial.figures.append(values[self._metric.name])
                trial.nearest.append(values[BEST.name] or 0.0)

    def _results(self, line: SearchedVariant) -> list[TrialResult]:
        """Return the values of each trial of a variant, and the count of trials that are better.

        A search minimises this count.
        """
        ranks = [*map(self._final_rank, line.trials)]
        results = []
        for trial, rank in zip(line.trials, ranks, strict=True):
            better_count = sum(candidate < rank for candidate in ranks)
            results.append((trial.values, better_count))
        return results

    def _final_rank(self, trial: Trial) -> TrialRank:
        return trial.final_rank(is_maximised=self._is_maximised)

    def _propose_trials(self) -> None:
        for line in self.lines:
            results = self._results(line)
            space = self.search.space_of(line.variant.name)
            count = min(self.search.batch, self.search.trials - len(results))
            proposals = self.search.ask(line.variant.label, space, results, count)
            for number, values in enumerate(proposals, len(results) + 1):
                line.trials.append(Trial.of(line.variant, number, values))
            self._batch += line.trials[len(results) :]

    def _plan_runs(self, path: Path, try_to_build: Build) -> None:
        """Plan runs of open trials for the next seeds, and refuse trials with invalid scenarios.

        If the search prunes, the seeds are run one by one, and bad trials are stopped after each
        seed. Otherwise the runs of all seeds are planned together.

        Args:
            path: the study's folder.
            try_to_build: builds a run; raises ``ScenarioError`` if the run is invalid.

        Raises:
            ScenarioError: all trials of a variant are refused.
        """
        self.batches += 1
        seeds = self._seed_groups[self._group_index]
        for trial in self._open:
            try:
                run = plan_run(trial.variant, self.study.spec, seeds[0])
                # one seed suffices, as the seed does not decide whether a scenario is valid
                if self._group_index == 0 and not is_done(path / run.folder):
                    try_to_build(run)
            except ScenarioError as error:
                trial.state = "refused"
                trial.error = str(error)
        self.study.add([trial.variant for trial in self._open], seeds)
        for line in self.lines:
            refused_count = sum(trial.state == "refused" for trial in line.trials)
            if refused_count == self.search.trials:
                raise ScenarioError(
                    f"no trial of {line.variant.label!r} can be run: {line.trials[-1].error}"
                )

    def foreseen_runs(self) -> list[PlannedRun]:
        """Return examples of the runs of trials that are not planned yet, to predict their cost.

        Their scenarios have the values that the search would propose if it had no results.
        """
        runs = []
        for line in self.lines:
            first = len(line.trials) + 1
            count = self.search.trials - len(line.trials)
            space = self.search.space_of(line.variant.name)
            proposals = self.search.ask(line.variant.label, space, [], count)
            for number, values in enumerate(proposals, first):
                variant = Trial.of(line.variant, number, values).variant
                with suppress(ScenarioError):  # a point with an invalid scenario is not run
                    for seed in self.study.spec.seeds:
                        runs.append(plan_run(variant, self.study.spec, seed))
        return runs

    def _prune_trials(self) -> None:
        """Stop open trials that are worse than the median trial of their variant.

        Trials are compared by the seeds that were run so far. With four trials or fewer, no trial
        is stopped.
        """
        seed_count = self._group_index  # groups have one seed each if trials are pruned
        for line in self.lines:
            # includes trials of earlier batches, which are compared by their first seeds
            peers = [trial for trial in line.trials if len(trial.figures) >= seed_count]
            ranks = []
            for trial in peers:
                ranks.append(trial.rank_after(seed_count, is_maximised=self._is_maximised))
            if len(ranks) <= _MOST_UNPRUNED:
                continue
            median_rank = sorted(ranks)[(len(ranks) - 1) // 2]  # the lower median
            for trial, rank in zip(peers, ranks, strict=True):
                if trial.state == "open" and rank > median_rank:
                    trial.state = "pruned"

    def best(self, line: SearchedVariant) -> Trial | None:
        """Return the best trial of a searched variant; None if no trial is done with a result.

        If several are equally good, the first one is returned.
        """
        finished = []
        for trial in line.trials:
            if trial.state == "done" and trial.value is not None:
                finished.append(trial)
        return min(finished, key=self._final_rank, default=None)

    def write(self, path: Path) -> None:
        """Write ``trials.csv`` and, for each searched variant, the best trial's scenario.

        The scenario's file is ``best.toml``; with several variants, ``best-VARIANT.toml``.

        Args:
            path: the study's folder.
        """
        files.write_text(path / TRIALS, to_csv(self.table()))
        for line in self.lines:
            best = self.best(line)
            if best is None:
                continue
            name = BEST_OF
            if len(self.lines) > 1:
                name = f"{Path(BEST_OF).stem}-{line.variant.folder}.toml"
            first = self.study.runs_of[best.variant.folder][0]
            files.write_text(path / name, first.scenario.to_toml())

    def table(self, most: int | None = None) -> ComparedTable:
        """Return a table of all trials, variant by variant, the best trial of each variant first.

        A row has variant, grid values, state, metric, count of runs and tried values.

        Args:
            most: greatest count of trials per variant; None for all.
        """
        rows: list[dict[str, Cell]] = []
        for line in self.lines:
            rows += [*self._table_rows(line)][:most]
        heads: dict[str, None] = {}
        for row in rows:
            heads.update(dict.fromkeys(row))
        heads.pop("error", None)
        if any(row["error"] for row in rows):
            heads["error"] = None
        return ComparedTable.of([*heads], rows)

    def _table_rows(self, line: SearchedVariant) -> Iterator[dict[str, Cell]]:
        """Yield a row of the table for each trial of a variant, the best trial first."""
        for trial in sorted(line.trials, key=lambda trial: (self._final_rank(trial), trial.number)):
            row: dict[str, Cell] = {"variant": line.variant.name}
            for key, value in line.variant.point:
                row[key] = _as_cell(value)
            row[TRIAL] = trial.number
            row["state"] = trial.state
            row[self.search.metric] = trial.value
            row["runs"] = len(trial.figures)
            for key, value in trial.values.items():
                row[key] = _as_cell(value)
            row["error"] = trial.error or None
            yield row

    def lines_of_text(self) -> list[str]:
        """Return a sentence for each searched variant on its best trial and its values.

        If several variants have a best trial, a line on the best of these comes first.
        """
        texts = list(map(self._describe_best, self.lines))
        ranked_variants = []
        for line in self.lines:
            best = self.best(line)
            if best is not None:
                ranked_variants.append((self._final_rank(best), line))
        if len(ranked_variants) < 2:
            return texts
        _, best_variant = min(ranked_variants, key=lambda pair: pair[0])
        target = self._metric.target
        reaches = "" if target is None else f" that reaches {target:g}"
        return [f"the best of all{reaches}: {self._describe_best(best_variant)}", *texts]

    def _describe_best(self, line: SearchedVariant) -> str:
        """Return a sentence on a variant's best trial, its values, and the keys' importance."""
        counts = _count_trials(line.trials)
        best = self.best(line)
        if best is None or best.value is None:
            return f"{line.variant.label}: no trial has {self.search.metric} ({counts})"
        settings = []
        for key, value in best.values.items():
            settings.append(f"{short_key(key, best.values)} = {value}")
        formats = {"s": show_seconds, "device-s": show_seconds, "bytes": show_bytes}
        format_metric = formats.get(self._metric.unit, "{:.4g}".format)
        text = f"{line.variant.label}: best is trial {best.number}, {self.search.metric} "
        text += f"{format_metric(best.value)}: {', '.join(settings)} ({counts})"
        # key -> share (0..1) of the differences between trials that the key explains
        explained = importances(self.search.space_of(line.variant.name), self._results(line))
        if explained:
            shares = []
            for key, share in explained.items():
                shares.append(f"{short_key(key, explained)} {show_share(share)}")
            text += "; of how its trials rank each key explains: "
            text += f"{', '.join(shares)} (Optuna's fANOVA)"
        return text


def _count_trials(trials: Sequence[Trial]) -> str:
    """Return a text with the counts of all trials, and of pruned, failed and refused ones."""
    states = [trial.state for trial in trials]
    counts = counted(len(states), "trial")
    for state in ("pruned", "failed", "refused"):
        if state in states:
            counts += f", {states.count(state)} {state}"
    return counts


def are_over(runs: Iterable[TrialRun]) -> bool:
    """Whether each of the given runs is done or has failed.

    Args:
        runs: trial and folder of each run.
    """
    return all(is_done(folder) or has_failed(folder) for _, folder in runs)


def has_failed(folder: Path) -> bool:
    """Whether the run in a folder ended with an error, as its summary states.

    A search does not repeat such a run.
    """
    return bool(files.summarised_status(folder) == "failed")


def _as_cell(value: object) -> Cell:
    if isinstance(value, int | float) and not isinstance(value, bool):
        return value
    return format_value(value)
