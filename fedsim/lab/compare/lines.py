"""The lines of a comparison: single runs, and variants of studies with one run per seed."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple, TypeVar

from fedsim.common.errors import ScenarioError, nearest
from fedsim.common.harmless import clean
from fedsim.lab.reading.study_folder import (
    UNNAMED,
    IndexedSure,
    StudyIndex,
    distinct_names,
    is_done,
    is_study,
    read_index,
)
from fedsim.records.folder import summarised_status
from fedsim.records.notebook import strategy_of
from fedsim.records.reading import RunFolder

_MOST_NAMES = 12
_MOST_SEEDS = 3  # up to this count, the seeds of runs with the same status are listed

_RunFigures = TypeVar("_RunFigures")
_Setting = TypeVar("_Setting")  # value that a study may declare


@dataclass(frozen=True)
class ComparedLine:
    """Line of a comparison: a single run, or a variant of a study at a point of its grid.

    Single runs have no grid and no study.

    Attributes:
        name: name of the folder of a single run, or name of the variant.
        runs: folders of the finished runs.
        planned: count of runs, finished or not.
        point: pairs of a key of the grid and its value.
        study: name of the study's folder; empty for a single run.
        reference: whether the line is a reference, such as centralised training, which is shown but
            not ranked.
        is_begun: whether any run of the line has a folder. No run has a folder before the first run
            begins, or if ``--only`` excludes the line.
        seeds_in_order: seeds of the finished runs before the first unfinished one.
        undone: seed and status of each run that is not done, such as ``failed`` or ``not begun``.
    """

    name: str
    runs: tuple[RunFolder, ...]
    planned: int = 1
    point: tuple[tuple[str, object], ...] = ()
    study: str = ""
    reference: bool = False
    is_begun: bool = True
    seeds_in_order: tuple[int, ...] = ()
    undone: tuple[tuple[int, str], ...] = ()

    @property
    def strategy(self) -> str:
        return ", ".join(dict.fromkeys(strategy_of(run.summary) for run in self.runs))

    @property
    def statuses(self) -> str:
        return ", ".join(dict.fromkeys(str(run.summary.get("status")) for run in self.runs))

    @property
    def undone_in_words(self) -> str:
        """Text such as "seed 2 failed, 7 not begun" on the runs that are not done; may be empty."""
        by_status: dict[str, list[int]] = {}
        for seed, status in self.undone:
            by_status.setdefault(status, []).append(seed)
        parts = []
        for status, seeds in by_status.items():
            text = str(len(seeds))
            if len(seeds) <= _MOST_SEEDS:
                noun = "seed" if len(seeds) == 1 else "seeds"
                text = f"{noun} {', '.join(map(str, seeds))}"
            parts.append(f"{text} {status}")
        return "; ".join(parts)


@dataclass(frozen=True)
class Lines:
    """All lines of a comparison, with the targets, goal and baseline by which to compare them.

    A line is a single run, or a variant of a study at a point of its grid. Other attributes and
    functions identify it by its index in ``lines``.

    Attributes:
        lines: the lines, in the order of the folders, and of each study's variants.
        targets: targets that the studies declare.
        baselines: for each line, the index of the line with which it is compared (its baseline);
            None if it has none.
        baseline: name of the baseline; empty if there is none.
        is_first: whether the baseline is the first run, because no baseline was named.
        goal: criterion of the ranking, such as ``time`` or ``accuracy``.
        budget: dict from name of a cost to its limit, for the accuracy within the budget.
        not_begun: names of the lines that ``begun`` removed.
        until_sure: rule by which seeds were added to lines; None if all have the same seeds.
        seeds_follow_goal: whether the study decided by ``goal`` which lines get more seeds.
    """

    lines: tuple[ComparedLine, ...]
    targets: tuple[float | str, ...]
    baselines: tuple[int | None, ...]
    baseline: str = ""
    is_first: bool = False
    goal: str = "time"
    budget: Mapping[str, float] = field(default_factory=dict)
    not_begun: tuple[str, ...] = ()
    until_sure: IndexedSure | None = None
    seeds_follow_goal: bool = False

    @property
    def are_runs(self) -> bool:
        return not any(line.study for line in self.lines)

    def begun(self) -> "Lines":
        """Return a copy without the lines (variants or single runs) of which no run has begun.

        A run has begun if it has a folder. If no run of any line has begun, all lines are kept.
        """
        begun_indices = [line_index for line_index, line in enumerate(self.lines) if line.is_begun]
        if not begun_indices:
            return self
        new_indices: dict[int | None, int] = {}  # index in this comparison -> index in the copy
        for new_index, line_index in enumerate(begun_indices):
            new_indices[line_index] = new_index
        lines = []
        baselines = []  # for each line the index of its baseline; None if the baseline is left out
        for line_index in begun_indices:
            lines.append(self.lines[line_index])
            baselines.append(new_indices.get(self.baselines[line_index]))
        has_baseline = any(line.name == self.baseline for line in lines)
        return replace(
            self,
            lines=tuple(lines),
            baselines=tuple(baselines),
            baseline=self.baseline if has_baseline else "",
            not_begun=tuple(dict.fromkeys(line.name for line in self.lines if not line.is_begun)),
        )

    def of_common_seeds(
        self, figures: Sequence[Sequence[_RunFigures]]
    ) -> Sequence[Sequence[_RunFigures]]:
        """Return the figures of the runs with the study's first seeds, which all variants have.

        A study may add seeds to some of its variants. The target at which costs are compared is
        chosen by the figures of the first seeds, so that added seeds do not change it. If no seeds
        are added, all figures are returned.

        Args:
            figures: for each line, the figures (such as time and accuracy) of each of its runs.
        """
        if self.until_sure is None:
            return figures
        common_figures = []
        for line, run_figures in zip(self.lines, figures, strict=True):
            figures_of_line = []
            for run, values in zip(line.runs, run_figures, strict=True):
                if run.summary["seed"] in self.until_sure.first:
                    figures_of_line.append(values)
            common_figures.append(figures_of_line)
        return common_figures

    def seeds_of(self, line_index: int) -> frozenset[int]:
        """Return the seeds of the finished runs of a line, which is a variant or a single run.

        If the lines are single runs, the result is always seed 0, as if all runs had the same seed,
        so that any two runs can be compared.

        Args:
            line_index: index of the line in ``lines``.
        """
        if self.are_runs:
            return frozenset({0})
        return frozenset(int(run.summary["seed"]) for run in self.lines[line_index].runs)

    def by_seed(
        self, line_index: int, figures: Sequence[Mapping[str, float | int | None]], name: str
    ) -> dict[int, float]:
        """Return a measure, such as the energy, of the runs of a line (variant), by seed.

        The seed of a single run is set to 0, so that any two single runs can be compared.

        Args:
            line_index: index of the line in ``lines``.
            figures: all figures of each run of the line, by name.
            name: name of the measure.

        Returns:
            The values by seed; runs that lack the measure are left out.
        """
        values = {}
        for run, run_figures in zip(self.lines[line_index].runs, figures, strict=True):
            value = run_figures.get(name)
            if value is not None:
                seed = 0 if self.are_runs else int(run.summary["seed"])
                values[seed] = float(value)
        return values


def read_lines(
    paths: Sequence[str | Path],
    baseline: str | None = None,
    goal: str | None = None,
    budget: Mapping[str, float] | None = None,
    index: StudyIndex | None = None,
) -> Lines:
    """Read the runs and the variants of studies in some folders, to compare them.

    Each run, and each variant of a study with its runs over seeds, is a line of the comparison.

    Args:
        paths: folders of runs and of studies.
        baseline: name of a run or a variant. By default the first baseline that a study declares,
            or the first run.
        goal: measure by which the lines are ranked, such as ``"time"`` or ``"traffic"``; by default
            the first that a study declares, or the accuracy within the budget if there is one, or
            ``"time"``.
        budget: name of a cost, such as ``time`` (s) or ``bytes`` -> its limit; by default the first
            budget that a study declares.
        index: index of the only folder; by default it is read from there.

    Raises:
        ScenarioError: no line is named ``baseline``, or none of the baseline's runs has begun.
    """
    sources = _read_sources(paths, index)
    lines = [line for source in sources for line in source.lines]
    studies = [source.study for source in sources if source.study is not None]
    chosen_baseline = baseline
    if baseline is None:
        chosen_baseline = _first_declared(study.baseline for study in studies)
    chosen_budget = budget or _first_declared(study.budget for study in studies) or {}
    default_goal = "budget" if chosen_budget else "time"
    chosen_goal = goal or _first_declared(study.goal for study in studies) or default_goal
    if not studies and chosen_baseline is None:
        return Lines(
            tuple(lines),
            targets=(),
            baselines=(0,) * len(lines),  # each run is compared with the first run
            baseline=lines[0].name,
            is_first=True,
            goal=chosen_goal,
            budget=chosen_budget,
        )
    _check_baseline(chosen_baseline, baseline, lines)
    return Lines(
        tuple(lines),
        targets=tuple(dict.fromkeys(target for study in studies for target in study.targets)),
        baselines=tuple(_find_baseline(line, lines, chosen_baseline) for line in lines),
        baseline=chosen_baseline or "",
        goal=chosen_goal,
        budget=chosen_budget,
        until_sure=_first_declared(study.until_sure for study in studies),
        # the study has decided by its own goal; its seeds do not suit a goal of the user
        seeds_follow_goal=goal is None and budget is None and len(paths) == 1,
    )


class _FolderLines(NamedTuple):
    """Lines to compare from one folder, with the index of the study; None for a single run."""

    lines: list[ComparedLine]
    study: StudyIndex | None


def _read_sources(paths: Sequence[str | Path], index: StudyIndex | None) -> list[_FolderLines]:
    """Read folders of runs and of studies as lines to compare, one entry per folder.

    Args:
        paths: the folders.
        index: index of the only folder; by default it is read from there.
    """
    if index is not None:
        (folder,) = map(Path, paths)
        return [_FolderLines(_lines_of_study(folder, index), index)]
    folders = [Path(path) for path in paths]
    run_names = iter(distinct_names([folder for folder in folders if not is_study(folder)]))
    sources = []
    for folder in folders:
        if is_study(folder):
            study = read_index(folder)
            sources.append(_FolderLines(_lines_of_study(folder, study), study))
        else:
            run = ComparedLine(next(run_names), (RunFolder(folder),))
            sources.append(_FolderLines([run], None))
    return sources


def _first_declared(values: Iterable[_Setting | None]) -> _Setting | None:
    """Return the first of ``values`` that is neither None nor empty; None if there is none."""
    return next((value for value in values if value), None)


def _check_baseline(name: str | None, baseline: str | None, lines: Sequence[ComparedLine]) -> None:
    """Raise ``ScenarioError`` if no line has the baseline's name, or a requested one has no run.

    Args:
        name: name of the baseline, declared by a study or requested; None if there is none.
        baseline: name of the requested baseline; None if none is requested. A requested baseline
            needs a run.
        lines: all lines of the comparison (variants of a study, or single runs).
    """
    names = list(dict.fromkeys(line.name for line in lines))
    if name is not None and name not in names:
        raise ScenarioError(
            f"--baseline is {name!r}; allowed are {', '.join(names)}{nearest(name, names)}"
        )
    if baseline is not None and not any(line.is_begun for line in lines if line.name == baseline):
        raise ScenarioError(
            f"--baseline is {baseline!r}, of which no run was begun; allowed are lines with runs"
        )


def _lines_of_study(path: Path, study: StudyIndex) -> list[ComparedLine]:
    """Return a line for each variant of a study at a point of its grid, with its finished runs.

    Args:
        path: folder of the study.
        study: index of the study, which lists its runs.
    """
    lines = []
    for variant in study.variants:
        finished_runs = []
        undone = []  # seed and status of each run that is not done
        seeds_in_order = []  # seeds of the runs before the first run that is not done
        is_begun = False
        for run in variant.runs:
            folder = path / run.folder
            is_begun = is_begun or folder.exists()
            if not is_done(folder):
                undone.append((run.seed, _status_of(folder)))
                continue
            finished_runs.append(RunFolder(folder))
            if not undone:
                seeds_in_order.append(run.seed)
        lines.append(
            ComparedLine(
                variant.name,
                tuple(finished_runs),
                planned=len(variant.runs),
                point=tuple(variant.point.items()),
                study=path.resolve().name,
                reference=variant.reference,
                is_begun=is_begun,
                seeds_in_order=tuple(seeds_in_order),
                undone=tuple(undone),
            )
        )
    return lines


def _status_of(run: Path) -> str:
    """Return the status of a run that is not done, such as ``failed``, or ``not begun``."""
    status = summarised_status(run)
    if status is None:
        status = "begun" if run.exists() else "not begun"
    return clean(str(status), 30)


def title_of(path: Path) -> str:
    """Return the name of the study in a folder, or the folder's name if the study has none."""
    name = read_index(path).name
    return path.resolve().name if name == UNNAMED else name


def _find_baseline(
    compared: ComparedLine, lines: Sequence[ComparedLine], name: str | None
) -> int | None:
    """Return the index of a variant's baseline among the lines to compare; None if it has none.

    The baseline is the line called ``name`` that has the variant's study and grid values. If there
    is no such line, it is the first line of this name without grid values.

    Args:
        compared: the line whose baseline to find.
        lines: all lines of the comparison (variants of a study, or single runs).
        name: name of the baseline.
    """
    candidates = [line_index for line_index, line in enumerate(lines) if line.name == name]
    for line_index in candidates:
        if (lines[line_index].study, lines[line_index].point) == (compared.study, compared.point):
            return line_index
    for line_index in candidates:
        if not lines[line_index].point:
            return line_index
    return None


def short_key(key: str, keys: Iterable[str]) -> str:
    """Return the last part of a dotted key, such as ``lr`` for ``training.lr``.

    If another key ends in this part, the whole key is returned.

    Args:
        key: a dotted key.
        keys: all dotted keys, including ``key``.
    """
    last = key.rpartition(".")[2]
    namesakes = [candidate for candidate in keys if candidate.rpartition(".")[2] == last]
    return last if len(namesakes) == 1 else key


def format_value(value: object) -> str:
    """Format a value of a grid for people: numbers and texts unchanged, tables as in TOML."""
    if isinstance(value, Mapping):
        items = ", ".join(f"{key}={format_value(item)}" for key, item in value.items())
        return f"{{{items}}}"
    if isinstance(value, list):
        return f"[{', '.join(map(format_value, value))}]"
    if isinstance(value, bool):
        return str(value).lower()
    return str(value)


def some_names(names: Sequence[str]) -> str:
    """Format up to 12 names as text, followed by the count of the names that are left out."""
    text = ", ".join(map(clean, names[:_MOST_NAMES]))
    if len(names) > _MOST_NAMES:
        text += f" and {len(names) - _MOST_NAMES} more"
    return text
