"""Computing times of devices: samples x cost / speed, with jitter of epochs, and slow phases.

The random jitter of an epoch is a function of the device and the time at which the epoch begins, so
that it is equal under every strategy. The jitter of other work is a function of the device and its
task.

Devices may share hosts, whose workers take tasks in turn. Each of k computations on a host runs at
throughput(k) / k of the speed of a single computation (processor sharing), so a computation ends
when the host has served each computation a known amount.
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
from fedsim.clock.simulation import TICK_S, Simulation, on_grid, on_grid_after, tie_s
from fedsim.common.arrays import Floats
from fedsim.common.spec import OnlyWith, Spec
from fedsim.common.streams import Streams
from fedsim.common.units import Bytes, PositiveSeconds, Seconds
from fedsim.world.columns import alike, distinct, each
from fedsim.world.phases import Phases
from fedsim.world.steps import Pause, Queue, TaskStep
from fedsim.world.task import Task, in_line

_TICKS_PER_SECOND = 1 << 30
_PHASES_AHEAD = 4_000  # count of slow phases per look-ahead, which takes some 10 ms
# s; exceeds rounding errors. An epoch that begins by this tolerance is still cut off at the limit.
_TIE_S = 2 / _TICKS_PER_SECOND


class SlowPhases(Spec):
    """``population.slow_phases``: each device is slow from time to time, as a hot or busy phone is.

    Normal and slow phases follow in turn, each of a random exponential length.

    Attributes:
        factor: factor of the device's speed in slow phases, at most 1.
        mean_normal, mean_slow: mean length of normal phases, and of slow phases.
    """

    factor: float = Field(ge=1e-6, le=1.0)
    mean_normal: PositiveSeconds
    mean_slow: PositiveSeconds


class EpochTimes:
    """Model of how long epochs take on devices: random variation, and phases of slow devices.

    Args:
        streams: random streams.
        jitter: coefficient of variation of epochs' times (lognormal, mean 1): one value for all
            devices, or float64 [devices].
        slow: phases in which devices are slow; None if devices have no slow phases.
        devices: count of devices.

    Attributes:
        reach_s: longest time ahead for which ends of epochs can be computed (s).
    """

    def __init__(
        self, streams: Streams, jitter: float | Floats, slow: SlowPhases | None, devices: int
    ) -> None:
        self._streams = streams
        by_device = alike(jitter, devices) if np.ndim(jitter) == 0 else np.asarray(jitter)
        values, which = distinct(by_device)
        sigmas = np.array([math.sqrt(math.log1p(value**2)) for value in values.tolist()])
        self._sigma = each(lambda place: sigmas[place], which)
        self._factor = 1.0
        self._mean_rate = 1.0
        self._phases = None  # phases of devices, which are on while a device is not slow
        self.reach_s = math.inf
        if slow is not None:
            self._factor = slow.factor
            whole = slow.mean_normal + slow.mean_slow
            self.reach_s = _PHASES_AHEAD * whole / 2
            self._mean_rate = (slow.mean_normal + slow.factor * slow.mean_slow) / whole
            self._phases = Phases(streams, "world/slow", slow.mean_normal, slow.mean_slow, devices)

    def epoch_ends(
        self,
        device: int,
        start: float,
        epoch_s: float,
        epochs: int,
        limit: float,
        horizon: float = math.inf,
        task: int | None = None,
    ) -> list[float]:
        """Return the times (s) at which consecutive epochs of a device's training end.

        Args:
            device: index of the device.
            start: begin of the first epoch (s).
            epoch_s: time of an epoch at full speed (s).
            epochs: count of epochs.
            limit: simulated time (s) from which on no epoch begins.
            horizon: simulated time (s) up to which ends of epochs are needed.
            task: count of the device's earlier tasks, if one random factor (jitter) applies to all
                epochs of a task; None if each epoch has its own, drawn by its begin.

        Returns:
            End of each epoch (s, in whole ticks of the clock). An end beyond the limit or horizon
            is only a lower bound.

        Raises:
            SimulationError: the epochs contain too many slow phases.
        """
        horizon = min(limit, horizon)
        if self._sigma.item(device) == 0.0 and self._phases is None:
            fitting = epochs
            for last, beyond in ((limit, 0), (horizon, 1)):
                if last < math.inf and on_grid(epoch_s) > 0:
                    fitting = min(fitting, math.ceil((last - start) / epoch_s) + beyond)
            # Each sum is rounded once, so that n epochs end exactly at a deadline of n epochs.
            return [on_grid(start + epoch_s * (epoch + 1)) for epoch in range(max(fitting, 0))]
        ends: list[float] = []
        while len(ends) < epochs and start < limit and start <= horizon:
            start = self._finish(device, start, epoch_s * self.jitter(device, start, task), horizon)
            ends.append(start)
        return ends

    @staticmethod
    def adapt(start: float, ends: list[float], limit: float) -> list[float]:
        """Return the ends (s) of the epochs that a device carries out if it respects a time limit.

        The device begins the first epoch in any case. It begins another epoch only if an epoch of
        the mean length so far would end before the limit (CATA-Fed, Eq. 8).

        Args:
            start: begin of the first epoch (s).
            ends: ends of all epochs if the device did not adapt (simulated s).
            limit: the simulated time (s) of the limit.
        """
        begun = min(1, len(ends))
        while (
            begun < len(ends)
            and (ends[begun - 1] - start) * (begun + 1) / begun <= limit - start + _TIE_S
        ):
            begun += 1
        return ends[:begun]

    def jitter(self, device: int, start: float, task: int | None) -> float:
        """Return the random factor (jitter) by which an epoch takes longer or shorter.

        Args:
            device: index of the device.
            start: simulated time (s) at which the epoch begins. Each time has its own factor if
                ``task`` is None.
            task: count of the device's earlier tasks, if all epochs of a task have the same factor.
        """
        sigma = self._sigma.item(device)
        if sigma == 0.0:
            return 1.0
        if task is None:
            instant = int(start * _TICKS_PER_SECOND)
            normal = self._streams.normal("world/jitter", device, instant)
        else:
            normal = self._streams.normal("world/jitter/task", device, task)
        return math.exp(sigma * normal - sigma**2 / 2)

    def _finish(self, device: int, start: float, work_s: float, horizon: float) -> float:
        if self._phases is None:
            return start + on_grid(work_s)
        self._phases.check_walk(device, start, min(horizon, start + work_s / self._mean_rate))
        while True:
            span = self._phases.span(device, start)
            rate = 1.0 if span.on else self._factor
            if (span.end - start) * rate >= work_s:
                return start + on_grid(work_s / rate)
            if span.end > horizon:
                return span.end
            work_s -= (span.end - start) * rate
            start = span.end


CurvePoint = Annotated[
    list[Annotated[float, Field(gt=0.0, le=1e6)]], Field(min_length=2, max_length=2)
]


class HostSpec(Spec):
    """``population.host``: machines on which the devices run, several on each.

    Device i is on host i mod ``number``.

    Attributes:
        number: number of hosts, all alike.
        cores: number of computations that run at full speed at once; more share the cores evenly.
        throughput: instead of ``cores``, points [computations at once, total speed relative to
            one], linear from [1, 1], flat at the end.
        workers: number of tasks that run at once; others wait, first come, first served. None: all
            run.
        memory: memory of a host, which limits the tasks that run at once. None: all fit.
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
        busy = [1.0, *(count for count, _ in self.throughput or ())]
        if busy != sorted(set(busy)):
            raise ValueError(
                f"'throughput' has points at {busy[1:]} computations; allowed are ascending "
                "numbers above 1"
            )
        for count, work in self.throughput or ():
            if work > count:
                raise ValueError(
                    f"'throughput' is {work:g} at {count:g} computations; allowed is up to "
                    f"{count:g}"
                )
        if (self.memory is None) != (self.task_memory is None):
            raise ValueError("'memory' needs 'task_memory'")
        if self.slots < 1:
            raise ValueError(
                f"'memory' of {self.memory:g} B holds no task of {self.task_memory:g} B"
            )
        return self

    @property
    def slots(self) -> float:
        """Count of tasks that may run at once on a host; infinity without a limit."""
        slots = math.inf
        if self.memory is not None and self.task_memory:
            slots = self.memory // self.task_memory
        if self.workers is not None:
            slots = min(slots, self.workers)
        return slots

    def rate(self, busy: int) -> float:
        """Return the speed of each of ``busy`` computations on a host, relative to a single one.

        Returns:
            Factor, at most 1.
        """
        if self.throughput is None:
            return min(1.0, (self.cores or 1) / busy)
        counts, work = zip([1.0, 1.0], *self.throughput, strict=True)
        return float(np.interp(busy, counts, work)) / busy


@dataclass(slots=True)
class _HostComputation:
    """Running computation that shares the cores of a machine (host) with others.

    Attributes:
        task: task of the computation.
        begun, end: begin and end of the computation, in seconds that the host would have given to a
            computation at full speed (``_Cores.served``).
    """

    task: Task
    begun: float
    end: float


@dataclass(slots=True)
class _Cores:
    """Cores of a host, and the computations that share them.

    Attributes:
        at: simulated time for which ``served`` is known (s).
        served: time at full speed that the host has given to each running computation (s).
        jobs: task ID -> running computation of the task.
        alarm: alarm for the end of the next computation to end.
    """

    at: float = 0.0
    served: float = 0.0
    jobs: dict[int, _HostComputation] = field(default_factory=dict)
    alarm: Alarm | None = None


class HostsState(TypedDict):
    """State of ``Hosts`` in a checkpoint.

    Attributes:
        cores: host -> ``at`` and ``served`` of its cores (s).
        jobs: task ID -> begin and end of its running computation, as values of ``served`` (s).
        used: task ID -> core time of its ending step (core seconds).
        pools: host -> IDs of the tasks that hold a worker, then of tasks that wait.
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
        self._cores: dict[int, _Cores] = {}
        # task ID -> core seconds of the ended computations of the running step
        self._used: dict[int, float] = {}
        self._changed: dict[int, None] = {}
        self._pools: dict[int, simpy.Resource] = {}
        simulation.env.declare_alarm("host", self._set_alarm)

    def admit(self, task: Task) -> tuple[TaskStep, ...]:
        """Request a worker (a place to run) on its device's host for a task that begins.

        Args:
            task: the task.

        Returns:
            Steps to carry out before the task's own steps: ``Queue`` if all workers are busy, and a
            pause if workers take time to start.
        """
        steps: tuple[TaskStep, ...] = ()
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
        """Begin a computation of a task, which takes ``seconds`` (s) at full speed."""
        cores = self._update_cores(self._host(task), changes=True)
        cores.jobs[task.id] = _HostComputation(task, cores.served, cores.served + seconds)

    def is_due(self, task: Task) -> bool:
        """Return whether the running computation of a task is complete now, within rounding."""
        job = self._job(task)
        if job is None:
            return False
        cores = self._update_cores(self._host(task))
        rate = self._spec.rate(len(cores.jobs))
        return job.end - cores.served <= rate * tie_s(self._simulation.now)

    def stop(self, task: Task) -> bool:
        """End the running computation of a task, complete or not, and free its core.

        Args:
            task: the task.

        Returns:
            Whether the task had a running computation.
        """
        job = self._job(task)
        if job is not None:
            cores = self._update_cores(self._host(task), changes=True)
            del cores.jobs[task.id]
            self._used[task.id] = self._used.get(task.id, 0.0) + cores.served - job.begun
        return job is not None

    def stretch(self, task: Task, factor: float) -> None:
        """Multiply the remaining time of a task's running computation, as its device gets slower.

        Args:
            task: the task.
            factor: the factor; below 1 if the device gets faster.
        """
        job = self._job(task)
        if job is not None:
            served = self._update_cores(self._host(task), changes=True).served
            job.end = served + (job.end - served) * factor

    def used_s(self, task: Task) -> float:
        """Return the core time (s) of the step of a task that ends now, and forget it."""
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
            if not self._changed:
                self._simulation.unsettle(self._solve)
            self._changed[host] = None
        cores = self._cores.setdefault(host, _Cores(self._simulation.now))
        if cores.jobs:
            cores.served += (self._simulation.now - cores.at) * self._spec.rate(len(cores.jobs))
        cores.at = self._simulation.now
        return cores

    def _solve(self) -> None:
        changed = self._changed
        self._changed = {}
        for host in changed:
            cores = self._update_cores(host)
            if cores.alarm is not None:
                cores.alarm.cancel()
                cores.alarm = None
            if cores.jobs:
                next_end = min(job.end for job in cores.jobs.values())
                remaining_s = max(0.0, next_end - cores.served)
                rate = self._spec.rate(len(cores.jobs))
                self._set_alarm(host, on_grid_after(cores.at + remaining_s / rate))
            else:
                cores.served = 0.0

    def _ring(self, host: int) -> None:
        cores = self._update_cores(host, changes=True)
        cores.alarm = None
        limit = cores.served + self._spec.rate(len(cores.jobs)) * TICK_S / 2
        for _, job in sorted(cores.jobs.items()):
            if job.end <= limit:
                self.stop(job.task)
                self._on_end(job.task)

    def snapshot(self, running: Mapping[int, Task]) -> HostsState:
        pools = {host: in_line("worker", pool, running) for host, pool in self._pools.items()}
        cores = {host: (cores.at, cores.served) for host, cores in self._cores.items()}
        jobs = {
            task_id: (job.begun, job.end)
            for cores in self._cores.values()
            for task_id, job in cores.jobs.items()
        }
        return {"cores": cores, "jobs": jobs, "used": self._used, "pools": pools}

    def restore(self, state: HostsState, running: Mapping[int, Task]) -> None:
        """Restore the state; called after the tasks and before the alarms are restored."""
        self._used = state["used"]
        self._cores = {host: _Cores(at, served) for host, (at, served) in state["cores"].items()}
        for task_id, (begun, end) in state["jobs"].items():
            task = running[task_id]
            self._cores[self._host(task)].jobs[task_id] = _HostComputation(task, begun, end)
        for waiting in state["pools"].values():
            for task_id in waiting:
                self._take_worker(running[task_id])

    def _set_alarm(self, host: int, when: float) -> None:
        """Set the alarm at ``when`` (s), at which the next computation on a host ends."""
        self._cores[host].alarm = self._simulation.wake(
            ("host", host), when, partial(self._ring, host)
        )
