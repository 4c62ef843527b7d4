"""The rounds of a Flower app, as the messages of its ServerApp show them."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import ArrayRecord, Message

from fedsim.flower.client_side import figure
from fedsim.flower.params import is_training

_NUMBERS = ("server-round", "server_round", "current-round", "current_round", "round")


class ReceivedUpdate(NamedTuple):
    """A reply that the ServerApp has received."""

    task: int
    """number of the device's task."""
    weight: float
    """number of examples; 1 without a number."""
    age: int
    """number of rounds from the task's round to the one in which the reply was received."""


@dataclass(eq=False)
class AppRound:
    """A round of a Flower app, open or closed."""

    number: int
    """number of the round, from 0."""
    app_number: int | None
    """the app's own number of the round; None without one."""
    ends: Counter[str] = field(default_factory=Counter)
    """tasks by outcome, without tasks that another task continues."""
    updates: list[ReceivedUpdate] = field(default_factory=list)
    """replies that the ServerApp has received in this round."""
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """sum of value x examples, by column."""
    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    """sum of examples, by column."""
    figures: dict[str, float] = field(default_factory=dict)
    """values that the ServerApp itself has measured, by column."""


class AppRounds:
    """The rounds of a run, of which one at a time is open.

    Messages of training make the rounds; before an app trains, all messages do. Flower's own
    strategies number the rounds by ``group_id``, or by a config ``server-round``. Without numbers a
    round begins when other arrays are sent than before. Messages without arrays begin a round when
    a device gets a message of the same type again.

    Args:
        names: the app's metric of each column.
        close: called with each round that ends.

    Attributes:
        seen: names of all metrics so far.
    """

    def __init__(self, names: dict[str, str], close: Callable[[AppRound], None]) -> None:
        self._names = names
        self._close = close
        self._open: AppRound | None = None
        self._count = 0
        self._arrays: ArrayRecord | None = None  # of the last message with arrays
        self._targets: set[tuple[str, int]] = set()  # types and nodes of the round's messages
        self._trains = False
        self.seen: set[str] = set()

    def of(self, message: Message) -> AppRound | None:
        """The round of a message that is about to be sent. A new round closes the round before.

        Args:
            message: the message.

        Returns:
            The round; None if the message makes no round.
        """
        if not self._leads(message):
            return None
        app_number = _app_number(message)
        target = (message.metadata.message_type, message.metadata.dst_node_id)
        arrays = next(iter(message.content.array_records.values()), None)
        is_new = target in self._targets if arrays is None else arrays != self._arrays
        if not self._trains and _is_training(message):
            self._trains = True
            # earlier messages prepare the first training, and belong to its round
            if self._open is not None:
                self._open.app_number = app_number
                is_new = False
        if self._open is not None and app_number is not None:
            is_new = app_number != self._open.app_number
        if self._open is None or is_new:
            self.end()
            self._open = AppRound(self._count, app_number)
            self._count += 1
            self._targets.clear()
        if arrays is not None:
            self._arrays = arrays
        self._targets.add(target)
        return self._open

    def _leads(self, message: Message) -> bool:
        """Whether a message makes rounds."""
        return not self._trains or _is_training(message)

    def end(self) -> None:
        """Close the open round, if any."""
        ended = self._open
        self._open = None
        if ended is not None:
            self._close(ended)

    def note_reply(
        self, task: int, reply: Message, examples: float | None, asked_in: AppRound | None
    ) -> None:
        """Note a reply that the ServerApp receives; a late reply counts for the open round.

        Args:
            task: number of the device's task.
            reply: the reply.
            examples: the reply's number of examples; None: the weight is 1.
            asked_in: the round of the task; None if its message made no round.
        """
        current = self._open
        if current is None or reply.has_error():
            return
        weight = 1.0 if examples is None else examples
        for record in reply.content.values():
            if not isinstance(record, ArrayRecord):
                self.seen.update(record)
        if self._leads(reply):
            age = 0 if asked_in is None else current.number - asked_in.number
            current.updates.append(ReceivedUpdate(task, weight, age))
        columns = ("train_loss",) if _is_training(reply) else ("accuracy", "loss")
        for column in columns:
            value = figure(reply.content, self._names[column])
            if value is not None:
                current.sums[column] += value * weight
                current.weights[column] += weight

    def note_figures(self, app_number: int, figures: Mapping[str, float]) -> None:
        """Note values that the ServerApp has measured.

        Args:
            app_number: the app's own number of the round.
            figures: the values by the app's names.
        """
        self.seen.update(figures)
        current = self._open
        if current is None or current.app_number not in (app_number, None):
            return
        for column, name in self._names.items():
            if name in figures:
                current.figures[column] = float(figures[name])


def _is_training(message: Message) -> bool:
    return is_training(message.metadata.message_type)


def _app_number(message: Message) -> int | None:
    """The app's own number of a message's round; None without one."""
    group = message.metadata.group_id
    if group.isdecimal():
        return int(group)
    for record in message.content.config_records.values():
        for name in _NUMBERS:
            value = record.get(name)
            if type(value) is int:
                return value
    return None
