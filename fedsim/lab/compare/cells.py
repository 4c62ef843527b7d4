"""Cells of a comparison: variants at points of the grid, grouped by world and named for people."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from fedsim.lab.compare.lines import Lines, format_value, short_key

ANY = "any"  # value shown for a key whose values all give the same runs
VARIANT = "variant"
PLACES = ("size", "part")
_CHOSEN = (
    "name",
    "seed",
    "strategy",
    "training",
    "model",
    "messages",
    "stop",
    "checkpoint",
    "meters",
)
"""Sections of a scenario that are no part of its world."""


def worlds_of(lines: Lines) -> list[list[int]]:
    """Return the places of the lines that have runs, one list per world."""
    points: dict[tuple[object, ...], list[int]] = {}
    for place, line in enumerate(lines.lines):
        if line.runs:
            point: tuple[object, ...] = () if lines.are_runs else (line.study, line.point)
            points.setdefault(point, []).append(place)
    if len(points) == 1:
        return [*points.values()]
    worlds: dict[tuple[object, ...], list[int]] = {}
    for point, places in points.items():
        compared = [lines.lines[place] for place in places]
        ranked = [line for line in compared if not line.reference]
        world = frozenset(_describe_world(line.runs[0].scenario) for line in ranked or compared)
        worlds.setdefault((point[0], world), []).extend(places)
    return [sorted(places) for places in worlds.values()]


def _describe_world(scenario: Mapping[str, object]) -> str:
    """Return the sections of a scenario that define its world, as JSON."""
    world = {name: section for name, section in scenario.items() if name not in _CHOSEN}
    return json.dumps(world, sort_keys=True, default=str)


def name_world(lines: Lines, places: Sequence[int], keys: Sequence[str]) -> str:
    """Return a name of a world, made of the study and grid values that differ between worlds.

    Args:
        lines: the lines of all worlds.
        places: places of the lines of this world.
        keys: keys of the grid by which the lines of all worlds differ.
    """
    line = lines.lines[places[0]]
    studies = {line.study for line in lines.lines}
    parts = []
    if len(studies) > 1 and line.study:
        parts.append(line.study)
    within = varying_keys(lines, places)
    for key, value in dict(line.point).items():
        if key in keys and key not in within:
            parts.append(f"{key.rpartition('.')[2]} {format_value(value)}")
    return ", ".join(parts)


def varying_keys(lines: Lines, places: Sequence[int]) -> list[str]:
    """Return the keys of the grid by which lines differ. A line without a key differs by it.

    Args:
        lines: the lines of the comparison.
        places: places of the lines that are compared.
    """
    points = []
    for place in places:
        points.append({key: format_value(value) for key, value in lines.lines[place].point})
    keys = dict.fromkeys(chain.from_iterable(points))
    return [key for key in keys if len({point.get(key) for point in points}) > 1]


def cells_of(lines: Lines, places: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return the cells of a world by place: variant, and value by varying key.

    Lines with identical runs are one cell. A key by which these lines differ has the value
    ``ANY``.

    Args:
        lines: the lines of the comparison.
        places: places of the lines of the world.
    """
    by_runs: dict[tuple[object, ...], list[int]] = {}
    for place in places:
        folders = tuple(run.path for run in lines.lines[place].runs)
        by_runs.setdefault(folders, []).append(place)
    keys = varying_keys(lines, places)
    cells = {}
    for identical in by_runs.values():
        line = lines.lines[identical[0]]
        free = varying_keys(lines, identical)
        point = {key: format_value(value) for key, value in line.point if key not in free}
        cell = {VARIANT: line.name}
        for key in keys:
            cell[short_key(key, keys)] = point.get(key, ANY)
        cells[identical[0]] = cell
    return cells


def cell_names(lines: Lines) -> list[str]:
    """Return a name for each line: its variant, and its values of the keys that vary."""
    places = [place for place, line in enumerate(lines.lines) if line.runs]
    names = name_cells(cells_of(lines, places))
    return [names.get(place, line.name) for place, line in enumerate(lines.lines)]


def name_cells(cells: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Return a name for each cell, by place.

    A name has the size and part of the study only if it would not be unique without them.
    """
    names = {place: _name_cell(cell, PLACES) for place, cell in cells.items()}
    counts = Counter(names.values())
    for place, name in names.items():
        if counts[name] > 1:
            names[place] = _name_cell(cells[place])
    return names


def _name_cell(cell: Mapping[str, str], excluded: Sequence[str] = ()) -> str:
    parts = []
    for key, value in cell.items():
        if value != ANY and key not in (VARIANT, *excluded):
            parts.append(f"{key}={value}")
    return f"{cell[VARIANT]} ({', '.join(parts)})" if parts else cell[VARIANT]
