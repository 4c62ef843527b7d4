"""Folders that take long to make, and that the first of pytest's workers makes for all of them."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from filelock import FileLock


def copy_of(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A worker's own copy of a folder as ``made_once`` makes it."""
    return Path(shutil.copytree(made_once(factory, name, make), factory.mktemp(name) / "copy"))


def made_once(factory: pytest.TempPathFactory, name: str, make: Callable[[Path], object]) -> Path:
    """A folder that is made once in a session; not to be changed.

    Args:
        factory: pytest's ``tmp_path_factory``.
        name: names the folder in the session.
        make: fills the folder that it is given, which is empty.
    """
    place = factory.getbasetemp()
    if "PYTEST_XDIST_WORKER" in os.environ:
        place = place.parent  # the workers' folders lie in one of the session
    original = place / f"shared-{name}"
    with FileLock(place / f"shared-{name}.lock"):
        if not original.exists():
            unfinished = place / f"unfinished-{name}"
            shutil.rmtree(unfinished, ignore_errors=True)  # a worker has failed to make it
            unfinished.mkdir()
            make(unfinished)
            unfinished.rename(original)
    return original
