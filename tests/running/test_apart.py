"""Large arrays of checkpoints: one file for all checkpoints that have the same array."""

import asyncio
import gc
import os
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import fedsim
from fedsim.clock.executors import Inline
from fedsim.common.arrays import AnyArray
from fedsim.common.errors import CheckpointError
from fedsim.common.tensor_files import StoredTensor, array_of
from fedsim.learning.refs import Ref
from fedsim.learning.scratch import Written
from fedsim.running.checkpoint import apart, store
from fedsim.running.checkpoint.apart import LinkedTensor, LinkedTensors
from fedsim.running.checkpoint.store import Checkpoint
from fedsim.running.runner import Job
from fedsim.testing import assert_same_run, go_on, run, run_until
from tests.many_models import many_models

DEVICES = 6


@pytest.fixture(autouse=True)
def _small_arrays_are_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(apart, "LEAST_BYTES", 1000)


def immutable(value: float) -> AnyArray:
    array = np.full(500, value, dtype=np.float32)
    array.setflags(write=False)
    return array


def inodes(place: Path) -> dict[str, int]:
    return {path.stem: path.stat().st_ino for path in (place / "models").iterdir()}


def test_an_array_of_two_checkpoints_is_one_file(tmp_path: Path) -> None:
    same, changing, linked = immutable(1.0), np.zeros(500), LinkedTensors()
    places = []
    for events in (1, 2, 3):
        changing += 1.0
        arrays = {"a": same, "b": immutable(events), "c": changing, "d": np.zeros(3)}
        places.append(store.write(tmp_path, Checkpoint(events, {}, arrays), linked))
    assert store.list_checkpoints(tmp_path) == places[1:]
    older, newer = (inodes(place) for place in places[1:])
    assert older["a"] == newer["a"]
    assert older["b"] != newer["b"]
    assert {*newer} == {"a", "b"}
    for place, value in zip(places[1:], (2.0, 3.0), strict=True):
        arrays = store.read(place).arrays
        found = {name: array_of(array)[0] for name, array in arrays.items()}
        assert found == {"a": 1.0, "b": value, "c": value, "d": 0.0}


def test_an_array_that_is_freed_gives_its_file_to_no_other(tmp_path: Path) -> None:
    linked = LinkedTensors()
    for events in range(1, 30):
        arrays = {"a": immutable(events)}
        place = store.write(tmp_path, Checkpoint(events, {}, arrays), linked)
        linked.newest.clear()
        assert array_of(store.read(place).arrays["a"])[0] == events
        del arrays
        gc.collect()


def test_arrays_of_a_resumed_run_keep_their_files(tmp_path: Path) -> None:
    store.write(tmp_path, Checkpoint(1, {}, {"a": immutable(1.0)}))
    first = store.read(store.latest(tmp_path))
    linked = LinkedTensors()
    second = store.write(tmp_path, Checkpoint(2, {}, {"x": first.arrays["a"]}), linked)
    shutil.rmtree(tmp_path / "checkpoint/000000000001")
    assert array_of(first.arrays["a"])[0] == 1.0
    assert inodes(second).keys() == {"x"}


def test_an_array_in_use_outlives_its_checkpoints(tmp_path: Path) -> None:
    store.write(tmp_path, Checkpoint(1, {}, {"a": immutable(7.0)}))
    held = store.read(store.latest(tmp_path)).arrays["a"]
    assert isinstance(held, LinkedTensor)
    linked = LinkedTensors()
    linked.add(held)
    for events in (2, 3):
        store.write(tmp_path, Checkpoint(events, {}, {"b": immutable(0.0)}), linked)
    assert not (tmp_path / "checkpoint/000000000001").exists()
    assert array_of(held)[0] == 7.0
    later = store.write(tmp_path, Checkpoint(4, {}, {"a": held}), linked)
    assert array_of(store.read(later).arrays["a"])[0] == 7.0


def test_without_hard_links_files_are_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, "link", refuse)
    same, linked = immutable(1.0), LinkedTensors()
    places = [
        store.write(tmp_path, Checkpoint(events, {}, {"a": same}), linked) for events in (1, 2)
    ]
    assert len({inodes(place)["a"] for place in places}) == 2
    shutil.rmtree(places[0])
    assert array_of(store.read(places[1]).arrays["a"])[0] == 1.0


@pytest.mark.parametrize("harm", ["changed", "short", "gone", "other"])
def test_a_damaged_file_is_found(harm: str, tmp_path: Path) -> None:
    place = store.write(tmp_path, Checkpoint(1, {}, {"a": immutable(1.0), "b": immutable(2.0)}))
    path = place / "models/a.safetensors"
    content = path.read_bytes()
    path.unlink()
    if harm == "changed":
        path.write_bytes(content[:-1] + b"\1")
    elif harm == "short":
        path.write_bytes(content[:100])
    elif harm == "other":
        shutil.copy(place / "models/b.safetensors", path)
    with pytest.raises(CheckpointError, match="damaged"):
        store.read(place)


def sections(**changes: Any) -> dict[str, Any]:
    """Ditto with models of which none has room in memory."""
    ditto = {"kind": "ditto", "clients_per_round": 2}
    usual = {"strategy": ditto, "stop": {"rounds": 6}, "checkpoint": {"rounds": 1}}
    return many_models(DEVICES, "200 kB", **(usual | changes))


@pytest.mark.parametrize("kind", ["ditto", "fedper"])
def test_a_run_with_shared_files_killed_and_resumed_is_the_same(kind: str, tmp_path: Path) -> None:
    told = sections(strategy={"kind": kind, "clients_per_round": 2})
    run(told, tmp_path / "whole")
    for records in (25, 60):
        cut = tmp_path / f"cut{records}"
        assert run_until(told, cut, records) == "interrupted"
        go_on(told, cut)
        assert_same_run(tmp_path / "whole", cut)


def test_a_model_put_together_of_others_is_saved_by_its_parts(tmp_path: Path) -> None:
    told = sections(strategy={"kind": "fedper", "clients_per_round": 2}, stop={"rounds": 3})
    run(told, tmp_path / "r")
    for place in store.list_checkpoints(tmp_path / "r"):
        arrays = store.read(place).arrays.values()
        sizes = sorted(array.nbytes for array in arrays if array.nbytes > 1000)
        assert len(sizes) >= 4
        # the heads of the devices that were trained, and a model for each round in which one was
        whole = [size for size in sizes if size == sizes[-1]]
        assert len(whole) <= 3
        assert sizes[0] < 0.2 * sizes[-1]


def test_a_model_on_disk_is_in_the_scratch_file_or_in_checkpoints(tmp_path: Path) -> None:
    job = Job(fedsim.Scenario(**sections()), tmp_path / "run", Inline())
    left = []
    checkpointer = job.checkpointer
    assert checkpointer is not None
    saved = checkpointer._linked

    def look(*_: object) -> None:
        gc.collect()
        alive = [ref for ref in gc.get_objects() if issubclass(type(ref), Ref)]
        stored = [ref.held for ref in alive if isinstance(ref.held, StoredTensor)]
        left.append(sum(isinstance(tensor, Written) for tensor in stored))
        assert all(tensor in saved._all for tensor in stored if isinstance(tensor, LinkedTensor))

    checkpointer.on_saved = look
    asyncio.run(job.execute())
    # at most the updates of two devices, which the round's messages name until the next instant
    assert max(left) <= 3
    places = store.list_checkpoints(tmp_path / "run")
    older, newer = (set(inodes(place).values()) for place in places)
    # two of six devices have changed, the global model, and what these come from
    assert len(older & newer) >= 3
