"""The files of a run's models are written with one model in memory at a time."""

import asyncio
import tracemalloc
from pathlib import Path

from safetensors.numpy import save_file

import fedsim
from fedsim.clock.executors import Inline
from fedsim.lab.audit.evidence import Evidence
from fedsim.records import folder as files
from fedsim.records.reading import RunFolder
from fedsim.records.schema import models_digest
from fedsim.running.model_files import last_models
from fedsim.running.runner import Job
from tests.many_models import many_models

DEVICES = 20
PERSONAL = many_models(
    DEVICES,
    "200 kB",  # two models
    strategy={"kind": "ditto", "clients_per_round": DEVICES},
    stop={"rounds": 1},
)


def test_no_more_than_two_models_are_read_at_a_time(tmp_path: Path) -> None:
    job = Job(fedsim.Scenario(**PERSONAL), tmp_path / "run", Inline())
    summary = asyncio.run(job.execute()).summary
    run = job.simulation.installed
    models = asyncio.run(last_models(run))
    (tmp_path / "again").mkdir()
    tracemalloc.start()
    try:
        digest = models_digest(models)
        files.write_models(tmp_path / "again", models)
        stored = RunFolder(tmp_path / "run").stored_models()
        assert models_digest(stored) == digest == summary["models_sha256"]
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert len(models["device"]) == DEVICES * len(run.learner.shapes)
    assert peak < 3 * run.learner.bytes < DEVICES * run.learner.bytes
    for name, arrays in RunFolder(tmp_path / "run").models().items():
        save_file(arrays, tmp_path / name)
        for folder in ("run", "again"):
            written = (tmp_path / folder / "models" / f"{name}.safetensors").read_bytes()
            assert written == (tmp_path / name).read_bytes()
    assert Evidence(RunFolder(tmp_path / "run")).models.keys() == {"global", "device"}
