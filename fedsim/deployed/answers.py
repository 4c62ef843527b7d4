"""Reading and checking of devices' answers, before the strategy's server code receives them."""

from functools import partial
from typing import NamedTuple

from flwr.app import RecordDict

from fedsim.common.errors import show_value
from fedsim.common.step_names import TRAIN
from fedsim.deployed.packing import FORGOT, SHIFT, ContentPacker, ModelPlace, Packet
from fedsim.deployed.reading import (
    PacketError,
    count_of,
    entry_of,
    finite_of,
    list_of,
    number_of,
    table_of,
    text_of,
)
from fedsim.deployed.records import from_records
from fedsim.deployed.run import ServerRun
from fedsim.deployed.step_log import read_step
from fedsim.federation.client import Client
from fedsim.federation.contents import Contents, received
from fedsim.federation.task_context import TaskContext
from fedsim.learning.refs import Ref
from fedsim.world.steps import Task

_OUTCOMES = ("done", "late")
# A sample count of one of these types is checked. A strategy may also send an array as
# ``samples``, which is not checked.
_CHECKED_TYPES = (bool, int, float, str)
_DEFAULT_CONTENTS = ("update", "samples", "epochs")  # contents of the default ``Client.reply``


class CheckedAnswer(NamedTuple):
    """Answer of a device's program (node) to a task, after its fields were checked.

    In a deployment, a node is the program that acts for one device.

    Attributes:
        packet: the answer.
        is_late: whether the device has given up the task, as it could not end it in time.
        has_forgotten: whether the node has lost the stored state of its device.
        shift: numbers by name that the device sends because its data have changed
            (``Client.on_shift``); empty if they have not changed.
        trained: count of the finished epochs of each training of the task, in their order.
    """

    packet: Packet
    is_late: bool
    has_forgotten: bool
    shift: dict[str, float]
    trained: tuple[int, ...]


def read_answer(records: RecordDict, task: Task) -> CheckedAnswer:
    """Read a node's answer from the content of a Flower message, and check its fields.

    Args:
        records: the content.
        task: the task that is answered.

    Raises:
        PacketError: the content is broken, or is no answer to the task.
    """
    packet = from_records(records)
    head = packet.head
    number = count_of(entry_of(head, "task"), "task")
    if number != task.id:
        raise PacketError(f"it is an answer to task {number}, and not to task {task.id}")
    outcome = text_of(entry_of(head, "outcome"), "outcome")
    if outcome not in _OUTCOMES:
        raise PacketError(f"outcome is {show_value(outcome)}; allowed are {', '.join(_OUTCOMES)}")
    finite_of(entry_of(head, "took_s"), "took_s")
    steps = [read_step(step) for step in list_of(entry_of(head, "steps"), "steps")]
    trainings = [step for step in steps if step.name == TRAIN]
    trained = tuple(count_of(training.facts["epochs"], "epochs") for training in trainings)
    shift: dict[str, float] = {}
    for name, value in table_of(head.get(SHIFT, {}), SHIFT).items():
        shift[name] = number_of(value, f"{SHIFT}.{name}")
    return CheckedAnswer(packet, outcome == "late", FORGOT in head, shift, trained)


class AnswerReader:
    """Converter of answers of devices' programs (nodes) into contents for the server code.

    The contents are the models, numbers and other values that a device has sent, by name.

    Args:
        run: the run of the strategy's code on the server.
    """

    def __init__(self, run: ServerRun) -> None:
        self._run = run
        scenario = run.scenario
        self._packer = ContentPacker(
            scenario.messages.up, run.learner, scenario.strategy.traits.accumulated_contents
        )

    def contents(self, task: Task, packet: Packet) -> Contents:
        """Return the contents of an answer, with decoded models.

        Args:
            task: the task that is answered.
            packet: the answer.

        Raises:
            PacketError: a content is missing or broken.
        """
        contents = self._packer.unpack(packet, partial(_model_at, task))
        self._check(task, contents)
        return contents

    def _check(self, task: Task, contents: Contents) -> None:
        """Raise ``PacketError`` if an answer lacks a content, or has one of a wrong type.

        The contents that ``Client.reply`` returns by default are required only of strategies that
        do not override it.

        Args:
            task: the task that is answered.
            contents: the answer's contents by name.
        """
        client = self._run.client_halves.of(task.device)
        has_default_reply = type(client).reply is Client.reply
        if has_default_reply:
            missing = [name for name in _DEFAULT_CONTENTS if name not in contents]
            if missing:
                raise PacketError(f"it has no content {' and no '.join(map(repr, missing))}")
        if "update" in contents and not isinstance(contents["update"], Ref):
            raise PacketError("its content 'update' is no model")
        samples = received(contents).get("samples", 0)
        if isinstance(samples, _CHECKED_TYPES) and finite_of(samples, "samples") < 0:
            raise PacketError(f"samples is {samples}; allowed are numbers from 0")


def _model_at(task: Task, place: ModelPlace) -> Ref:
    """Return the model in a task's request to which an answer's decoded changes are added.

    Args:
        task: the task.
        place: name of the content of the request that has the model, and the model's index in a
            list, as the answer gives them.

    Raises:
        PacketError: the request has no such model.
    """
    index = place.position
    content = TaskContext.of(task).instruction.contents.get(place.content)
    if isinstance(content, list | tuple) and index is not None and index < len(content):
        content = content[index]
    if not isinstance(content, Ref):
        raise PacketError(f"its base is the model {show_value(str(place))}, which no request had")
    return content
