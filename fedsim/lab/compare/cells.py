"""Cells of a comparison: variants at points of the grid, grouped by world and named for people."""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from itertools import chain

from fedsim.lab.compare.lines import Lines, format_value, short_key

ANY = "any"  # value shown for a key whose values all give the same runs
VARIANT = "variant"
PLACES = ("size", "part")
_NOT_OF_WORLD = (
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
    """Group the lines of a comparison by world: devices, network and data that they share.

    A line is a variant at a point of a study's grid, or a single run. Lines share a world if their
    scenarios differ at most in strategy, training, model, messages, stop conditions, checkpoints
    and meters. Lines of different studies never share a world. Only lines of the same world are
    compared with each other. All single runs are one group; lines without runs are left out.

    Args:
        lines: the lines of the comparison.

    Returns:
        Indices of the lines of each world, ascending.
    """
    line_indices_by_point: dict[tuple[object, ...], list[int]] = {}
    for line_index, line in enumerate(lines.lines):
        if line.runs:
            point: tuple[object, ...] = () if lines.are_runs else (line.study, line.point)
            line_indices_by_point.setdefault(point, []).append(line_index)
    if len(line_indices_by_point) == 1:  # a single world, whatever the scenarios are
        return [*line_indices_by_point.values()]
    worlds: dict[tuple[object, ...], list[int]] = {}
    for point, line_indices in line_indices_by_point.items():
        # a reference, such as training on pooled data, may differ in its data, and shares the world
        # of the other lines at its point
        compared = [lines.lines[line_index] for line_index in line_indices]
        ranked = [line for line in compared if not line.reference]
        world = frozenset(_describe_world(line.runs[0].scenario) for line in ranked or compared)
        study = point[0]
        worlds.setdefault((study, world), []).extend(line_indices)
    return [sorted(line_indices) for line_indices in worlds.values()]


def _describe_world(scenario: Mapping[str, object]) -> str:
    """Return the parts of a scenario that define devices, network and data, as JSON text."""
    world = {name: section for name, section in scenario.items() if name not in _NOT_OF_WORLD}
    return json.dumps(world, sort_keys=True, default=str)


def name_world(lines: Lines, line_indices: Sequence[int], keys: Sequence[str]) -> str:
    """Return a name of a world, such as "share 0.3", by which it differs from other worlds.

    The lines of a world share devices, network and data. The name is made of the study, if there
    are several, and of the grid values that all lines of the world share.

    Args:
        lines: the lines of all worlds.
        line_indices: indices of the lines of this world.
        keys: keys of the grid by which the lines of all worlds differ.
    """
    line = lines.lines[line_indices[0]]
    studies = {line.study for line in lines.lines}
    parts = []
    if len(studies) > 1 and line.study:
        parts.append(line.study)
    keys_within_world = varying_keys(lines, line_indices)
    for key, value in dict(line.point).items():
        if key in keys and key not in keys_within_world:
            parts.append(f"{key.rpartition('.')[2]} {format_value(value)}")
    return ", ".join(parts)


def varying_keys(lines: Lines, line_indices: Sequence[int]) -> list[str]:
    """Return the keys of a study's grid by which some lines (variants with grid values) differ.

    The grid has lists of values for keys of the scenario, and a line has one value of each list. A
    key that only some of the lines have counts as differing.

    Args:
        lines: the lines of the comparison (variants of a study, or single runs).
        line_indices: indices of the lines that are compared.
    """
    points = []
    for line_index in line_indices:
        points.append({key: format_value(value) for key, value in lines.lines[line_index].point})
    keys = dict.fromkeys(chain.from_iterable(points))
    return [key for key in keys if len({point.get(key) for point in points}) > 1]


def cells_of(lines: Lines, line_indices: Sequence[int]) -> dict[int, dict[str, str]]:
    """Return, for each line of a world, the variant and the grid values by which the lines differ.

    The lines of a world share devices, network and data. If a grid value does not matter for a
    variant, several of its lines have the same runs. These lines get one entry, at the index of the
    first of them, in which each key by which they differ has the value ``any``.

    Args:
        lines: the lines of the comparison (variants of a study, or single runs).
        line_indices: indices of the lines of the world.

    Returns:
        Dict from index of a line to a dict from key (``variant`` or short key of the grid) to
        value.
    """
    line_indices_by_runs: dict[tuple[object, ...], list[int]] = {}
    for line_index in line_indices:
        folders = tuple(run.path for run in lines.lines[line_index].runs)
        line_indices_by_runs.setdefault(folders, []).append(line_index)
    keys = varying_keys(lines, line_indices)
    cells = {}
    for same_runs in line_indices_by_runs.values():  # indices of lines with the same runs
        line = lines.lines[same_runs[0]]
        free_keys = varying_keys(lines, same_runs)
        point = {key: format_value(value) for key, value in line.point if key not in free_keys}
        cell = {VARIANT: line.name}
        for key in keys:
            cell[short_key(key, keys)] = point.get(key, ANY)
        cells[same_runs[0]] = cell
    return cells


def cell_names(lines: Lines) -> list[str]:
    """Return a short name for each line: its variant, and the grid values by which lines differ.

    A line is a variant at a point of a study's grid, or a single run. A line that has no runs, or
    the same runs as an earlier line, has the name of its variant without grid values.
    """
    line_indices = [line_index for line_index, line in enumerate(lines.lines) if line.runs]
    names = name_cells(cells_of(lines, line_indices))
    return [names.get(line_index, line.name) for line_index, line in enumerate(lines.lines)]


def name_cells(cells: Mapping[int, Mapping[str, str]]) -> dict[int, str]:
    """Return a name for each line, such as ``fedprox (mu=0.1)``, by index of the line.

    The values of the keys ``size`` and ``part`` are in the name only if another line would have the
    same name without them.

    Args:
        cells: dict from index of a line to its variant and grid values, such as
            ``{2: {"variant": "fedprox", "mu": "0.1"}}``.
    """
    names = {line_index: _name_cell(cell, PLACES) for line_index, cell in cells.items()}
    counts = Counter(names.values())
    for line_index, name in names.items():
        if counts[name] > 1:
            names[line_index] = _name_cell(cells[line_index])
    return names


def _name_cell(cell: Mapping[str, str], excluded: Sequence[str] = ()) -> str:
    parts = []
    for key, value in cell.items():
        if value != ANY and key not in (VARIANT, *excluded):
            parts.append(f"{key}={value}")
    return f"{cell[VARIANT]} ({', '.join(parts)})" if parts else cell[VARIANT]
