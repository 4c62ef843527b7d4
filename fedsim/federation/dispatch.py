"""Requests of a strategy's server code to devices, as tasks in the simulated world.

A request starts a task. ``client_side`` calls the strategy's code on the device while the task
runs. When the task has ended, the strategy's code on the server is notified.
"""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypedDict

from fedsim.clock.simulation import Simulation
from fedsim.common.streams import Streams
from fedsim.federation.client_halves import ClientHalves
from fedsim.federation.client_side import ClientSide
from fedsim.federation.compute_queue import ComputeQueue
from fedsim.federation.contents import Contents
from fedsim.federation.costs import ServerSpec
from fedsim.federation.devices import DevicesState
from fedsim.federation.edge_channel import EdgeChannel, EdgeChannelState
from fedsim.federation.envelopes import Envelopes
from fedsim.federation.events import VISIBLE, Handlers, TaskEnd
from fedsim.federation.lost_tasks import LostTasks
from fedsim.federation.notices import Notices
from fedsim.federation.peer_channel import PeerChannel
from fedsim.federation.task_context import TaskContext
from fedsim.federation.timers import Timers, TimersState
from fedsim.federation.unrecorded_updates import UnrecordedUpdates, UnrecordedUpdatesState
from fedsim.world.network.endpoints import Direction
from fedsim.world.steps import Cause, Task

if TYPE_CHECKING:
    from fedsim.learning import Learner
    from fedsim.world.messages import Messages
    from fedsim.world.population import Population
    from fedsim.world.task_runner import TaskRunner


class DispatchState(TypedDict):
    """State of ``Dispatch`` that a checkpoint saves, and that a resumed run restores.

    Attributes:
        busy_until: time at which the server's computations so far end (s).
        timers: state of the strategy's timers.
        updates: state of the received updates whose aggregation is not recorded.
        unnoticed: task -> its end, for each lost task that the server has not noticed yet.
        postponed: kind and device of each notice that waits until the device is switched on.
        edge_channel: state of the messages to and from edge servers.
        peer_messages: ID -> contents of each message from device to device that has not ended.
        devices: state of the devices.
    """

    busy_until: float
    timers: TimersState
    updates: UnrecordedUpdatesState
    unnoticed: dict[int, TaskEnd]
    postponed: list[tuple[str, int]]
    edge_channel: EdgeChannelState
    peer_messages: dict[int, Contents]
    devices: DevicesState


class Dispatch:
    """Begins and ends tasks for a strategy's server code, and notifies the code when tasks end.

    It also has the objects by which the server code sets timers, receives notices about devices,
    and sends messages to edge servers and from device to device.

    Args:
        simulation: the clock.
        population: the devices.
        learner: creates references to models (``Ref``), and computes models.
        streams: random streams of the run's seed.
        server: ``[server]`` of the scenario.
        envelopes: builds the messages of tasks.
        client_side: calls the strategy's code on devices.

    Attributes:
        computations: the server's computations.
        timers: the strategy's timers.
        updates: the received updates whose aggregation is not recorded.
        lost_tasks: the lost tasks that the server has not noticed yet.
        notices: notices about single devices.
        edge_channel: messages to and from edge servers.
        peer_channel: messages from device to device.
        devices: the devices as their own code sees them.
        tasks: the tasks on the devices.
        messages: the messages outside of tasks.
        strategy: the strategy's code on the server.
        begin_round: function that is called with the index of each round, to change the data of
            devices; None if data do not change by round. Set by ``Run``.
    """

    # these attributes exist after ``connect``, which ``Run`` calls when the strategy is built
    tasks: "TaskRunner"
    messages: "Messages"
    strategy: Handlers
    lost_tasks: LostTasks
    notices: Notices
    edge_channel: EdgeChannel
    peer_channel: PeerChannel

    def __init__(
        self,
        simulation: Simulation,
        population: "Population",
        learner: "Learner",
        streams: Streams,
        server: ServerSpec,
        envelopes: Envelopes,
        client_side: ClientSide,
    ) -> None:
        self.simulation = simulation
        self.population = population
        self.learner = learner
        self.streams = streams
        self.envelopes = envelopes
        self.client_side = client_side
        self.devices = client_side.devices
        self.computations = ComputeQueue(simulation, server.speed)
        # ``strategy`` exists only after ``connect``, so it is looked up at each call
        self.timers = Timers(
            simulation, self.computations, lambda name: self.strategy.on_timer(name)
        )
        self.updates = UnrecordedUpdates()  # received updates whose aggregation is not recorded
        # function that is called with the index of each round; None if no data change by round
        self.begin_round: Callable[[int], None] | None = None
        self._patience = server.patience  # time until the server notices a lost task (s)

    def connect(
        self,
        tasks: "TaskRunner",
        messages: "Messages",
        strategy: Handlers,
        halves: ClientHalves,
    ) -> None:
        """Store objects that could only be built after this one, and build the parts that use them.

        Args:
            tasks: the tasks on the devices.
            messages: the messages outside of tasks.
            strategy: the strategy's code on the server.
            halves: the strategy's code on each device.
        """
        simulation = self.simulation
        self.tasks = tasks
        self.messages = messages
        self.strategy = strategy
        self.client_side.halves = halves
        self.lost_tasks = LostTasks(simulation, self._patience, tasks, strategy)
        self.notices = Notices(simulation, self.devices, tasks, strategy, halves)
        self.edge_channel = EdgeChannel(simulation, self.envelopes, messages, strategy)
        self.peer_channel = PeerChannel(simulation, self.envelopes.up, messages, strategy)
        self.devices.model_s = self._model_s

    def _model_s(self, device: int, direction: Direction) -> float:
        """Return the time (s) to transfer and to encode or decode a model, on a device's idle link."""
        codec = self.envelopes.codec_of(direction)
        size = codec.model_bytes + self.learner.state_bytes
        return self.tasks.network.nominal_s(device, direction, size) + codec.model_s

    async def start(self) -> None:
        """Record the malicious devices, if there is an attack, and start the strategy."""
        side = self.client_side
        if side.attack is not None:
            self.simulation.record(
                "malicious", {"attack": side.attack.kind, "devices": sorted(side.malicious)}
            )
        await self.strategy.on_start()

    def ask(
        self,
        device: int,
        contents: Contents,
        job: str = "train",
        round_number: int | None = None,
        group: int | None = None,
        *,
        continues: bool = False,
        at_edge: bool = False,
    ) -> int:
        """Send an idle device a request, and return the ID of the task that the request starts.

        ``Server.ask`` and ``Peer.train`` call it.

        Args:
            device: ID of the device.
            contents: the contents of the request by name.
            job: name of what the device is asked to do, such as ``train``.
            round_number: the round for which the device works, from 0; None for no round.
            group: the group for which the device works, in the records; None for no group.
            continues: whether the task continues the device's previous task, so that both count as
                one task.
            at_edge: whether the device's edge server sends the request and receives the answer.
        """
        request = self.envelopes.request(device, contents, job, round_number)
        if continues:
            self.updates.continue_task(device, round_number)
        # Only a device's last task can be continued, and only if it is done. From here on, the last
        # task is the new task, which is not done.
        self.updates.continuable.pop(device, None)
        edge = self.messages.edge_of(device) if at_edge else None  # None: the server itself
        task = self.tasks.start(
            device,
            request.steps,
            round_number,
            group,
            continues=continues,
            edge=edge,
            context=request.context,
        )
        # with several workers, the function of ``Client.real`` runs while simulated time goes on
        if self.simulation.executor.workers > 1:
            self.client_side.begin_real_function(device, request.context)
        return task.id

    def end(self, task: int, cause: Cause) -> None:
        """End a running task before it is done; ``Server.end`` calls this method.

        If the task was lost and the server has not noticed the loss yet, the strategy is notified
        of the loss immediately. There is no effect on any other task that has ended.

        Args:
            task: ID of the task.
            cause: the outcome that a running task gets, such as ``late``.
        """
        if task in self.lost_tasks.unnoticed:  # the task is lost, and the server does not know it
            self.lost_tasks.notice(task)
        else:
            self.tasks.end(task, cause)

    def on_task_end(self, task: Task) -> None:
        """Notify the strategy of the end of a task (``Strategy.on_task_end``).

        If the device was lost, the notification follows after ``server.patience``, or as soon as
        the device is back.
        """
        context = TaskContext.of(task)
        instruction = context.instruction
        outcome = task.outcome or "done"
        visible_outcome = VISIBLE[outcome]  # the server does not learn why a device was lost
        contents: Contents = {}  # contents of the answer
        if outcome == "done":
            contents = self.client_side.on_answer_arrived(task, context)
            if task.round is not None:  # the round's record ``aggregate`` must list the update
                has_trained = any(task.trained)
                self.updates.add(task.id, task.device, task.round, contents, has_trained)
        end = TaskEnd(
            task.id,
            task.device,
            task.round,
            task.group,
            instruction.job,
            visible_outcome,
            instruction.contents,
            contents,
        )
        # ``_patience``: time until the server notices a loss (s)
        if visible_outcome == "lost" and self._patience:
            self.lost_tasks.add(end)
        else:
            self.simulation.post(partial(self.strategy.on_task_end, end))

    def on_edge_lost(self, edge: int) -> None:
        """Discard the state of a lost edge server, such as residuals; notify the strategy."""
        self.edge_channel.on_lost(edge)

    def on_switched_on(self, device: int) -> None:
        """Notify the strategy about a device that is switched on again.

        The strategy is notified of the device's lost tasks (``Strategy.on_task_end``) immediately.
        Notices that were postponed while the device was switched off follow as soon as the device
        can be reached:

        - ``on_return``, if the strategy waits for the device (``Clients.await_return``),
        - ``on_arrival``, if the device is new,
        - ``on_shift``, if the device's data have shifted.
        """
        self.lost_tasks.on_switched_on(device)
        self.notices.on_switched_on(device)

    def snapshot(self) -> DispatchState:
        """Return the state that a checkpoint saves.

        The clock saves the times of timers, and of notices about devices (``Notices``).
        """
        return {
            "busy_until": self.computations.busy_until,
            "timers": self.timers.snapshot(),
            "updates": self.updates.snapshot(),
            "unnoticed": self.lost_tasks.unnoticed,
            "postponed": self.notices.snapshot(),
            "edge_channel": self.edge_channel.snapshot(),
            "peer_messages": self.peer_channel.snapshot(),
            "devices": self.devices.snapshot(),
        }

    def restore(self, state: DispatchState) -> None:
        """Set the state that ``snapshot`` returned.

        The clock sets the timers again, and the alarms of notices about devices (``Notices``).
        """
        self.computations.busy_until = state["busy_until"]
        self.timers.restore(state["timers"])
        self.updates.restore(state["updates"])
        self.lost_tasks.unnoticed = state["unnoticed"]
        self.notices.restore(state["postponed"])
        self.edge_channel.restore(state["edge_channel"])
        self.peer_channel.restore(state["peer_messages"])
        self.devices.restore(state["devices"])
