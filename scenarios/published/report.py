"""A study's runs as Markdown: published beside measured, and a verdict on each claim."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from scenarios.claims import CLAIMS, claim_cells, shown
from scenarios.published.tables import Claim, Measure, Row, Study, Table

Folders = Mapping[str, Sequence[Path]]
"""Label of a row -> its run folders, seed by seed."""


def heading(study: Study, command: str, left_out: Mapping[str, str]) -> str:
    """What the report is of, how it was made, and which tables are left out and why."""
    lines = [
        f"# {study.title}",
        "",
        f"Made by `{command}`.",
        "",
        "*Ours* is the mean over seeds, with half its 95 % interval after +-. *Within* says whether its difference from the",
        "published figure is within the tolerance.",
        "",
        study.about.rstrip(),
        *([""] if left_out else []),
    ]
    lines += [f"- Left out: {name} ({why})" for name, why in left_out.items()]
    return "\n".join(lines) + "\n"


def section(table: Table, folders: Folders) -> str:
    """A table, and how many of its figures are within tolerance."""
    values = {measure.name: measured(table, measure, folders) for measure in table.measures}
    several = len(table.measures) > 1
    seeds = len(folders[table.rows[0].label])
    about = [f"{'Seed 1' if seeds == 1 else f'Seeds 1 to {seeds}'}.", *([] if several else [f"In {table.measures[0].name}."])]
    lines = [
        f"## {table.title}",
        "",
        " ".join([*about, *([table.note] if table.note else [])]),
        "",
        f"| row | {'measure | ' if several else ''}published | ours | difference | tolerance | within |",
        f"|---|{'---|' if several else ''}---|---|---|---|---|",
    ]
    verdicts: list[bool] = []
    for row in table.rows:
        for measure in table.measures:
            cells, verdict = _cells(row, measure, values[measure.name][row.label])
            verdicts += [] if verdict is None else [verdict]
            lines.append(f"| {row.title} | {f'{measure.name} | ' if several else ''}{cells} |")
    if verdicts:
        lines += ["", f"{sum(verdicts)} of {len(verdicts)} figures are within the tolerance."]
    return "\n".join(lines) + "\n"


def measured(table: Table, measure: Measure, folders: Folders) -> dict[str, list[float]]:
    """Label of each row -> its figure, seed by seed."""
    read = {row.label: [measure.read(folder) for folder in folders[row.label]] for row in table.rows}
    if measure.relative_to is not None:
        one = read[measure.relative_to]
        return {label: [value / unit for value, unit in zip(values, one, strict=True)] for label, values in read.items()}
    if measure.minus is not None:
        other = read[measure.minus]
        return {label: [value - least for value, least in zip(values, other, strict=True)] for label, values in read.items()}
    return read


def _cells(row: Row, measure: Measure, values: Sequence[float]) -> tuple[str, bool | None]:
    """Published, ours, difference, tolerance, within; and the verdict, None where nothing is judged."""
    ours, published = shown(values, measure.digits), row.published.get(measure.name)
    if published is None:
        return f" | {ours} | | | ", None
    difference = float(np.mean(values)) - published
    start = f"{published:.{measure.digits}f} | {ours} | {difference:+.{measure.digits}f}"
    tolerance = measure.tolerance if row.tolerance is None else row.tolerance
    if tolerance is None:
        return f"{start} | | ", None
    verdict = abs(difference) <= tolerance
    return f"{start} | {tolerance:g} | {'yes' if verdict else '**no**'}", verdict


def claims(tables: Sequence[tuple[Table, Folders]]) -> str:
    """Every claim with its paired difference, interval and verdict; nothing where nothing is claimed."""
    if not any(table.claims for table, _ in tables):
        return ""
    lines = ["## Claims", "", *CLAIMS, "", "| table | claim | difference | 95 % interval | verdict |", "|---|---|---|---|---|"]
    for table, folders in tables:
        lines += [f"| {table.title.split(':')[0]} | {_claim(table, claim, folders)}" for claim in table.claims]
    return "\n".join(lines)


def _claim(table: Table, claim: Claim, folders: Folders) -> str:
    measure = table.measure(claim.measure)
    values = measured(table, measure, folders)
    least = [value + claim.by for value in values[claim.below]]
    return claim_cells(claim.text, values[claim.above], least, "")
