"""Cores, memory and GPUs that this process may use, by the limits of container and batch job.

Limits of control groups are read in version 2 of their interface (Linux,
``Documentation/admin-guide/cgroup-v2.rst``), limits of a job from the variables that Slurm sets
(``man sbatch``, "OUTPUT ENVIRONMENT VARIABLES").
"""

import ctypes
import os
import resource
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from threading import Lock

from fedsim.common.files import read_text

_SYSTEM = Path("/")
_STATM = Path("/proc/self/statm")
_MEBIBYTE = 1 << 20  # unit of Slurm's variables


def usable_cores(system: Path = _SYSTEM) -> int:
    """Return the count of cores that this process may use, at least 1.

    The count is the smallest of: the cores of the machine; the cores to which the process is bound
    (the kernel leaves out the cores that a cpuset forbids); the processor time that its control
    groups grant, rounded down to whole cores; the cores of its Slurm job.

    Args:
        system: folder that has ``proc/self/cgroup`` and ``sys/fs/cgroup``.
    """
    counts = [os.cpu_count() or 1]
    if hasattr(os, "sched_getaffinity"):
        counts.append(len(os.sched_getaffinity(0)))
    for quota in _limits(system, "cpu.max"):
        counts.append(_cores_of_quota(quota))
    job_cores = _slurm_cores()
    if job_cores is not None:
        counts.append(job_cores)
    return max(1, min(counts))


def usable_memory(system: Path = _SYSTEM) -> int:
    """Return the memory (bytes) that this process may use; ``sys.maxsize`` if nothing limits it.

    The amount is the smallest of: the memory of the machine, the limits of the control groups of
    the process, and the memory of its Slurm job on this node.

    Args:
        system: folder that has ``proc/self/cgroup`` and ``sys/fs/cgroup``.
    """
    amounts = [_machine_memory()]
    for limit in _limits(system, "memory.max"):
        if limit.isdecimal():
            amounts.append(int(limit))
    job_memory = _slurm_memory()
    if job_memory is not None:
        amounts.append(job_memory)
    return min(amounts)


def usable_gpus(system: Path = _SYSTEM) -> list[str]:
    """Return the names of the NVIDIA GPUs that this process may use, in CUDA's notation.

    The names are the entries of ``CUDA_VISIBLE_DEVICES``, or the numbers of the GPUs of which the
    driver knows. A process with one name as ``CUDA_VISIBLE_DEVICES`` sees only this GPU.

    Args:
        system: folder that has ``proc/driver/nvidia/gpus``.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        folders = list((system / "proc/driver/nvidia/gpus").glob("*"))
        return [str(number) for number in range(len(folders))]
    names = []
    for name in visible.split(","):
        if name.strip() in ("", "-1"):  # CUDA ignores this entry and all later entries
            break
        names.append(name.strip())
    return names


class GpuShares:
    """Distribution of processes over GPUs, so that all GPUs have about equally many processes.

    Several threads may use an object at the same time.

    Args:
        gpus: names of the GPUs, as CUDA takes them; empty if processes see all GPUs.
    """

    def __init__(self, gpus: Sequence[str]) -> None:
        self._counts = dict.fromkeys(gpus, 0)
        self._lock = Lock()

    def take(self) -> str | None:
        """Assign a GPU to a new process: the GPU with the fewest processes.

        Returns:
            The GPU; None if the object was made without GPUs.
        """
        with self._lock:
            if not self._counts:
                return None
            gpu = min(self._counts, key=self._counts.__getitem__)
            self._counts[gpu] += 1  # count of processes that use the GPU
            return gpu

    def give_back(self, gpu: str | None) -> None:
        """Note that a process to which a GPU was assigned has ended.

        Args:
            gpu: the GPU; None if ``take`` returned None for the process.
        """
        with self._lock:
            if gpu is not None:
                self._counts[gpu] -= 1

    @staticmethod
    def variables(gpu: str | None) -> dict[str, str]:
        """Return environment variables with which a new process sees only one GPU.

        The variables must be set when the process starts, as torch reads them when it is loaded.

        Args:
            gpu: the GPU, a result of ``take``; None for no variables, so that the process sees all
                GPUs that this process sees.
        """
        return {} if gpu is None else {"CUDA_VISIBLE_DEVICES": gpu}


def peak_memory() -> int:
    """Return the peak memory (bytes) of this process."""
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak  # Linux counts kibibytes


def resident_memory() -> int:
    """Return the memory (bytes) that this process uses, or its peak if only that can be read.

    Memory that the process has freed is first given back to the system, if the system allows it.
    """
    return_memory()
    try:
        fields = read_text(_STATM, "ascii").split()
    except OSError:
        return peak_memory()
    return int(fields[1]) * resource.getpagesize()


def return_memory() -> None:
    """Give memory that the process has freed back to the system, if the system allows it.

    Without this call, glibc keeps freed memory that lies between blocks in use. If a small array
    stays after each of many large ones, the large ones cost memory even after they are freed.
    """
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # a function that only glibc has
        if trim is not None:
            trim(0)


def _machine_memory() -> int:
    names = getattr(os, "sysconf_names", {})
    if "SC_PHYS_PAGES" not in names:
        return sys.maxsize
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")


def _limits(system: Path, name: str) -> Iterator[str]:
    """Yield the text of a limit in the control group of this process and in each group above.

    Args:
        system: folder that has ``proc/self/cgroup`` and ``sys/fs/cgroup``.
        name: file name of the limit, such as ``cpu.max``.
    """
    mount = system / "sys/fs/cgroup"
    group = mount / _group_path(system)
    # In a container without its own cgroup namespace, the path is the host's, and the container may
    # not have all of its folders. The missing folders are skipped, up to the root of the mount.
    for folder in (group, *group.parents):
        text = _text(folder / name)
        if text is not None:
            yield text
        if folder == mount:
            return


def _group_path(system: Path) -> str:
    """Return this process's control group as a path in ``/sys/fs/cgroup``; empty without one."""
    for line in (_text(system / "proc/self/cgroup") or "").splitlines():
        hierarchy, _, path = line.partition("::")
        # hierarchy 0 is version 2; a path with ``..`` is outside of this process's namespace
        if hierarchy == "0" and ".." not in path.split("/"):
            return path.strip("/")
    return ""


def _text(path: Path) -> str | None:
    try:
        return read_text(path).strip()
    except (OSError, UnicodeDecodeError):
        return None


def _cores_of_quota(text: str) -> int:
    """Return how many whole cores a control group's quota of processor time grants.

    Args:
        text: content of ``cpu.max``: quota and period (microseconds), or ``max`` and the period if
            there is no quota. The function then returns ``sys.maxsize``.
    """
    fields = text.split()
    if len(fields) != 2 or not all(field.isdecimal() for field in fields) or int(fields[1]) == 0:
        return sys.maxsize  # "max PERIOD": no limit
    return max(1, int(fields[0]) // int(fields[1]))


def _slurm_cores() -> int | None:
    """Return the count of cores that Slurm gives to each task of its job.

    If the user has set no count per task, return the count of the job's cores on this node. None
    outside of a Slurm job.
    """
    per_task = _slurm_number("SLURM_CPUS_PER_TASK")
    if per_task is not None:
        return per_task
    return _slurm_number("SLURM_CPUS_ON_NODE")


def _slurm_memory() -> int | None:
    """Return the memory (bytes) of this process's Slurm job on this node; None if it is unknown.

    Slurm states the memory per node or per core (MiB), depending on the user's request.
    """
    per_node = _slurm_number("SLURM_MEM_PER_NODE")
    if per_node is not None:
        return per_node * _MEBIBYTE
    per_core = _slurm_number("SLURM_MEM_PER_CPU")
    if per_core is None:
        return None
    cores = _slurm_number("SLURM_CPUS_ON_NODE")
    if cores is None:
        cores = _slurm_cores()
    if cores is None:
        return None
    return per_core * cores * _MEBIBYTE


def _slurm_number(name: str) -> int | None:
    """Return a number from an environment variable that Slurm sets for a job's process.

    Args:
        name: name of the variable.

    Returns:
        The number; None outside of a job, or if the variable sets no limit.
    """
    text = os.environ.get(name, "")
    if "SLURM_JOB_ID" not in os.environ or not text.isdecimal():
        return None
    number = int(text)
    return None if number == 0 else number  # 0 MB means all memory of the node
