"""Rounds of a Flower app, derived from the messages that its ServerApp sends."""

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from flwr.app import ArrayRecord, Message

from fedsim.flower.client_side import find_metric
from fedsim.flower.params import is_training

# keys of a message's config that may have the app's index of the round
_ROUND_KEYS = ("server-round", "server_round", "current-round", "current_round", "round")


class ReceivedUpdate(NamedTuple):
    """A reply that the ServerApp has received in a round.

    At the end of the round it is listed in the record ``aggregate`` of the run's events.

    Attributes:
        task: ID of the device's task.
        weight: count of examples in the reply; 1 if the reply states none.
        age: staleness: the index of the round in which the ServerApp received the reply, minus the
            index of the task's round.
    """

    task: int
    weight: float
    age: int


@dataclass(eq=False)
class AppRound:
    """Round of a Flower app: counts of its tasks by outcome, received replies, and metrics.

    Attributes:
        number: index of the round, from 0.
        app_number: the app's own index of the round; None if the round's messages have no index.
        ends: outcome of tasks -> count. Of several tasks that a device finishes in the round only
            the last one is counted.
        updates: replies that the ServerApp has received in this round.
        sums: column (``accuracy``, ``loss``, ``train_loss``) -> sum of value x examples over the
            replies.
        weights: column -> sum of examples over the replies.
        figures: column -> value that the ServerApp itself has measured.
    """

    number: int
    app_number: int | None
    ends: Counter[str] = field(default_factory=Counter)
    updates: list[ReceivedUpdate] = field(default_factory=list)
    sums: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    weights: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    figures: dict[str, float] = field(default_factory=dict)


class AppRounds:
    """Rule that assigns the messages of a ServerApp to rounds; one round is open at a time.

    All messages belong to rounds until the app's first training message; afterwards only training
    messages do. A message begins a new round if no round is open, and in three other cases:

    - It has a round index, which differs from the open round's index. Flower's own strategies put
      the index into ``group_id``, or into a config as ``server-round``.
    - It has no round index, and its arrays differ from the arrays in the last message of a round
      that had arrays.
    - It has neither, and its device has had a message of the same type in the open round.

    The app's first training message is an exception. It joins the open round, if there is one.

    Args:
        names: column (``accuracy``, ``loss``, ``train_loss``) -> name of the app's metric.
        close: called with each round that ends.

    Attributes:
        seen: names of all metrics that the app has reported so far.
    """

    def __init__(self, names: dict[str, str], close: Callable[[AppRound], None]) -> None:
        self._names = names
        self._close = close
        self._open_round: AppRound | None = None
        self._round_count = 0
        self._arrays: ArrayRecord | None = None  # arrays of the last message that had arrays
        self._targets: set[tuple[str, int]] = set()  # types and nodes of the round's messages
        self._has_trained = False
        self.seen: set[str] = set()

    def round_of(self, message: Message) -> AppRound | None:
        """Return the round of a message that the ServerApp sends.

        If the message begins a new round, the previous round is closed first.

        Args:
            message: message from the ServerApp to a node.

        Returns:
            The open round; None if the message belongs to no round. This is so for all messages
            other than trainings, such as evaluations, after the app's first training message.
        """
        if not self._can_open_round(message):
            return None
        app_number = _app_number(message)
        target = (message.metadata.message_type, message.metadata.dst_node_id)
        arrays = next(iter(message.content.array_records.values()), None)
        is_first_training = not self._has_trained and _is_training(message)
        if is_first_training:
            self._has_trained = True
        if is_first_training and self._open_round is not None:
            # messages before the first training belong to the round of the first training
            self._open_round.app_number = app_number
        elif self._begins_round(app_number, arrays, target):
            self.end()
            self._open_round = AppRound(self._round_count, app_number)
            self._round_count += 1
            self._targets.clear()
        # ``_begins_round`` compares the next message with these arrays and targets
        if arrays is not None:
            self._arrays = arrays
        self._targets.add(target)
        return self._open_round

    def _begins_round(
        self, app_number: int | None, arrays: ArrayRecord | None, target: tuple[str, int]
    ) -> bool:
        """Return whether a message begins a round, by the rules in the docstring of the class.

        Args:
            app_number: the app's own index of the message's round; None if the message has none.
            arrays: the arrays in the message; None if it has none.
            target: type and node of the message.
        """
        if self._open_round is None:
            return True
        if app_number is not None:
            return app_number != self._open_round.app_number
        if arrays is not None:
            return bool(arrays != self._arrays)
        return target in self._targets

    def _can_open_round(self, message: Message) -> bool:
        """Return whether a message can begin a round.

        Before the app's first training message every message can; after it only training messages.
        """
        return not self._has_trained or _is_training(message)

    def end(self) -> None:
        """Close the open round, if any; called before each new round, and after the last one."""
        ended = self._open_round
        self._open_round = None
        if ended is not None:
            self._close(ended)

    def note_reply(
        self, task: int, reply: Message, examples: float | None, asked_in: AppRound | None
    ) -> None:
        """Add a reply that the ServerApp receives, and its metrics, to the open round.

        Args:
            task: ID of the device's task.
            reply: message from the device's ClientApp; an error is ignored.
            examples: count of examples in the reply, the weight of its metrics; None for weight 1.
            asked_in: round to which the task belongs, perhaps an earlier one; None if its message
                belongs to no round.
        """
        current = self._open_round
        if current is None or reply.has_error():
            return
        weight = 1.0 if examples is None else examples
        for record in reply.content.values():
            if not isinstance(record, ArrayRecord):
                self.seen.update(record)  # names of the reply's metrics
        if self._can_open_round(reply):  # messages of this type belong to rounds
            age = 0 if asked_in is None else current.number - asked_in.number  # staleness
            current.updates.append(ReceivedUpdate(task, weight, age))
        columns = ("train_loss",) if _is_training(reply) else ("accuracy", "loss")
        for column in columns:
            value = find_metric(reply.content, self._names[column])
            if value is not None:  # adds to the round's mean, weighted by examples
                current.sums[column] += value * weight
                current.weights[column] += weight

    def note_figures(self, app_number: int, figures: Mapping[str, float]) -> None:
        """Add metrics that the ServerApp itself has measured to the open round.

        Args:
            app_number: the app's own index of the round; if the open round has another index, the
                metrics are ignored.
            figures: name of a metric in the app -> value.
        """
        self.seen.update(figures)
        current = self._open_round
        if current is None:
            return
        is_of_other_round = current.app_number is not None and current.app_number != app_number
        if is_of_other_round:
            return
        for column, name in self._names.items():
            if name in figures:
                current.figures[column] = float(figures[name])


def _is_training(message: Message) -> bool:
    return is_training(message.metadata.message_type)


def _app_number(message: Message) -> int | None:
    """Return the app's own index of a message's round; None if the message has no index.

    The index is the message's ``group_id``, or a key of its config such as ``server-round``.
    """
    group = message.metadata.group_id
    if group.isdecimal():
        return int(group)
    for record in message.content.config_records.values():
        for name in _ROUND_KEYS:
            value = record.get(name)
            if type(value) is int:
                return value
    return None
