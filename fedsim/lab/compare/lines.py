"""The lines of a comparison: run folders one by one, and the variants of studies, each with the
runs of its seeds.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fedsim.common.errors import ScenarioError, nearest
from fedsim.lab.reading.study_folder import UNNAMED, is_done, is_study, names_apart, read_index
from fedsim.records.notebook import strategy_of
from fedsim.records.reading import RunFolder


@dataclass(frozen=True)
class ComparedLine:
    """One line of a comparison: a run by its folder's name, or a variant of a ``study`` at a
    ``point`` of its grid.

    A variant's runs are the done ones of ``planned``. A ``reference`` is not ranked.
    """

    name: str
    runs: tuple[RunFolder, ...]
    planned: int = 1
    point: tuple[tuple[str, Any], ...] = ()
    study: str = ""
    reference: bool = False
    is_begun: bool = True
    """whether a folder of one of its runs is there: the others wait, or ``--only`` left them
    out.
    """

    @property
    def strategy(self) -> str:
        return ", ".join(dict.fromkeys(strategy_of(run.summary) for run in self.runs))

    @property
    def statuses(self) -> str:
        return ", ".join(dict.fromkeys(str(run.summary.get("status")) for run in self.runs))


@dataclass(frozen=True)
class Lines:
    """All lines of a comparison, in the order of their arguments, and of the studies' variants,
    with the studies' targets.
    """

    lines: tuple[ComparedLine, ...]
    targets: tuple[float | str, ...]
    baselines: tuple[int | None, ...]
    """the place of each line's baseline, or None."""
    baseline: str = ""
    """the name of the baseline, if there is one; ``is_first``: the first run, since none was
    named.
    """
    is_first: bool = False
    goal: str = "time"
    """one of ``fedsim.lab.compare.measures.GOALS``."""
    budget: Mapping[str, float] = field(default_factory=dict)
    """limits by cost, see ``fedsim.lab.reading.targets.within``."""
    not_begun: tuple[str, ...] = ()
    """names of lines that ``begun`` has left out."""

    @property
    def are_runs(self) -> bool:
        return not any(line.study for line in self.lines)

    def begun(self) -> "Lines":
        """The same without the lines of which no run was begun, unless that is all of them."""
        kept = [place for place, line in enumerate(self.lines) if line.is_begun]
        if not kept:
            return self
        places: dict[int | None, int] = {place: number for number, place in enumerate(kept)}
        lines = tuple(self.lines[place] for place in kept)
        baseline = self.baseline if any(line.name == self.baseline for line in lines) else ""
        return replace(
            self,
            lines=lines,
            baselines=tuple(places.get(self.baselines[place]) for place in kept),
            baseline=baseline,
            not_begun=tuple(dict.fromkeys(line.name for line in self.lines if not line.is_begun)),
        )

    def by_seed(
        self, place: int, figures: Sequence[Mapping[str, float | int | None]], name: str
    ) -> dict[int, float]:
        """A figure of the runs of one line that have it, by seed; single runs have 0 for a seed,
        since any two are compared.
        """
        seeds = [0 if self.are_runs else int(run.summary["seed"]) for run in self.lines[place].runs]
        return {
            seed: float(value)
            for seed, own in zip(seeds, figures, strict=True)
            if (value := own.get(name)) is not None
        }


def read_lines(
    paths: Sequence[str | Path],
    baseline: str | None = None,
    goal: str | None = None,
    budget: Mapping[str, float] | None = None,
) -> Lines:
    """The lines of folders of runs and of studies; ``ScenarioError`` if there is no such
    baseline (a run or a variant).

    The ``baseline``, ``goal`` and ``budget`` default to those of the first study, else to the
    first run and the least time.
    """
    lines: list[ComparedLine] = []
    targets: list[float | str] = []
    named = baseline
    single = iter(names_apart([path for path in map(Path, paths) if not is_study(path)]))
    for path in map(Path, paths):
        if not is_study(path):
            lines.append(ComparedLine(next(single), (RunFolder(path),)))
            continue
        study = read_index(path)
        name = path.resolve().name
        for one in study.variants:
            folders = [path / run.folder for run in one.runs]
            done = tuple(RunFolder(folder) for folder in folders if is_done(folder))
            is_begun = any(folder.exists() for folder in folders)
            point = tuple(one.point.items())
            lines.append(
                ComparedLine(one.name, done, len(one.runs), point, name, one.reference, is_begun)
            )
        targets += study.targets
        named = named or study.baseline
        goal = goal or study.goal
        budget = budget or study.budget
    aim = goal or ("budget" if budget else "time"), budget or {}
    if named is None and not any(line.study for line in lines):
        return Lines(tuple(lines), (), (0,) * len(lines), lines[0].name, True, *aim)
    names = list(dict.fromkeys(line.name for line in lines))
    if named is not None and named not in names:
        raise ScenarioError(
            f"--baseline is {named!r}; allowed are {', '.join(names)}{nearest(named, names)}"
        )
    if baseline is not None and not any(line.is_begun for line in lines if line.name == baseline):
        raise ScenarioError(
            f"--baseline is {baseline!r}, of which no run was begun; allowed are lines with runs"
        )
    baselines = tuple(_baseline_of(line, lines, named) for line in lines)
    return Lines(tuple(lines), tuple(dict.fromkeys(targets)), baselines, named or "", False, *aim)


def title_of(path: Path) -> str:
    """The name of the study in a folder; without one the folder's."""
    name = read_index(path).name
    return path.resolve().name if name == UNNAMED else name


def _baseline_of(line: ComparedLine, lines: Sequence[ComparedLine], name: str | None) -> int | None:
    """The place of a line's baseline: in its own study, at its own point of the grid; else where
    the name is.
    """
    places = [at for at, other in enumerate(lines) if other.name == name]
    near = [at for at in places if (lines[at].study, lines[at].point) == (line.study, line.point)]
    return next(iter(near or [at for at in places if not lines[at].point]), None)


def short_key(key: str, keys: Iterable[str]) -> str:
    """The last part of a dotted key, where no other of the keys ends so; else all of it."""
    last = key.rpartition(".")[2]
    return last if sum(other.rpartition(".")[2] == last for other in keys) == 1 else key


def shown(value: Any) -> str:
    """A value of a grid for people: numbers and texts as they are, tables as TOML writes them."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}={shown(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(shown(item) for item in value) + "]"
    return str(value).lower() if isinstance(value, bool) else str(value)
