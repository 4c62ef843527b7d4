"""What trackers are told: the same whatever they are."""

import shutil
from pathlib import Path

import pytest

from fedsim.errors import RunFolderError
from fedsim.records.exports import exports
from fedsim.records.reading import RunFolder
from fedsim.records.study_folder import IndexedRun, IndexedVariant, StudyIndex, write_index


def study_of(run: Path, folder: Path, done: int = 2) -> Path:
    """The folder of a study of two variants, of which so many are done: copies of a run."""
    variants = []
    for place, name in enumerate(("a", "b")):
        there = f"runs/{name}/seed-1"
        if place < done:
            shutil.copytree(run, folder / there)
        entry = {"name": name, "label": name, "point": {}, "changes": {}, "reference": False}
        variants.append(IndexedVariant(**entry, runs=(IndexedRun(seed=1, folder=there),)))
    folder.mkdir(exist_ok=True)
    write_index(folder, StudyIndex(format=1, name="two", baseline=None, targets=(), seeds=(1,), variants=tuple(variants)))
    return folder


def test_studies_stand_for_their_runs_that_are_done(tiny_run: Path, tmp_path: Path) -> None:
    study = study_of(tiny_run, tmp_path / "study", done=1)
    found = exports([tiny_run, study])
    assert [(one.name, one.study) for one in found] == [("run", ""), ("study/a/seed-1", "study")]
    assert len({one.key for one in found}) == 2
    assert [one.key for one in exports([study])] == [found[1].key]
    assert (found[0].settings["strategy.kind"], found[0].settings["stop.rounds"]) == ("fedavg", 8)
    summary = RunFolder(tiny_run).summary
    assert found[0].figures["accuracy/best"] == summary["accuracy"]["best"]
    assert found[0].figures["bytes/up"] == summary["bytes"]["up"]
    with pytest.raises(RunFolderError, match="has no run that is done"):
        exports([study_of(tiny_run, tmp_path / "none", done=0)])
    with pytest.raises(RunFolderError, match="is not a run folder"):
        exports([tmp_path])
