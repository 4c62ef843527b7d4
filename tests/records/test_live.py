"""A run that goes on can be read: what it has written by then, and nothing of it stays behind or has an influence."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.analysis.report import write_report
from fedsim.audit import audit
from fedsim.errors import RunFolderError
from fedsim.executors.inline import Inline
from fedsim.records.live import LIVE, RUNNING
from fedsim.records.reading import RunFolder
from fedsim.running.runner import Job
from fedsim.simulation import Record


@pytest.mark.parametrize("learning", ["on", "off"])
def test_tables_are_those_of_the_run_up_to_then(small: dict[str, Any], tmp_path: Path, learning: str) -> None:
    """Read after every round, and a report and a loaded run of it; in the end all is as if nobody had looked."""
    small |= {"learning": learning, "energy": {"preset": "smartphone-wifi"}}
    seen: list[tuple[dict[str, Any], list[dict[str, Any]], int]] = []

    def look(record: Record) -> None:
        if record.kind == "round" and (tmp_path / "run" / LIVE).exists():
            run = RunFolder(tmp_path / "run")
            seen.append((run.summary, run.rounds, len(run.events)))
            if len(seen) == 3 and learning == "off":
                assert write_report([run.path], tmp_path / "r.html").stat().st_size > 30_000
                assert len(fedsim.load_run(run.path).rounds) == len(run.rounds)

    job = Job(fedsim.Scenario(**small), tmp_path / "run", Inline(), live_every_s=0.0)
    job.simulation.listen(look)
    result = asyncio.run(job.execute())
    assert len(seen) >= len(result.rows) - 1 > 4
    for summary, rounds, events in seen:
        assert (summary["status"], summary["rounds"]) == (RUNNING, len(rounds))
        assert summary["events"] == events
        assert rounds == RunFolder(tmp_path / "run").rounds[: len(rounds)]
    assert [len(rounds) for _, rounds, _ in seen] == sorted(len(rounds) for _, rounds, _ in seen)

    assert not (tmp_path / "run" / LIVE).exists()
    assert not any(audit(tmp_path / "run").values())
    other = fedsim.run(fedsim.Scenario(**small), tmp_path / "other", executor="inline")
    for key in ("events_sha256", "models_sha256", "energy", "bytes"):
        assert other.summary[key] == result.summary[key]


def test_before_the_first_copy_it_is_said(small: dict[str, Any], tmp_path: Path) -> None:
    job = Job(fedsim.Scenario(**small | {"learning": "off"}), tmp_path / "run", Inline())
    with pytest.raises(RunFolderError, match="a run that goes on can be read after some seconds"):
        RunFolder(tmp_path / "run")
    asyncio.run(job.execute())
    assert RunFolder(tmp_path / "run").summary["status"] == "done"
