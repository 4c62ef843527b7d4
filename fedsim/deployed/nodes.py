"""The nodes of a Flower deployment as the devices of a strategy."""

import logging
import time
from collections.abc import Callable
from functools import partial

from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.common.errors import SimulationError, shown
from fedsim.deployed.clock import WallClock
from fedsim.deployed.packing import ContentPacker, ModelPlace, Packet
from fedsim.deployed.records import from_records, to_records
from fedsim.deployed.replies import Replies
from fedsim.deployed.run import SentContext, ServerRun
from fedsim.federation.contents import BASE
from fedsim.learning.refs import Ref
from fedsim.version import __version__
from fedsim.world.task import Task

_log = logging.getLogger("flwr")
_NODES_EVERY_S = 1.0  # real time between two looks at the list of nodes (s)


class Nodes:
    """The nodes of a Grid, to which tasks are sent and from which answers arrive.

    Args:
        grid: Flower's Grid.
        run: the server half's run.
        clock: the wall clock of the run.
        pace: ``pace`` of the app's run configuration.

    Attributes:
        begun: whether the clock runs.
    """

    def __init__(self, grid: Grid, run: ServerRun, clock: WallClock, pace: float) -> None:
        self._grid = grid
        self._run = run
        self._clock = clock
        self._pace = pace
        self._devices = run.scenario.population.devices
        messages = run.scenario.messages
        self._down = ContentPacker(messages.down, run.learner)
        self._up = ContentPacker(messages.up, run.learner, run.scenario.strategy.added_up)
        self._node_of: dict[int, int] = {}  # device -> node
        self._greeted: set[int] = set()
        self._greetings: dict[str, int] = {}  # message -> node
        self._open: dict[str, Task] = {}  # message -> its task, also if it has ended
        self._replies = Replies(grid)
        self._arrivals = 0
        self.begun = False
        self._next_nodes = 0.0
        run.remote.send = self.send

    @property
    def connected(self) -> int:
        """Count of the devices whose nodes have answered."""
        return len(self._node_of)

    def look(self) -> None:
        """Look for nodes and answers; an answer sets an alarm at the time of its arrival."""
        if time.monotonic() >= self._next_nodes:
            self._look_for_nodes()
            self._next_nodes = time.monotonic() + _NODES_EVERY_S
        self._replies.take(self._receive)

    def end(self) -> None:
        """Wait for no more replies."""
        self._replies.end()

    def _receive(self, wall: float, reply: Message) -> None:
        name = reply.metadata.reply_to_message_id
        if name in self._greetings:
            self._welcome(self._greetings.pop(name), reply)
        elif name in self._open:
            self._take(self._open.pop(name), wall, reply)

    def _look_for_nodes(self) -> None:
        present = set(self._grid.get_node_ids())
        for node in sorted(present - self._greeted):
            self._greeted.add(node)
            message = self._message(Packet({"job": "hello"}), node, "query")
            (name,) = self._grid.push_messages([message])
            self._greetings[name] = node
            self._replies.expect(name)
        self._greeted &= present
        for device, node in list(self._node_of.items()):
            if node not in present:
                del self._node_of[device]
                self._at_wall(partial(self._run.remote.disconnect, device))

    def _welcome(self, node: int, reply: Message) -> None:
        if reply.has_error():
            _log.warning("node %d does not work: %s", node, reply.error.reason)
            return
        head = from_records(reply.content).head
        device = head["device"]
        if head["fedsim"] != __version__:
            _log.warning(
                "node %d has fedsim %s, and the server %s", node, head["fedsim"], __version__
            )
        if not isinstance(device, int) or not 0 <= device < self._devices:
            raise SimulationError(
                f"a node has partition-id = {shown(device)}; allowed are 0 to "
                f"{self._devices - 1} (population.devices of the app's scenario.toml)"
            )
        other = self._node_of.get(device)
        if other is not None and other != node:
            raise SimulationError(
                f"two nodes have partition-id = {device}; give each node a number of its own"
            )
        self._node_of[device] = node
        self._at_wall(partial(self._run.remote.connect, device))

    def send(self, task: Task) -> None:
        """Send a task to its device's node."""
        context: SentContext = task.context
        packet = self._down.pack(context.outgoing, {}, {})
        if context.brings_base:
            packet.payloads[BASE] = self._run.learner.frozen().astype("<f4").tobytes()
        arrived = self._run.remote.arrived.get(task.device)
        packet.head |= {
            "task": task.id,
            "count": task.count,
            "job": context.instruction.job,
            "round": task.round,
            "asked_at": self._clock.now,
            "began": self._clock.began,
            "arrived": None if arrived is None else [*arrived],
        }
        message = self._message(packet, self._node_of[task.device], "train")
        (name,) = self._grid.push_messages([message])
        self._open[name] = task
        self._note("sent", task, packet, time.time())
        self._replies.expect(name)

    def _take(self, task: Task, wall: float, reply: Message) -> None:
        remote = self._run.remote
        if reply.has_error():
            _log.warning("device %d is lost: %s", task.device, reply.error.reason)
            self._at_wall(lambda: remote.receive(task.id, None, "lost"))
            return
        packet = from_records(reply.content)
        is_late = packet.head["outcome"] == "late"

        def arrive() -> None:
            self._note("received", task, packet, wall)
            if task.id not in remote.running:
                return
            contents = self._up.unpack(packet, lambda place: _model_at(task, place))
            remote.receive(task.id, contents or None, "late" if is_late else None)

        self._at_wall(arrive)

    def _at_wall(self, action: Callable[[], None]) -> None:
        """Carry out an action at the present time of the day; at once before the run begins."""
        if not self.begun:
            action()
            return
        self._arrivals += 1
        self._clock.wake(("arrival", self._arrivals), self._clock.wall, action)

    def _message(self, packet: Packet, node: int, kind: str) -> Message:
        return Message(to_records(packet), dst_node_id=node, message_type=kind)

    def _note(self, kind: str, task: Task, packet: Packet, wall: float) -> None:
        """Record a message with the bytes of its contents and the time of the day.

        Args:
            kind: ``sent`` or ``received``.
            task: the task of the message.
            packet: the message.
            wall: time of the day (s since 1970) at which it was sent or has arrived.
        """
        self._clock.emit(
            kind,
            task=task.id,
            device=task.device,
            round=task.round,
            group=task.group,
            wall=wall,
            bytes=packet.bytes_by_content(),
            took_s=packet.head.get("took_s"),
            steps=packet.head.get("steps", []),
            late=task.id not in self._run.remote.running,
        )


def _model_at(task: Task, place: ModelPlace) -> Ref:
    name, index = place
    content = task.context.instruction.contents[name]
    model = content if index is None else content[index]
    assert isinstance(model, Ref)
    return model
