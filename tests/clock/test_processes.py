"""Worker processes as an executor: their GPUs, what they are sent, and the results of a run."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from threading import Barrier
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.clock import executors
from fedsim.clock.executors import Inline, Threads, WorkerProcesses, make_executor
from fedsim.common.errors import ScenarioError, SimulationError
from fedsim.testing import FIGURES, quiet_world, run
from tests.clock.light_calls import Closed, Heavy, crash, exit_at_once, seen_gpu, sum_and_flag


def seen_gpus(executor: executors.Executor, folder: Path) -> list[str | None]:
    """The GPU of each worker."""
    folder.mkdir()
    calls = [
        executor.submit(seen_gpu, folder, str(number), executor.workers)
        for number in range(executor.workers)
    ]
    seen = dict(call.result() for call in calls)
    assert len(seen) == executor.workers
    return sorted(seen.values(), key=str)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine that is said to have two GPUs; torch has none."""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,GPU-b")


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "workers", "gpus"),
    [
        (None, None, ["0", "GPU-b"]),
        ("processes", 3, ["0", "0", "GPU-b"]),
        ("processes", 1, ["0"]),
    ],
)
def test_workers_share_out_the_gpus(
    name: str | None, workers: int | None, gpus: list[str], tmp_path: Path
) -> None:
    with closing(make_executor(name, workers, device="cuda")) as executor:
        assert seen_gpus(executor, tmp_path / "calls") == gpus
        assert list(executor.gpus) == sorted(set(gpus))


@pytest.mark.usefixtures("two_gpus")
@pytest.mark.parametrize(
    ("name", "device", "workers"),
    [
        (None, "cuda:1", 2),  # a GPU by its number is one of all that this process sees
        (None, "cpu", 2),
        (None, "cuda", 1),
        ("threads", "cuda", 2),
        ("inline", "cuda", 1),
    ],
)
def test_other_work_stays_in_this_process_and_sees_all_gpus(
    name: str | None, device: str, workers: int
) -> None:
    with closing(make_executor(name, workers, device=device)) as executor:
        assert isinstance(executor, Threads | Inline)
        assert not executor.gpus


@pytest.mark.usefixtures("two_gpus")
def test_processes_of_one_numbered_gpu_see_all_gpus(tmp_path: Path) -> None:
    with closing(make_executor("processes", 2, device="cuda:1")) as executor:
        assert seen_gpus(executor, tmp_path / "calls") == ["0,GPU-b", "0,GPU-b"]


def test_with_one_gpu_threads_share_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0")
    with closing(make_executor(None, 2, device="cuda")) as executor:
        assert isinstance(executor, Threads)


@pytest.mark.usefixtures("two_gpus")
def test_a_process_that_is_lost_gives_its_gpu_to_the_next(tmp_path: Path) -> None:
    with closing(make_executor(None, 2, device="cuda")) as executor:
        for _ in range(2):
            with pytest.raises(SimulationError, match="exit status 3"):
                executor.submit(exit_at_once).result()
        assert seen_gpus(executor, tmp_path / "calls") == ["0", "GPU-b"]


def scenario() -> dict[str, Any]:
    """A run in which devices train, choose among models and are tested."""
    return quiet_world({"kind": "ifca", "groups": 2}, rounds=2)


@pytest.mark.usefixtures("two_gpus")
def test_a_process_that_crashes_is_named_with_its_signal() -> None:
    with closing(WorkerProcesses(1)) as pool:
        expected = r"ended in crash \(signal SIGABRT\); .* PYTHONFAULTHANDLER=1 shows where"
        with pytest.raises(SimulationError, match=expected):
            pool.submit(crash).result()


def test_neither_processes_nor_their_gpus_change_a_run() -> None:
    inline = run(scenario())
    with closing(WorkerProcesses(2, ["0", "GPU-b"])) as executor:
        # the check of GPUs asks torch, which has none here
        executor.gpus = ()
        spread = run(scenario(), executor=executor)
    assert [inline[name] for name in FIGURES] == [spread[name] for name in FIGURES]


@pytest.fixture
def pool() -> Iterator[WorkerProcesses]:
    with closing(WorkerProcesses(1)) as made:
        yield made


def test_a_placed_object_is_sent_once_and_stays_one_object(pool: WorkerProcesses) -> None:
    Heavy.pickled = 0
    inner = Heavy()
    outer = Heavy(inner)
    for thing in (inner, outer, outer):
        pool.place(thing)
    for _ in range(3):
        assert pool.submit(outer.has, inner).result() is True
    assert Heavy.pickled == 2


def test_arrays_arrive_as_they_were(pool: WorkerProcesses) -> None:
    values = np.arange(100_000.0)
    assert pool.submit(sum_and_flag, values).result() == (values.sum(), True)
    values.setflags(write=False)
    assert pool.submit(sum_and_flag, values[::2]).result()[0] == values[::2].sum()
    assert pool.submit(sum_and_flag, values).result() == (values.sum(), False)


def test_work_that_cannot_be_sent_is_said_and_the_worker_goes_on(pool: WorkerProcesses) -> None:
    with pytest.raises(SimulationError, match=r"cannot be sent.*executor threads sends none"):
        pool.submit(lambda: 1).result()
    with pytest.raises(SimulationError, match="cannot be sent"):
        pool.submit(sum_and_flag, np.arange(1e6), Barrier(1)).result()
    assert pool.submit(sum_and_flag, np.ones(3)).result() == (3.0, True)


def test_work_that_cannot_be_received_is_said_too(pool: WorkerProcesses) -> None:
    closed = Closed()
    pool.place(closed)
    for _ in range(2):
        with pytest.raises(ValueError, match="not here"):
            pool.submit(sum_and_flag, closed).result()
    assert pool.submit(sum_and_flag, np.ones(3)).result() == (3.0, True)


def _with_gpus(monkeypatch: pytest.MonkeyPatch, *models: str) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(models))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda index: models[index])


def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    _with_gpus(monkeypatch, "H200", "H200")
    sections = scenario() | {"training": {"device": "cuda:3", "lr": 0.1}}
    with pytest.raises(ScenarioError, match=r"'cuda:3'.*it has cpu, cuda:0, cuda:1"):
        run(sections)


@pytest.mark.usefixtures("two_gpus")
def test_gpus_that_differ_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    _with_gpus(monkeypatch, "H200", "A100")
    sections = scenario() | {"training": {"device": "cuda", "lr": 0.1}}
    with (
        closing(make_executor(None, 2, device="cuda")) as executor,
        pytest.raises(ScenarioError, match=r"the GPUs differ.*H200, A100"),
    ):
        run(sections, executor=executor)
