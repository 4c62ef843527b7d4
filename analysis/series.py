"""Runs of one scenario with several seeds, put together, and what to call them beside others."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from fedsim.analysis import style
from fedsim.files import flat
from fedsim.records.reading import RunFolder

_APART = ("seed", "name")  # what runs of one series may differ in
_MOST_KEYS = 2  # more differences than this do not fit into a name


@dataclass(frozen=True)
class Series:
    """Runs whose scenarios are the same but for the seed.

    Attributes:
        name: fit to be drawn.
        runs: one or more, of different seeds, in the order given.
        number: which look it has (``style.line_of``), the same in all pictures of a page.
    """

    name: str
    runs: tuple[RunFolder, ...]
    number: int = 0

    @property
    def label(self) -> str:
        """Its name, and how many seeds it has if there are several."""
        return self.name if len(self.runs) == 1 else f"{self.name} ({len(self.runs)} seeds)"


def group_by_scenario(runs: Sequence[RunFolder]) -> list[Series]:
    """The series, in the order of their first runs. A second run of the same scenario and seed begins a series of its own.

    A series is called after its strategy. Where several have the same one, what they differ in is added, or they are called
    after the folders of their first runs where that is too much to say.

    Raises:
        RunFolderError: a folder is damaged.
    """
    seen: Counter[str] = Counter()
    found: dict[tuple[str, int], list[RunFolder]] = {}
    for run in runs:
        scenario = json.dumps({key: value for key, value in run.scenario.items() if key not in _APART}, sort_keys=True)
        again = f"{run.summary['seed']} {scenario}"
        found.setdefault((scenario, seen[again]), []).append(run)
        seen[again] += 1
    members = list(found.values())
    named = zip(_names([part[0] for part in members]), members, strict=True)
    return [Series(name, tuple(part), number) for number, (name, part) in enumerate(named)]


def each_alone(runs: Sequence[RunFolder]) -> list[Series]:
    """A series a run, called after its folder and strategy."""
    return [Series(name, (run,), number) for number, (run, name) in enumerate(zip(runs, style.run_labels(runs), strict=True))]


def _names(firsts: Sequence[RunFolder]) -> list[str]:
    folders = style.run_names(firsts)
    strategies = [str(run.summary["strategy"]) for run in firsts]
    settings = [{key: value for key, value in flat(run.scenario).items() if key not in _APART} for run in firsts]
    names = []
    for place, (strategy, own) in enumerate(zip(strategies, settings, strict=True)):
        rivals = [other for at, other in enumerate(settings) if at != place and strategies[at] == strategy]
        keys = sorted({key for key in own for rival in rivals if own[key] != rival.get(key)})
        if not rivals:
            names.append(style.short(strategy, 40))
        elif keys and len(keys) <= _MOST_KEYS:
            names.append(style.short(", ".join([strategy, *(f"{key.rpartition('.')[2]} {own[key]}" for key in keys)]), 40))
        else:
            names.append(f"{folders[place]}: {style.short(strategy, 20)}")
    repeated = Counter(names)
    return [f"{folder}: {name}" if repeated[name] > 1 else name for name, folder in zip(names, folders, strict=True)]
