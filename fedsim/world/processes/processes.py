"""Manager of the processes of a run, which starts them and restores them from a snapshot."""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypedDict

import simpy

from fedsim.clock.environment import Alarm, ProcessGenerator
from fedsim.clock.processes import CheckedEvents
from fedsim.common.errors import (
    CheckpointError,
    FedsimError,
    ScenarioError,
    SimulationError,
    place_of,
    show_error,
)
from fedsim.common.streams import Streams
from fedsim.world.device_kinds import Capacity
from fedsim.world.processes.activity import (
    Call,
    ComputationState,
    ComputeActivity,
    Sending,
    TimeEvent,
)
from fedsim.world.processes.base import Process
from fedsim.world.processes.holds import Holds
from fedsim.world.processes.world import World
from fedsim.world.task_runner import TaskRunner


class ProcessesState(TypedDict):
    """State of ``Processes`` (a run's SimPy processes), which a checkpoint saves.

    Attributes:
        states: ``world.state`` of each process.
        sending: for each message of a process: index of the process, arguments of the call of
            ``World.send`` that began the message, and ID of the message.
        computing: for each running computation: index of the process, and the arguments of
            ``ComputeActivity`` from ``call`` to ``pace``.
        computed: count of the computations that processes have started.
        acts: kind of record -> count of the records that processes have caused.
    """

    states: list[dict[str, object]]
    sending: list[tuple[int, Call, int]]
    computing: list[tuple[int, ComputationState]]
    computed: int
    acts: dict[str, int]


class Processes:
    """Manager of the processes of a run, which starts them and restores them in a resumed run.

    A process is a SimPy process of the scenario's ``[world]``, such as an outage.

    Args:
        specs: the processes of the scenario.
        streams: random streams of the seed.
        capacity: sampled speeds, links and kinds of the devices.
        tasks: runner of the tasks on the devices.
        on_switched_on: function that is called with the index of a device that is switched on
            again.

    Attributes:
        world: API of the world for processes that are started from Python.

    Raises:
        ScenarioError: a process cannot run in this world.
    """

    def __init__(
        self,
        specs: Sequence[Process],
        streams: Streams,
        capacity: Capacity,
        tasks: TaskRunner,
        on_switched_on: Callable[[int], None],
    ) -> None:
        self._specs = specs
        self.streams = streams
        self.capacity = capacity
        self.tasks = tasks
        self._on_switched_on = on_switched_on
        self.messages = tasks.messages
        self.network = tasks.network
        self.simulation = tasks.messages.simulation
        self.sending: dict[Sending, int] = {}  # message -> ID of its process
        # ID of a computation -> computation and ID of its process
        self.computing: dict[int, tuple[ComputeActivity, int]] = {}
        self.computed = 0  # count of computations so far; the ID of the next one
        # device -> event that fires when the device is switched on again
        self.switched_on: dict[int, simpy.Event] = {}
        # During a restore, processes begin again, and repeat their calls: process ID and call ->
        # saved messages and computations that these calls return. None at other times.
        self._saved: dict[tuple[int, Call], list[Any]] | None = None
        # process ID and time (s) -> events of a restore whose alarms are not set again yet
        self._waits: dict[tuple[int, float], list[TimeEvent]] = {}
        self.silent = False  # whether records are suppressed, during a restore and after the run
        self.acts: Counter[str] = Counter()  # record kind -> count of records by processes
        self.holds = Holds(self)
        # each process has its own API, which knows the ID of the process: its index
        self._worlds = [World(self, number) for number in range(len(specs))]
        self.world = World(self, len(specs))
        for number, (spec, world) in enumerate(zip(specs, self._worlds, strict=True)):
            try:
                spec.check(world)
            except SimulationError as error:
                raise ScenarioError(f"world.processes.{number} ({spec.kind!r}): {error}") from None
        if specs:
            self.simulation.idle = self._is_idle
        env = self.simulation.env
        env.declare_alarm("process", self._rearm_wait, in_background=True)
        env.declare_alarm("compute", self._rearm_computation, in_background=True)
        self.simulation.at_end(partial(setattr, self, "silent", True))
        self._start()

    def _start(self) -> None:
        for spec, world in zip(self._specs, self._worlds, strict=True):
            self.simulation.process(self._run_process(spec, world))

    def _run_process(self, spec: Process, world: World) -> ProcessGenerator:
        """Run a process; an error in it is raised with the kind of the process and the time."""
        try:
            yield from CheckedEvents(spec.run(world), self.simulation.env)
        except CheckpointError as error:
            raise CheckpointError(f"the process {spec.kind!r} {error}") from None
        except Exception as error:
            reason = str(error) if isinstance(error, FedsimError) else show_error(error)
            raise SimulationError(
                f"the process {spec.kind!r} failed at {world.now!r} s{place_of(error)}: {reason}"
            ) from error

    def _is_idle(self) -> bool:
        """Return whether the run is over, because only activities and alarms of processes remain.

        No task runs then, and no message of the strategy is under way. No device is switched off and
        no edge server is lost by a process, as its return could start new tasks.
        """
        if (
            self.tasks.running
            # messages that no process has sent are under way
            or len(self.messages.under_way) > len(self.sending)
            or self.tasks.switched_off
            or self.messages.lost
        ):
            return False
        env = self.simulation.env
        return all(env.is_background(event) for event in env.alarms() if isinstance(event, Alarm))

    def emit(self, kind: str, **fields: object) -> None:
        if not self.silent:
            self.acts[kind] += 1
            self.simulation.record(kind, fields)

    def take_saved(self, number: int, call: Call) -> Any:
        """Return the saved message or computation that a process of a resumed run begins again.

        A process that is being restored repeats the calls with which it began the messages and
        computations that have not ended.

        Args:
            number: index of the process.
            call: name and arguments of the ``World`` method that the process calls.

        Returns:
            The activity as saved; None if no restore is going on, so that the caller must begin a
            new one.

        Raises:
            CheckpointError: the process has no saved activity with this call.
        """
        if self._saved is None:
            return None
        activities = self._saved.get((number, call))
        if activities:
            return activities.pop(0)
        raise CheckpointError(
            f"does not come to where it was: it had not begun {call[0]}{call[1:]}"
        )

    def add_computation(self, process: int, *state: *ComputationState) -> ComputeActivity:
        """Register a computation that a process starts on a device.

        The caller then schedules its end.

        Args:
            process: index of the process.
            state: arguments of ``ComputeActivity`` from ``call`` to ``pace``.

        Returns:
            The computation, which is an event that fires at its end.
        """
        computation = ComputeActivity(self.simulation.env, self._end_computation, *state)
        self.computing[computation.number] = computation, process
        return computation

    def _end_computation(self, computation: ComputeActivity) -> None:
        del self.computing[computation.number]
        self.emit(
            "process:compute",
            device=computation.device,
            start=computation.began,
            how=computation.outcome,
        )

    def computations_on(self, device: int) -> list[ComputeActivity]:
        """Return the running computations that processes have started on a device."""
        computations = [computation for computation, _ in self.computing.values()]
        return [computation for computation in computations if computation.device == device]

    def switch_on(self, device: int) -> None:
        """Report that a device is switched on, to the server and to processes that wait for it.

        Args:
            device: index of the device.
        """
        self._on_switched_on(device)
        if device in self.switched_on:
            self.switched_on.pop(device).succeed()

    # state for checkpoints, and alarms that a resumed run sets again

    def snapshot(self) -> ProcessesState:
        return {
            "states": [world.state for world in self._worlds],
            "sending": [
                (number, sending.call, sending.message.id)
                for sending, number in self.sending.items()
            ],
            "computing": [
                (number, computing.saved()) for computing, number in self.computing.values()
            ],
            "computed": self.computed,
            "acts": dict(self.acts),
        }

    def restore(self, state: ProcessesState) -> None:
        """Restore the processes of a resumed run, which then begin at the present time.

        The method must be called after all other parts are restored. Until ``check_restored``,
        records of processes are suppressed, and a message or computation that a process begins is
        a saved one.

        Args:
            state: the snapshot.
        """
        for world, saved in zip(self._worlds, state["states"], strict=True):
            world.state = dict(saved)
        self.computed = state["computed"]
        self.acts = Counter(state["acts"])
        activities: defaultdict[tuple[int, Call], list[Any]] = defaultdict(list)
        for number, call, message in state["sending"]:
            activities[number, call].append(self.messages.under_way[message])
        for number, computation in state["computing"]:
            call = computation[0]  # the saved arguments of ``ComputeActivity`` begin with the call
            activities[number, call].append(self.add_computation(number, *computation))
        # processes now begin again; their calls return these messages and computations
        self._saved = activities
        self.silent = True
        self._start()

    def check_restored(self, alarms: Sequence[tuple[str, int, float]]) -> None:
        """Check that processes have begun the saved effects and waits again, and end the restoring.

        The method must be called after ``Simulation.begin_restored``, and before the alarms are set
        again.

        Args:
            alarms: kind, number and time (s) of each alarm that is set again later.

        Raises:
            CheckpointError: the effects (``Hold``) of a process, or the times for which it waits,
                differ from the snapshot.
        """
        self.silent = False
        self._saved = None
        # each wait that a process has begun again needs an alarm of the snapshot at the same time
        alarm_counts = Counter((number, when) for kind, number, when in alarms if kind == "process")
        for (number, when), events in self._waits.items():
            if len(events) > alarm_counts[number, when]:
                kind = self._specs[number].kind
                raise CheckpointError(
                    f"the process {kind!r} does not come to where it was: it had not waited "
                    f"until {when!r} s"
                )
        self.holds.check_restored()

    def _rearm_computation(self, number: int, when: float) -> None:
        computation, _ = self.computing[number]
        computation.set_end_alarm()

    def _rearm_wait(self, number: int, when: float) -> None:
        """Set again the alarm that ends the waiting of a restored process.

        Args:
            number: index of the process.
            when: time until which the process waits (s).
        """
        events = self._waits.get((number, when))
        event = events.pop(0) if events else TimeEvent(self.simulation.env)
        self.wait(number, when, event)

    def wait(self, number: int, when: float, event: TimeEvent) -> None:
        """Set an alarm that fires an event for which a process waits.

        While a run is restored, the alarm is only noted and set later. After the run it is not set.

        Args:
            number: index of the process.
            when: time at which the event fires (s).
            event: the event.
        """
        if self._saved is not None:
            self._waits.setdefault((number, when), []).append(event)
        elif not self.silent:
            self.simulation.wake(("process", number), when, event.happen)
