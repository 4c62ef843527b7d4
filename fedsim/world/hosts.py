"""Hosts: machines on which several devices run, with cores and workers that the devices share.

A task runs on one of its host's workers; other tasks wait for a free worker. If k computations run
on a host, each has throughput(k) / k of the speed of a single one (processor sharing). All
computations on a host advance equally, so one counter per host (``_Cores.progress_s``) gives the end
of each.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, TypedDict

import numpy as np
import simpy
from pydantic import Field, model_validator

from fedsim.clock.environment import Alarm
from fedsim.clock.simulation import TICK_S, Simulation, on_grid_after, tie_s
from fedsim.common.spec import OnlyWith, Spec
from fedsim.common.units import Bytes, Seconds
from fedsim.world.steps import Pause, Queue, Task, TaskStep, in_line

CurvePoint = Annotated[
    list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=2, max_length=2)
]


class HostSpec(Spec):
    """``population.host``: machines on which the devices run, several on each.

    Device i is on host i mod ``number``.

    Attributes:
        number: number of hosts, all alike.
        cores: number of computations that run at full speed at a time; more computations share the
            cores evenly.
        throughput: instead of ``cores``, total speed of k computations at a time relative to a single
            one, as points [k, speed]: interpolated linearly from [1, 1] on, constant after the last.
        workers: number of tasks that run at a time; others wait, first come, first served. None: all
            run.
        memory: memory of a host, which limits the tasks that run at a time. None: all fit.
        task_memory: memory that a task takes from its begin to its end.
        start_up: fixed time before a task's first step, which takes a worker and no core.
    """

    number: int = Field(default=1, ge=1)
    cores: int | None = Field(default=None, ge=1)
    throughput: list[CurvePoint] | None = Field(default=None, min_length=1)
    workers: int | None = Field(default=None, ge=1)
    memory: Bytes | None = None
    task_memory: Annotated[Bytes | None, OnlyWith("memory")] = None
    start_up: Seconds = 0.0

    @model_validator(mode="after")
    def _check_host(self) -> "HostSpec":
        if (self.cores is None) == (self.throughput is None):
            raise ValueError("a host has either 'cores' or 'throughput'; give one of them")
        self._check_throughput()
        if (self.memory is None) != (self.task_memory is None):
            raise ValueError("'memory' needs 'task_memory'")
        if self.slots < 1:
            raise ValueError(
                f"'memory' of {self.memory:g} B holds no task of {self.task_memory:g} B"
            )
        return self

    def _check_throughput(self) -> None:
        # points (count of computations at a time, speed of all of them together)
        points = self.throughput or ()
        counts = [count for count, _ in points]
        counts_from_one = [1.0, *counts]  # a single computation has speed 1
        if counts_from_one != sorted(set(counts_from_one)):
            raise ValueError(
                f"'throughput' has points at {counts} computations; allowed are ascending "
                "numbers above 1"
            )
        for count, speed in points:
            if speed > count:
                raise ValueError(
                    f"'throughput' is {speed:g} at {count:g} computations; allowed is up to "
                    f"{count:g}"
                )

    @property
    def slots(self) -> float:
        """Count of tasks that may run on a host at a time; infinity without a limit."""
        slots = math.inf
        if self.memory is not None and self.task_memory:
            slots = self.memory // self.task_memory
        if self.workers is not None:
            slots = min(slots, self.workers)
        return slots

    def rate(self, busy: int) -> float:
        """Return the speed of each computation on a host, as a share of the speed without others.

        Args:
            busy: count of the computations that run on the host at a time.

        Returns:
            The share, at most 1.
        """
        if self.throughput is None:
            return min(1.0, (self.cores or 1) / busy)
        # points (count of computations, speed of all of them together), from [1, 1] on
        counts, speeds = zip([1.0, 1.0], *self.throughput, strict=True)
        total_speed = float(np.interp(busy, counts, speeds))
        return total_speed / busy


@dataclass(slots=True)
class _HostComputation:
    """Running computation that shares the cores of a machine (host) with others.

    Attributes:
        task: task of the computation.
        begin_progress_s, end_progress_s: values of the host's counter ``_Cores.progress_s`` at
            which the computation begins and ends (s); they are no simulated times.
    """

    task: Task
    begin_progress_s: float
    end_progress_s: float


@dataclass(slots=True)
class _Cores:
    """Cores of a host, and the computations that share them.

    Attributes:
        updated_at: simulated time of the last update of ``progress_s`` (s).
        progress_s: counter that grows by the time (s) that each running computation has advanced, in
            seconds at full speed. It is 0 again when no computation runs.
        jobs: task ID -> running computation of the task.
        alarm: alarm for the end of the computation that ends next; None if none runs.
    """

    updated_at: float = 0.0
    progress_s: float = 0.0
    jobs: dict[int, _HostComputation] = field(default_factory=dict)
    alarm: Alarm | None = None


class HostsState(TypedDict):
    """State of ``Hosts`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        cores: index of a host -> (simulated time of its last update (s), the host's counter at this
            time). The counter is a virtual time (s), which advances as each running computation on
            the host does: by 1 s per second at full speed, by less if computations share cores.
        jobs: task ID -> begin and end of its running computation, as values of this counter (s).
        used: task ID -> core time of the ended computations of its running step (core seconds).
        pools: index of a host -> IDs of the tasks that have a worker, then of the tasks that wait
            for one.
    """

    cores: dict[int, tuple[float, float]]
    jobs: dict[int, tuple[float, float]]
    used: dict[int, float]
    pools: dict[int, list[int]]


class Hosts:
    """Machines on which several devices run, each with cores and workers that its devices share.

    Args:
        simulation: the clock.
        spec: ``population.host`` of the scenario.
        on_end: function that is called with a task when its computation is complete.
    """

    def __init__(
        self, simulation: Simulation, spec: HostSpec, on_end: Callable[[Task], None]
    ) -> None:
        self._simulation = simulation
        self._spec = spec
        self._on_end = on_end
        self._cores: dict[int, _Cores] = {}  # index of a host -> its cores
        # task ID -> core seconds of the ended computations of the running step
        self._used: dict[int, float] = {}
        self._changed: dict[int, None] = {}  # hosts whose next end may have changed
        self._pools: dict[int, simpy.Resource] = {}  # index of a host -> its workers
        simulation.env.declare_alarm("host", self._set_alarm)

    def steps_until_admitted(self, task: Task) -> tuple[TaskStep, ...]:
        """Request a worker (a place to run) on its device's host for a task that begins.

        Args:
            task: the task.

        Returns:
            Steps to carry out before the task's own steps: ``Queue`` if all workers are busy, and a
            pause if workers take time to start.
        """
        steps: tuple[TaskStep, ...] = ()
        # ``slots``: count of workers; if all are busy, the task is in line for one from now on
        if self._spec.slots < math.inf and not self._take_worker(task):
            steps = (Queue(),)
        if self._spec.start_up:
            steps = (*steps, Pause("start-up", self._spec.start_up))
        return steps

    def _take_worker(self, task: Task) -> bool:
        host = self._host(task)
        if host not in self._pools:
            self._pools[host] = simpy.Resource(self._simulation.env, int(self._spec.slots))
        return task.request("worker", self._pools[host])

    def compute(self, task: Task, seconds: float) -> None:
        """Begin a computation of a task on its device's host.

        Args:
            task: the task.
            seconds: time of the computation at full speed, as the only one on the host (s).
        """
        cores = self._update_cores(self._host(task), changes=True)
        cores.jobs[task.id] = _HostComputation(task, cores.progress_s, cores.progress_s + seconds)

    def is_due(self, task: Task) -> bool:
        """Return whether the running computation of a task is complete now, within rounding."""
        job = self._job(task)
        if job is None:
            return False
        cores = self._update_cores(self._host(task))
        rate = self._spec.rate(len(cores.jobs))
        return job.end_progress_s - cores.progress_s <= rate * tie_s(self._simulation.now)

    def stop(self, task: Task) -> bool:
        """End the running computation of a task, complete or not, and free its core.

        Args:
            task: the task.

        Returns:
            Whether the task had a running computation.
        """
        job = self._job(task)  # the running computation
        if job is None:
            return False
        cores = self._update_cores(self._host(task), changes=True)
        del cores.jobs[task.id]
        # core seconds of the step: those of earlier computations, and those of this computation
        used_s = self._used.get(task.id, 0.0)
        self._used[task.id] = used_s + cores.progress_s - job.begin_progress_s
        return True

    def stretch(self, task: Task, factor: float) -> None:
        """Multiply the remaining time of a task's running computation when its device gets slower.

        Args:
            task: the task.
            factor: the factor; below 1 if the device gets faster.
        """
        job = self._job(task)
        if job is not None:
            progress_s = self._update_cores(self._host(task), changes=True).progress_s
            job.end_progress_s = progress_s + (job.end_progress_s - progress_s) * factor

    def used_s(self, task: Task) -> float:
        """Return the core time (s) that the ending step of a task has used, and forget this time.

        A computation at half speed uses half a second of core time in a second.
        """
        return self._used.pop(task.id, 0.0)

    def _host(self, task: Task) -> int:
        return task.device % self._spec.number

    def _job(self, task: Task) -> _HostComputation | None:
        cores = self._cores.get(self._host(task))
        return None if cores is None else cores.jobs.get(task.id)

    def _update_cores(self, host: int, *, changes: bool = False) -> _Cores:
        """Return the cores of a host, with its computations advanced to the present time.

        Args:
            host: index of the host.
            changes: whether the caller adds, ends or changes a computation; the alarm for the next end
                is then set anew after the other events of this time.
        """
        if changes:
            if not self._changed:  # one call at the end of the instant serves all hosts
                self._simulation.call_after_changes(self._set_next_ends)
            self._changed[host] = None
        cores = self._cores.setdefault(host, _Cores(self._simulation.now))
        if cores.jobs:  # ``progress_s`` counts how far each of these computations has come
            elapsed_s = self._simulation.now - cores.updated_at
            cores.progress_s += elapsed_s * self._spec.rate(len(cores.jobs))
        cores.updated_at = self._simulation.now
        return cores

    def _set_next_ends(self) -> None:
        """Set the alarm for the next end of a computation on each host that has changed.

        Ends are values of the host's counter of progress (s at full speed), which advances by
        ``rate`` in a second of simulated time.
        """
        changed = self._changed
        self._changed = {}
        for host in changed:
            cores = self._update_cores(host)
            if cores.alarm is not None:
                cores.alarm.cancel()
                cores.alarm = None
            if cores.jobs:
                next_end_s = min(job.end_progress_s for job in cores.jobs.values())
                remaining_s = max(0.0, next_end_s - cores.progress_s)
                rate = self._spec.rate(len(cores.jobs))
                self._set_alarm(host, on_grid_after(cores.updated_at + remaining_s / rate))
            else:  # no computation refers to the counter, which stays precise by starting anew
                cores.progress_s = 0.0

    def _end_due(self, host: int) -> None:
        """End the computations on a host that are complete now; the alarm of the host calls it."""
        cores = self._update_cores(host, changes=True)
        cores.alarm = None
        due_until = cores.progress_s + self._spec.rate(len(cores.jobs)) * TICK_S / 2
        for _, job in sorted(cores.jobs.items()):
            if job.end_progress_s <= due_until:
                self.stop(job.task)
                self._on_end(job.task)

    def snapshot(self, running: Mapping[int, Task]) -> HostsState:
        pools = {host: in_line("worker", pool, running) for host, pool in self._pools.items()}
        cores = {host: (cores.updated_at, cores.progress_s) for host, cores in self._cores.items()}
        jobs: dict[int, tuple[float, float]] = {}
        for host_cores in self._cores.values():
            for task_id, job in host_cores.jobs.items():
                jobs[task_id] = (job.begin_progress_s, job.end_progress_s)
        return {"cores": cores, "jobs": jobs, "used": self._used, "pools": pools}

    def restore(self, state: HostsState, running: Mapping[int, Task]) -> None:
        """Restore the state; call this after the tasks and before the alarms are restored."""
        self._used = state["used"]
        self._cores = {}
        for host, (updated_at, progress_s) in state["cores"].items():
            self._cores[host] = _Cores(updated_at, progress_s)
        for task_id, (begin, end) in state["jobs"].items():
            task = running[task_id]
            self._cores[self._host(task)].jobs[task_id] = _HostComputation(task, begin, end)
        # a pool lists the tasks with a worker first, so that they get it again
        for task_ids in state["pools"].values():
            for task_id in task_ids:
                self._take_worker(running[task_id])

    def _set_alarm(self, host: int, when: float) -> None:
        """Set the alarm at ``when`` (s), at which the next computation on a host ends."""
        self._cores[host].alarm = self._simulation.wake(
            ("host", host), when, partial(self._end_due, host)
        )
