"""The trials of a study that searches, planned batch by batch, each by the results of those before.

All results are read from the run folders, in the order of the trials: a search that was killed is
planned again from the beginning, which gives the same trials as far as runs are there. A trial is
over when its runs are; a run that ended by an error of its own is over too, one whose process was
lost is not.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from fedsim.common.errors import ScenarioError
from fedsim.common.units import show_bytes, show_seconds
from fedsim.lab.compare.lines import format_value, short_key
from fedsim.lab.compare.measures import BEST, measure
from fedsim.lab.compare.show import to_csv
from fedsim.lab.compare.table import Cell, ComparedTable
from fedsim.lab.reading.study_folder import BEST_OF, TRIALS, is_done
from fedsim.lab.reading.targets import Target
from fedsim.lab.study.plan import PlannedRun, Study, Variant, planned, searched
from fedsim.lab.study.search import Search, TrialResult, importances, measure_of
from fedsim.lab.study.spec import TRIAL
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder

_ENDED_WELL = {"done": 0, "pruned": 1, "failed": 2, "refused": 2, "open": 2}
_FEW = 4  # so many others are needed before one is pruned
_Build = Callable[[PlannedRun], None]


@dataclass
class Trial:
    """A point of the space that is tried."""

    variant: Variant
    number: int  # from 1 on
    values: Mapping[str, Any]  # of each key that is searched over
    state: Literal["open", "done", "pruned", "failed", "refused"] = "open"
    # the metric of its runs, one a seed; None where it is missing
    figures: list[float | None] = field(default_factory=list)
    # the best accuracy of each run, where the metric is to reach one
    nearest: list[float] = field(default_factory=list)
    error: str = ""  # of one that is refused

    @property
    def value(self) -> float | None:
        known = [figure for figure in self.figures if figure is not None]
        return sum(known) / len(known) if known and len(known) == len(self.figures) else None

    def rank(self, most: bool, seeds: int | None = None) -> tuple[float, ...]:
        """Less is better: first trials that came to their end, then by how many runs lack the
        figure, then by the figures.

        ``most``: whether more of the metric is better. ``seeds``: compare so many runs; None:
        all of them, and the state.
        """
        figures = self.figures[:seeds]
        near = -sum(self.nearest[:seeds])
        missing = figures.count(None)
        known = sum(figure for figure in figures if figure is not None)
        ended = 0 if seeds is not None else _ENDED_WELL[self.state]
        return (ended, -len(figures), missing, near if missing else -known if most else known)


@dataclass(frozen=True)
class SearchedVariant:
    """A variant at a point of the grid, without values of the keys that are searched over, and
    its trials in their order.
    """

    variant: Variant
    trials: list[Trial] = field(default_factory=list)


class Trials:
    """The trials of a study's ``search``, which are added to the ``study``; ``lines`` are the
    variants that are searched.
    """

    def __init__(self, study: Study, search: Search) -> None:
        self.study = study
        self.search = search
        spec = study.spec
        metric = measure_of(search.metric, spec.target)
        assert metric is not None
        self._metric = metric
        self._most = metric.best == "most"
        self.lines = [SearchedVariant(variant) for variant in searched(spec)]
        self._rungs = [[seed] for seed in spec.seeds] if search.prune else [spec.seeds]
        self._rung = 0
        self._batch: list[Trial] = []

    @property
    def is_over(self) -> bool:
        return not self._batch and all(
            len(line.trials) == self.search.trials for line in self.lines
        )

    def grow(self, path: Path, try_to_build: _Build) -> None:
        """Plan the trials that follow from the runs that are over in the study's folder; invalid
        ones are refused.
        """
        while not self.is_over and self._told(path):
            if not self._batch:
                self._propose()
                self._plan(path, try_to_build)
            elif self._rung + 1 < len(self._rungs):
                self._rung += 1
                self._prune()
                self._plan(path, try_to_build)
            else:
                for trial in self._open:
                    trial.state = "done"
                self._batch = []
                self._rung = 0

    @property
    def _open(self) -> list[Trial]:
        return [trial for trial in self._batch if trial.state == "open"]

    def _told(self, path: Path) -> bool:
        new = (
            (trial, self.study.runs_of[trial.variant.folder][len(trial.figures) :])
            for trial in self._open
        )
        runs = [(trial, path / run.folder) for trial, own in new for run in own]
        spec = self.study.spec
        if not all(is_done(folder) or gave_up(folder) for _, folder in runs):
            return False
        for trial, folder in runs:
            if gave_up(folder):
                trial.state = "failed"
            elif trial.state == "open":
                values = measure(
                    RunFolder(folder), [*map(Target.read, spec.target)], budget=spec.budget.limits
                )
                trial.figures.append(values[self._metric.name])
                trial.nearest.append(values[BEST.name] or 0.0)
        return True

    def _results(self, line: SearchedVariant) -> list[TrialResult]:
        ranks = [*map(self._rank, line.trials)]
        return [
            (trial.values, sum(other < rank for other in ranks))
            for trial, rank in zip(line.trials, ranks, strict=True)
        ]

    def _rank(self, trial: Trial) -> tuple[float, ...]:
        return trial.rank(self._most)

    def _propose(self) -> None:
        for line in self.lines:
            told = self._results(line)
            space = self.search.space_of(line.variant.name)
            count = min(self.search.batch, self.search.trials - len(told))
            for number, values in enumerate(
                self.search.ask(line.variant.label, space, told, count), len(told) + 1
            ):
                line.trials.append(Trial(line.variant.at({TRIAL: number} | values), number, values))
            self._batch += line.trials[len(told) :]

    def _plan(self, path: Path, try_to_build: _Build) -> None:
        """Plan the runs of this rung; trials that cannot be run are refused, and so is a search
        of only such ones.
        """
        for trial in self._open:
            try:
                run = planned(trial.variant, self.study.spec, self._rungs[self._rung][0])
                if self._rung == 0 and not is_done(path / run.folder):
                    try_to_build(run)
            except ScenarioError as error:
                trial.state = "refused"
                trial.error = str(error)
        self.study.add([trial.variant for trial in self._open], self._rungs[self._rung])
        for line in self.lines:
            if [trial.state for trial in line.trials] == ["refused"] * self.search.trials:
                raise ScenarioError(
                    f"no trial of {line.variant.label!r} can be run: {line.trials[-1].error}"
                )

    def _prune(self) -> None:
        """Prune the trials that are worse than the median of the trials with as many runs."""
        for line in self.lines:
            peers = [trial for trial in line.trials if len(trial.figures) >= self._rung]
            ranks = sorted(trial.rank(self._most, self._rung) for trial in peers)
            for trial in peers if len(ranks) > _FEW else ():
                if (
                    trial.state == "open"
                    and trial.rank(self._most, self._rung) > ranks[(len(ranks) - 1) // 2]
                ):
                    trial.state = "pruned"

    def best(self, line: SearchedVariant) -> Trial | None:
        """The first of a line's best trials, of those that came to their end and have the
        figure.
        """
        there = [
            trial for trial in line.trials if trial.state == "done" and trial.value is not None
        ]
        return min(there, key=self._rank, default=None)

    def write(self, path: Path) -> None:
        """Write all trials as a table, the best first, and the scenario of the best of each
        line.
        """
        files.write_text(path / TRIALS, to_csv(self.table()))
        for line in self.lines:
            best = self.best(line)
            name = (
                BEST_OF
                if len(self.lines) == 1
                else f"{Path(BEST_OF).stem}-{line.variant.folder}.toml"
            )
            if best is not None:
                files.write_text(
                    path / name, self.study.runs_of[best.variant.folder][0].scenario.to_toml()
                )

    def table(self, most: int | None = None) -> ComparedTable:
        rows = [row for line in self.lines for row in [*self._rows(line)][:most]]
        heads = dict.fromkeys(head for row in rows for head in row if head != "error")
        return ComparedTable.of(
            [*heads, *(["error"] if any(row["error"] for row in rows) else [])], rows
        )

    def _rows(self, line: SearchedVariant) -> Iterator[dict[str, Cell]]:
        for trial in sorted(line.trials, key=lambda trial: (self._rank(trial), trial.number)):
            yield {
                "variant": line.variant.name,
                **{key: _cell(value) for key, value in line.variant.point},
                TRIAL: trial.number,
                "state": trial.state,
                self.search.metric: trial.value,
                "runs": len(trial.figures),
                **{key: _cell(value) for key, value in trial.values.items()},
                "error": trial.error or None,
            }

    def lines_of_text(self) -> list[str]:
        found = [(best, line) for line in self.lines if (best := self.best(line)) is not None]
        if len(found) < 2:
            return list(map(self._text_of, self.lines))
        first = min(found, key=lambda one: self._rank(one[0]))[1]
        _, to, aim = self._metric.name.partition("to target")
        return [
            f"the best of all{' that reaches' if to else ''}{aim}: {self._text_of(first)}",
            *map(self._text_of, self.lines),
        ]

    def _text_of(self, line: SearchedVariant) -> str:
        states = [trial.state for trial in line.trials]
        best = self.best(line)
        others = (
            f", {states.count(state)} {state}"
            for state in ("pruned", "failed", "refused")
            if state in states
        )
        counted = f"({len(states)} trials{''.join(others)})"
        if best is None or best.value is None:
            return f"{line.variant.label}: no trial has {self.search.metric} {counted}"
        values = ", ".join(
            f"{short_key(key, best.values)} = {value}" for key, value in best.values.items()
        )
        show = {"s": show_seconds, "device-s": show_seconds, "bytes": show_bytes}.get(
            self._metric.unit, "{:.4g}".format
        )
        shares = importances(self.search.space_of(line.variant.name), self._results(line))
        named = ", ".join(f"{short_key(key, shares)} {share:.0%}" for key, share in shares.items())
        matters = (
            f"; of how its trials rank each key explains: {named} (Optuna's fANOVA)"
            if named
            else ""
        )
        best_is = f"best is trial {best.number}, {self.search.metric} {show(best.value)}: {values}"
        return f"{line.variant.label}: {best_is} {counted}{matters}"


def gave_up(folder: Path) -> bool:
    """Whether the run in a folder ended by an error of its own; it is not tried again."""
    return bool(files.summarised_status(folder) == "failed")


def _cell(value: Any) -> Cell:
    return (
        value
        if isinstance(value, int | float) and not isinstance(value, bool)
        else format_value(value)
    )
