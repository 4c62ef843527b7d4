"""Power cuts: whatever a system has brought to the disk by then, what fedsim said is saved can
be gone on with.
"""

import asyncio
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.lab.reading.study_folder import is_done
from fedsim.records import folder as files
from fedsim.running.checkpoint import store
from fedsim.running.runner import Job
from fedsim.testing import assert_same_run, assert_sound, eventful_world, go_on, run

Names = dict[str, int]


class Disk:
    """What of a folder would be left if the power went now: in the worst cases that the rules
    allow.

    The content of a file is there as it was when the file was last synced, and before that it is
    empty. Of the names in a folder those are there that it had when it was last synced; of what was
    done to them since, a system has carried out all already, or nothing yet, or only the removals,
    or only the last.

    Args:
        folder: the folder, empty now.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        # of synced files, by the number that the system gave them
        self._contents: dict[int, bytes] = {}
        self._names: dict[int, Names] = {folder.stat().st_ino: {}}  # likewise of folders
        self._kept: list[int] = []  # so that no number is given twice

    def synced(self, descriptor: int) -> None:
        number = os.fstat(descriptor).st_ino
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self._kept.append(os.dup(descriptor))
        if path.is_dir():
            self._names[number] = _names(path)
        else:
            self._contents[number] = path.read_bytes()

    def images(self, place: Path) -> Iterator[Path]:
        """What may be left, one after the other, in a folder ``place`` that is made again each
        time.
        """
        for names in (
            self._as_synced,
            _names,
            self._without_what_was_removed,
            self._with_the_newest,
        ):
            shutil.rmtree(place, ignore_errors=True)
            self._write(self._folder, self._folder.stat().st_ino, place, names)
            yield place

    def _as_synced(self, folder: Path) -> Names:
        return self._names.get(folder.stat().st_ino, {}) if folder.is_dir() else {}

    def _without_what_was_removed(self, folder: Path) -> Names:
        there = _names(folder)
        return {name: number for name, number in self._as_synced(folder).items() if name in there}

    def _with_the_newest(self, folder: Path) -> Names:
        newest = sorted(
            _names(folder).items(), key=lambda entry: (folder / entry[0]).lstat().st_ctime_ns
        )[-1:]
        return self._as_synced(folder) | dict(newest)

    def _write(
        self, folder: Path, number: int, place: Path, names: Callable[[Path], Names]
    ) -> None:
        place.mkdir()
        for name, inside in self._listed(folder, number, names).items():
            if inside in self._names or (folder / name).is_dir():
                self._write(folder / name, inside, place / name, names)
            else:
                (place / name).write_bytes(self._contents.get(inside, b""))

    def _listed(self, folder: Path, number: int, names: Callable[[Path], Names]) -> Names:
        """The names in a folder; one that was removed since has those it had when it was synced."""
        is_there = folder.is_dir() and folder.stat().st_ino == number
        return names(folder) if is_there else self._names.get(number, {})

    def close(self) -> None:
        for descriptor in self._kept:
            os.close(descriptor)


def _names(folder: Path) -> Names:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


@contextmanager
def watched(
    folder: Path, before_each: Callable[[Disk], None], monkeypatch: pytest.MonkeyPatch
) -> Iterator[Disk]:
    """A disk with all that this process brings to it; ``before_each`` may look at it before each
    time.
    """
    disk, sync = Disk(folder), os.fsync

    def fsync(descriptor: int) -> None:
        before_each(disk)
        sync(descriptor)
        disk.synced(descriptor)

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fsync)
        try:
            yield disk
        finally:
            disk.close()


SCENARIO: dict[str, Any] = eventful_world(
    {"kind": "fedbuff", "concurrency": 7, "buffer": 3}, seed=6, rounds=8
)
SCENARIO["checkpoint"] = {"rounds": 2}
TOML = fedsim.Scenario(**SCENARIO).to_toml()


def test_a_power_cut_at_any_instant_leaves_what_was_said_to_be_saved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every sync, in each of the worst cases, the folder can be resumed from the save
    last told of, or is done.
    """
    cuts = Cuts(tmp_path / "disk", tmp_path / "cut")
    with watched(cuts.disk, cuts.look, monkeypatch) as disk:
        job = Job(fedsim.Scenario(**SCENARIO), cuts.disk / "a" / "run", Inline())
        job.checkpointer.on_saved = cuts.saved  # type: ignore[union-attr]
        asyncio.run(job.execute())
        cuts.look(disk)
        assert is_whole(cuts.place / "a" / "run") == "done"
    assert cuts.told == 4
    assert cuts.looks > 3 * cuts.told
    run(SCENARIO, tmp_path / "whole")
    assert_same_run(tmp_path / "whole", cuts.disk / "a" / "run")
    for left in cuts.kept:
        go_on(SCENARIO, left)
        assert_same_run(tmp_path / "whole", left)
        assert_sound(left)


class Cuts:
    """Looks at what each power cut would leave of ``disk``, shown in ``place``; ``kept`` are
    some of these folders.
    """

    def __init__(self, disk: Path, place: Path) -> None:
        disk.mkdir()
        self.disk, self.place = disk, place
        self.looks = self.told = 0
        self.kept: list[Path] = []
        self._rounds = 0

    def saved(self, rounds: int, time: float) -> None:
        self.told, self._rounds = self.told + 1, rounds

    def look(self, disk: Disk) -> None:
        self.looks += bool(self.told)
        for image in disk.images(self.place) if self.told else ():
            state = is_whole(image / "a" / "run")
            assert state == "done" or state >= self._rounds, (
                f"look {self.looks}: {state}, but {self._rounds} rounds were saved"
            )
            if state != "done" and self.looks % 20 == 10 and len(self.kept) < 3:
                self.kept.append(
                    Path(
                        shutil.copytree(
                            image / "a" / "run", self.place.with_name(f"kept-{len(self.kept)}")
                        )
                    )
                )


def is_whole(folder: Path) -> Any:
    """After how many rounds a folder can be gone on with; "done" where a whole run is."""
    if is_done(folder):
        stated = json.loads((folder / files.SUMMARY).read_text())["files_sha256"]
        assert stated == {name: files.fingerprint(folder / name) for name in stated}
        return "done"
    files.refuse_other_run(folder, TOML)
    _, tree, _ = store.read(store.latest(folder))
    recorder = tree["root"]["recorder"]
    for table, parts in recorder["parts"].items():
        for number, sha256 in enumerate(parts):
            assert (
                files.fingerprint(folder / f"{Path(table).stem}.part-{number:05d}.parquet")
                == sha256
            )
    return len(recorder["rounds"])


def test_a_file_is_the_old_one_or_the_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: set[str] = set()

    def look(disk: Disk) -> None:
        for image in disk.images(tmp_path / "image"):
            path = image / "b" / "index.json"
            seen.add(path.read_text() if path.exists() else "none")

    (tmp_path / "disk").mkdir()
    with watched(tmp_path / "disk", look, monkeypatch) as disk:
        files.make(tmp_path / "disk" / "b")
        for text in ("old", "new"):
            files.write_text(tmp_path / "disk" / "b" / "index.json", text)
            look(disk)
            assert (tmp_path / "image" / "b" / "index.json").read_text() == text
    assert seen == {"none", "old", "new"}


@pytest.mark.parametrize("failing", ["write", "sync"])
def test_what_could_not_be_written_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, failing: str
) -> None:
    def fails(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    (tmp_path / "x.txt").write_text("old")
    monkeypatch.setattr(
        *{"write": (Path, "write_text"), "sync": (files.os, "fsync")}[failing], fails
    )
    with pytest.raises(OSError, match="No space"):
        files.write_text(tmp_path / "x.txt", "new")
    monkeypatch.undo()
    assert [path.name for path in tmp_path.iterdir()] == ["x.txt"]
    assert (tmp_path / "x.txt").read_text() == "old"
