"""The worst disk that a system may make of what a process does: for tests of what is left after a power cut."""

import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

Names = dict[str, int]


class Disk:
    """What of a folder would be left if the power went now: in the worst cases that the rules allow.

    The content of a file is there as it was when the file was last synced, and before that it is empty. Of the names in a
    folder those are there that it had when it was last synced; of what was done to them since, a system has carried out all
    already, or nothing yet, or only the removals, or only the last.

    Args:
        folder: the folder, empty now.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._contents: dict[int, bytes] = {}  # of synced files, by the number that the system gave them
        self._names: dict[int, Names] = {folder.stat().st_ino: {}}  # likewise of folders
        self._kept: list[int] = []  # so that no number is given twice

    def synced(self, descriptor: int) -> None:
        """A file or a folder was brought to the disk."""
        number = os.fstat(descriptor).st_ino
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self._kept.append(os.dup(descriptor))
        if path.is_dir():
            self._names[number] = _names(path)
        else:
            self._contents[number] = path.read_bytes()

    def images(self, place: Path) -> Iterator[Path]:
        """What may be left, one after the other, in a folder ``place`` that is made again each time."""
        for names in (self._as_synced, _names, self._without_what_was_removed, self._with_the_newest):
            shutil.rmtree(place, ignore_errors=True)
            self._write(self._folder, self._folder.stat().st_ino, place, names)
            yield place

    def _as_synced(self, folder: Path) -> Names:
        return self._names.get(folder.stat().st_ino, {}) if folder.is_dir() else {}

    def _without_what_was_removed(self, folder: Path) -> Names:
        there = _names(folder)
        return {name: number for name, number in self._as_synced(folder).items() if name in there}

    def _with_the_newest(self, folder: Path) -> Names:
        newest = sorted(_names(folder).items(), key=lambda entry: (folder / entry[0]).lstat().st_ctime_ns)[-1:]
        return self._as_synced(folder) | dict(newest)

    def _write(self, folder: Path, number: int, place: Path, names: Callable[[Path], Names]) -> None:
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
        """Let go of all files."""
        for descriptor in self._kept:
            os.close(descriptor)


def _names(folder: Path) -> Names:
    return {entry.name: entry.inode() for entry in os.scandir(folder)}


@contextmanager
def watched(folder: Path, before_each: Callable[[Disk], None], monkeypatch: pytest.MonkeyPatch) -> Iterator[Disk]:
    """A disk with all that this process brings to it; ``before_each`` may look at it before each time."""
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
