"""What the tests of the studies on published figures have in common."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

import fedsim
from fedsim.records import folder as files
from fedsim.scenario import Scenario
from scenarios.published.study import jobs
from scenarios.published.tables import Study, Table

Folders = dict[str, list[Path]]


def require_consistent(study: Study, size: str) -> None:
    """Every claim and published figure names a row and a measure that there are, and a label means one run."""
    seen: dict[Path, tuple[object, ...]] = {}
    for table in study.sizes[size].values():
        labels, measures = [row.label for row in table.rows], [measure.name for measure in table.measures]
        assert len(set(labels)) == len(labels)
        assert len(set(measures)) == len(measures)
        assert set(measures).issuperset(name for row in table.rows for name in row.published)
        assert set(labels).issuperset(label for claim in table.claims for label in (claim.above, claim.below))
        assert set(measures).issuperset(table.measure(claim.measure).name for claim in table.claims)
        assert {None, *labels}.issuperset(other for one in table.measures for other in (one.relative_to, one.minus))
        for job in jobs(table, Path(), 1):
            assert seen.setdefault(job.folder, (job.scenario, job.changes)) == (job.scenario, job.changes)


def scenarios(table: Table) -> dict[str, Scenario]:
    """Label of each row -> its scenario."""
    return {job.folder.parent.name: fedsim.load(job.scenario, job.changes, job.seed) for job in jobs(table, Path(), 1)}


def write_run(folder: Path, rounds: Mapping[str, Sequence[float | None]], events: Sequence[tuple[str, int]] = ()) -> None:
    """A run folder with these columns of ``rounds.parquet``, and events of these kinds in these rounds."""
    folder.mkdir(parents=True)
    (folder / files.SUMMARY).write_text(json.dumps({}), encoding="utf-8")
    count = len(next(iter(rounds.values())))
    pq.write_table(pa.table({"round": range(count), **rounds}), folder / files.ROUNDS)
    rows: list[dict[str, Any]] = [{"kind": kind, "round": number, "data": None} for kind, number in events]
    schema = pa.schema([("kind", pa.string()), ("round", pa.int64()), ("data", pa.string())])
    pq.write_table(pa.Table.from_pylist(rows, schema), folder / files.EVENTS)
