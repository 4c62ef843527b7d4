"""Workers: a process carries out run after run, unless it has had too much memory."""

from pathlib import Path

import pytest

import fedsim
from fedsim.lab.study.pool import WorkerPool
from fedsim.lab.study.progress import RunOrder, StudyProgress
from fedsim.output.terminal import Console
from fedsim.testing import quiet_world


@pytest.mark.long
@pytest.mark.parametrize(("most_bytes", "hired"), [(1 << 40, 1), (0, 2)])
def test_a_worker_that_has_had_much_memory_is_replaced(most_bytes: int, hired: int, tmp_path: Path) -> None:
    processes = []

    class Counted(WorkerPool):
        def _hire(self) -> object:  # type: ignore[override]
            processes.append(super()._hire())
            return processes[-1]

    text = fedsim.Scenario(**quiet_world({"kind": "fedavg"}, rounds=1) | {"learning": "off"}).to_toml()
    orders = [RunOrder(str(number), text, tmp_path / str(number), "new") for number in range(2)]
    pool = Counted(1, StudyProgress(Console(quiet=True)), most_bytes=most_bytes)
    pool._progress.begin(orders, 0)
    assert [run.status for run in pool.run(orders)] == ["done", "done"]
    pool.close()
    assert len(processes) == hired
