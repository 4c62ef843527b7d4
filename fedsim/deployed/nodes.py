"""Messages between a strategy's server code and the nodes of a Flower deployment.

A node is the program that acts for one device.
"""

import logging
import time
from collections.abc import Callable
from functools import partial

from flwr import __version__ as flower_version
from flwr.app import Message
from flwr.serverapp import Grid

from fedsim.common.errors import show_value
from fedsim.deployed.answers import AnswerReader, CheckedAnswer, read_answer
from fedsim.deployed.clock import WallClock
from fedsim.deployed.packing import ContentPacker, Packet
from fedsim.deployed.reading import PacketError, count_of, entry_of
from fedsim.deployed.records import from_records, to_records
from fedsim.deployed.replies import Replies, Reply
from fedsim.deployed.run import SentContext, ServerRun
from fedsim.federation.contents import BASE
from fedsim.version import __version__
from fedsim.world.steps import Task

_log = logging.getLogger("flwr")
_NODES_EVERY_S = 1.0  # real time between two looks at the list of nodes (s)


class Nodes:
    """Connection to the programs (nodes) that act for devices, over Flower's Grid.

    Args:
        grid: Flower's Grid, which carries the messages.
        run: the run of the strategy's code on the server.
        clock: the wall clock of the run.

    Attributes:
        clock_runs: whether the clock has begun; ``Deployment`` sets it. Until then, the connection
            or loss of a node is handled immediately, and afterwards by an event of the clock.
    """

    def __init__(self, grid: Grid, run: ServerRun, clock: WallClock) -> None:
        self._grid = grid
        self._run = run
        self._clock = clock
        self._devices = run.scenario.population.devices
        messages = run.scenario.messages
        self._down = ContentPacker(messages.down, run.learner)
        self._answers = AnswerReader(run)
        self._node_of_device: dict[int, int] = {}
        # device -> the node that takes over when the device's first node is gone
        self._successors: dict[int, int] = {}
        self._refused: list[str] = []  # reasons for which nodes are not used
        self._greeted: set[int] = set()  # nodes to which a greeting was sent
        self._greetings: dict[str, int] = {}  # ID of a greeting -> the greeted node
        self._unanswered: dict[str, Task] = {}  # ID of a request -> its task, perhaps ended
        self._replies = Replies(grid)
        self._arrivals = 0
        self.clock_runs = False
        self._next_nodes = 0.0
        run.remote.send = self.send

    @property
    def connected(self) -> int:
        """Count of the devices whose nodes have answered."""
        return len(self._node_of_device)

    @property
    def refused(self) -> str:
        """Text on nodes that answered but cannot be used, to be appended to an error message.

        For each such node the text has "; " and a sentence. It is empty if there is no such node.
        """
        return "".join(f"; {reason}" for reason in self._refused)

    def look(self) -> None:
        """Ask Flower for new or lost nodes, and for messages that have arrived from nodes.

        Each message is handled by an alarm at the time of its arrival.
        """
        if time.monotonic() >= self._next_nodes:
            self._look_for_nodes()
            self._next_nodes = time.monotonic() + _NODES_EVERY_S
        for reply in self._replies.take():
            self._receive(reply)

    def end(self) -> None:
        """Stop the threads that wait for replies of the nodes, at the end of the run."""
        self._replies.end()

    def _receive(self, reply: Reply) -> None:
        """Handle the first reply to a message; later replies to it are ignored."""
        if reply.name in self._greetings:
            node = self._greetings.pop(reply.name)
            self._welcome(node, reply.content)
        elif reply.name in self._unanswered:
            task = self._unanswered.pop(reply.name)
            self._receive_answer(task, reply.wall, reply.content)

    def _look_for_nodes(self) -> None:
        """Greet new nodes, and replace or disconnect nodes that Flower no longer lists."""
        present = set(self._grid.get_node_ids())
        for node in sorted(present - self._greeted):
            self._greeted.add(node)
            message = self._message(Packet({"job": "hello"}), node, "query")
            (message_id,) = self._grid.push_messages([message])
            self._greetings[message_id] = node
            self._replies.expect(message_id)
        self._greeted &= present  # a node that comes back is greeted again
        for device, node in list(self._node_of_device.items()):
            if node in present:
                continue
            del self._node_of_device[device]
            self._call_at_wall_time(partial(self._run.remote.disconnect, device))
            successor = self._successors.pop(device, None)
            if successor is not None and successor in present:
                self._connect(device, successor)

    def _welcome(self, node: int, reply: Message | Exception) -> None:
        """Connect a node that has answered its greeting, or refuse it.

        A second node for one device is refused, and takes over when the first node is gone.

        Args:
            node: Flower's ID of the node.
            reply: the answer, or the error with which the greeting failed.
        """
        failure = _failure_of(reply)
        if isinstance(reply, Exception) or failure:
            self._refuse(node, f"its ClientApp has failed: {failure}")
            return
        try:
            device = self._device_of(node, reply)
        except PacketError as error:
            self._refuse(node, str(error))
            return
        first_node = self._node_of_device.get(device, node)
        if first_node == node:
            self._connect(device, node)
            return
        self._successors[device] = node
        self._refuse(
            node,
            f"node {first_node} has partition-id = {device} too; give each node a number of its "
            "own (a node that was started anew takes over when Flower no longer lists the first "
            "one)",
        )

    def _device_of(self, node: int, reply: Message) -> int:
        """Return the number of a node's device, from the node's answer to its greeting.

        If versions of fedsim or Flower differ from the server's, a warning is logged.

        Raises:
            PacketError: the answer is broken, or the scenario has no device of this number.
        """
        head = from_records(reply.content).head
        for package, version in (("fedsim", __version__), ("flwr", flower_version)):
            node_version = head.get(package)
            if node_version != version:
                _log.warning(
                    "node %d has %s %s, and the server %s", node, package, node_version, version
                )
        number = entry_of(head, "device")
        device = count_of(number, "partition-id")
        if device >= self._devices:
            raise PacketError(
                f"a node has partition-id = {show_value(number)}; allowed are 0 to "
                f"{self._devices - 1} (population.devices of the app's scenario.toml)"
            )
        return device

    def _connect(self, device: int, node: int) -> None:
        self._node_of_device[device] = node
        self._call_at_wall_time(partial(self._run.remote.connect, device))

    def _refuse(self, node: int, reason: str) -> None:
        """Log that a node (the program of a device) is not used; the run goes on without it.

        Args:
            node: Flower's ID of the node.
            reason: why the node is not used, in words.
        """
        _log.warning("node %d is not used: %s", node, reason)
        self._refused.append(f"node {node} is not used: {reason}")

    def send(self, task: Task) -> None:
        """Send the server's request for a task to the node (program) that acts for the device.

        Args:
            task: the task, which the strategy has just requested.
        """
        context = SentContext.of(task)
        packet = self._down.pack(context.outgoing, {}, {})
        if context.brings_base:  # the device does not have the frozen tensors yet
            packet.payloads[BASE] = self._run.learner.frozen().astype("<f4").tobytes()
        # arrival of the device's last answer
        arrival = self._run.remote.arrivals.get(task.device)
        packet.head |= {
            "task": task.id,
            "count": task.count,
            "job": context.instruction.job,
            "round": task.round,
            "asked_at": self._clock.now,
            "began": self._clock.began,
            "arrived": None if arrival is None else [arrival.number, arrival.time],
        }
        message = self._message(packet, self._node_of_device[task.device], "train")
        (message_id,) = self._grid.push_messages([message])
        self._unanswered[message_id] = task
        self._record_message("sent", task, packet, time.time())
        self._replies.expect(message_id)

    def _receive_answer(self, task: Task, wall: float, reply: Message | Exception) -> None:
        """Check the answer to a task, and schedule its arrival, or the loss of the task.

        Args:
            task: the task.
            wall: time of the day at which the answer has arrived (s since 1970).
            reply: the answer, or the error by which the node or Flower failed.
        """
        failure = _failure_of(reply)
        if isinstance(reply, Exception) or failure:
            _log.warning("device %d is lost: %s", task.device, failure)
            self._call_at_wall_time(partial(self._run.remote.receive, task.id, None, "lost"))
            return
        try:
            answer = read_answer(reply.content, task)
        except PacketError as error:
            self._call_at_wall_time(partial(self._reject, task, error))
            return
        self._call_at_wall_time(partial(self._arrive, task, wall, answer))

    def _arrive(self, task: Task, wall: float, answer: CheckedAnswer) -> None:
        """Record a checked answer, and pass its contents to the strategy if the task is open.

        If the contents cannot be decoded, the task is lost.
        """
        remote = self._run.remote
        try:
            contents = self._answers.contents(task, answer.packet)
        except PacketError as error:
            self._reject(task, error)
            return
        self._record_message("received", task, answer.packet, wall)
        is_too_late = task.id not in remote.running
        if is_too_late:
            return
        if answer.has_forgotten:
            _log.warning(
                "device %d has lost the state of its earlier tasks, and goes on without it; its "
                "node was started anew",
                task.device,
            )
            self._clock.record("node-forgot", dict(task.fields))
        task.trained = answer.trained
        remote.receive(task.id, contents or None, "late" if answer.is_late else None)
        if answer.shift and not answer.is_late:
            on_shift = self._run.strategy.on_shift
            self._clock.post(partial(on_shift, task.device, answer.shift))

    def _reject(self, task: Task, error: PacketError) -> None:
        """End a task as lost, because its answer cannot be read; record and log the reason."""
        _log.warning("the answer of device %d is not used: %s", task.device, error)
        self._clock.record("node-fault", {**task.fields, "reason": str(error)})
        self._run.remote.receive(task.id, None, "lost")

    def _call_at_wall_time(self, action: Callable[[], None]) -> None:
        """Schedule an action as an event of the clock at the present real time.

        Before the clock has begun, the action is carried out immediately.
        """
        if not self.clock_runs:
            action()
            return
        self._arrivals += 1
        self._clock.wake(("arrival", self._arrivals), self._clock.wall, action)

    def _message(self, packet: Packet, node: int, kind: str) -> Message:
        return Message(to_records(packet), dst_node_id=node, message_type=kind)

    def _record_message(self, kind: str, task: Task, packet: Packet, wall: float) -> None:
        """Record that a message was sent or received, with the bytes of its contents.

        Args:
            kind: ``sent`` or ``received``.
            task: the task of the message.
            packet: the message.
            wall: time of the day (s since 1970) at which the message was sent or has arrived.
        """
        fields = {
            "task": task.id,
            "device": task.device,
            "round": task.round,
            "group": task.group,
            "wall": wall,
            "bytes": packet.bytes_by_content(),
            "took_s": packet.head.get("took_s"),
            "steps": packet.head.get("steps", []),
            "late": task.id not in self._run.remote.running,
        }
        self._clock.record(kind, fields)


def _failure_of(reply: Message | Exception) -> str:
    """Return the error message of a failed reply; empty if the reply is not an error."""
    if isinstance(reply, Exception):
        return f"{type(reply).__name__}: {reply}"
    if not reply.has_error():
        return ""
    return reply.error.reason or f"error {reply.error.code}"
