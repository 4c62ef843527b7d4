"""Cores, memory and GPUs that a process may use: bound to cores, in a control group, in a Slurm
job.
"""

import os
import sys
from pathlib import Path

import pytest

from fedsim.clock.executors import Threads, make_executor
from fedsim.common import machine
from fedsim.common.machine import GpuShares, usable_cores, usable_gpus, usable_memory

GIB = 1 << 30


@pytest.fixture(autouse=True)
def _machine_of_16_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SLURM_")]:
        monkeypatch.delenv(name)
    _bind(monkeypatch, 16)
    monkeypatch.setattr(os, "cpu_count", lambda: 16)
    monkeypatch.setattr(machine, "_machine_memory", lambda: 64 * GIB)


def _bind(monkeypatch: pytest.MonkeyPatch, cores: int) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(cores)), raising=False)


def _system(
    root: Path, group: str, limits: dict[str, str], lines: str = "12:memory:/elsewhere\n"
) -> Path:
    """Write the files of a system whose process is in ``group``."""
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/self/cgroup").write_text(f"{lines}0::{group}\n")
    for name, text in limits.items():
        path = root / "sys/fs/cgroup" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def test_nothing_limits_a_process_on_its_own_machine(tmp_path: Path) -> None:
    assert usable_cores(tmp_path) == 16
    assert usable_memory(tmp_path) == 64 * GIB


def test_a_process_bound_to_cores_has_those(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _bind(monkeypatch, 3)
    assert usable_cores(tmp_path) == 3
    monkeypatch.delattr(os, "sched_getaffinity")  # macOS
    assert usable_cores(tmp_path) == 16


@pytest.mark.parametrize(
    ("limits", "cores", "memory"),
    [
        ({"a/b/cpu.max": "400000 100000", "a/b/memory.max": str(GIB)}, 4, GIB),
        ({"a/cpu.max": "250000 100000", "a/memory.max": str(3 * GIB)}, 2, 3 * GIB),
        ({"cpu.max": "50000 100000", "memory.max": str(GIB)}, 1, GIB),
        ({"a/cpu.max": "200000 100000", "a/b/cpu.max": "800000 100000"}, 2, 64 * GIB),
        ({"a/cpu.max": "800000 100000", "a/b/cpu.max": "max 100000"}, 8, 64 * GIB),
        ({"a/b/memory.max": "max", "a/memory.max": str(999 * GIB)}, 16, 64 * GIB),
        ({"a/c/cpu.max": "100000 100000", "a/c/memory.max": str(GIB)}, 16, 64 * GIB),
        ({"a/b/cpu.max": "lots", "a/b/memory.max": ""}, 16, 64 * GIB),
    ],
)
def test_the_least_limit_up_the_tree_of_groups_counts(
    tmp_path: Path, limits: dict[str, str], cores: int, memory: int
) -> None:
    system = _system(tmp_path, "/a/b", limits)
    assert usable_cores(system) == cores
    assert usable_memory(system) == memory


@pytest.mark.parametrize("group", ["/", "/docker/12ab", "/../outside"])
def test_a_container_reads_the_limits_at_its_mount(tmp_path: Path, group: str) -> None:
    system = _system(tmp_path, group, {"cpu.max": "600000 100000", "memory.max": str(2 * GIB)})
    assert usable_cores(system) == 6
    assert usable_memory(system) == 2 * GIB


@pytest.mark.parametrize(
    ("variables", "cores", "memory"),
    [
        ({"SLURM_CPUS_PER_TASK": "4", "SLURM_CPUS_ON_NODE": "8"}, 4, 64 * GIB),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_NODE": "2048"}, 8, 2 * GIB),
        ({"SLURM_CPUS_ON_NODE": "8", "SLURM_MEM_PER_CPU": "512"}, 8, 4 * GIB),
        ({"SLURM_CPUS_PER_TASK": "2", "SLURM_MEM_PER_CPU": "512"}, 2, GIB),
        ({"SLURM_CPUS_PER_TASK": "32", "SLURM_MEM_PER_NODE": "0"}, 16, 64 * GIB),
        ({"SLURM_CPUS_PER_TASK": "many", "SLURM_MEM_PER_CPU": "512"}, 16, 64 * GIB),
    ],
)
def test_a_slurm_job_has_its_share_of_a_node(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    variables: dict[str, str],
    cores: int,
    memory: int,
) -> None:
    for name, text in variables.items():
        monkeypatch.setenv(name, text)
    assert usable_cores(tmp_path) == 16  # outside a job the variables say nothing
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    assert usable_cores(tmp_path) == cores
    assert usable_memory(tmp_path) == memory


def test_threads_are_counted_by_the_cores_of_the_job(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURM_CPUS_PER_TASK", "1")
    executor = make_executor("threads", None)
    assert isinstance(executor, Threads)
    assert executor.workers == 1
    executor.close()


def test_a_system_without_such_files_has_memory_without_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(os, "sysconf_names", {}, raising=False)
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    assert usable_memory(tmp_path) == sys.maxsize


@pytest.mark.parametrize(
    ("visible", "gpus"),
    [
        (None, ["0", "1", "2"]),
        ("2,0", ["2", "0"]),
        ("GPU-8f2e, MIG-71c4", ["GPU-8f2e", "MIG-71c4"]),
        ("1,-1,2", ["1"]),
        ("", []),
    ],
)
def test_gpus_are_those_of_the_driver_or_of_the_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, visible: str | None, gpus: list[str]
) -> None:
    for place in ("0000:01:00.0", "0000:02:00.0", "0000:41:00.0"):
        (tmp_path / "proc/driver/nvidia/gpus" / place).mkdir(parents=True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    if visible is not None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
    assert usable_gpus(tmp_path) == gpus


def test_a_machine_without_a_driver_has_no_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert usable_gpus(tmp_path) == []


def test_processes_are_spread_over_gpus() -> None:
    shares = GpuShares(["a", "b"])
    assert [shares.take() for _ in range(5)] == ["a", "b", "a", "b", "a"]
    shares.give_back("a")
    shares.give_back("a")
    assert [shares.take() for _ in range(2)] == ["a", "a"]
    assert shares.variables("b") == {"CUDA_VISIBLE_DEVICES": "b"}


def test_without_gpus_processes_see_what_their_parent_sees() -> None:
    shares = GpuShares([])
    gpu = shares.take()
    shares.give_back(gpu)
    assert (gpu, shares.variables(gpu)) == (None, {})
