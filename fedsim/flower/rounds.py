"""The rounds of an app's messages, with the figures and tasks of each.

Messages of training make the rounds; of an app that has not trained yet, all messages do. Flower's own strategies number them:
by ``group_id``, or by a config ``server-round``. Without a number a round begins whenever other arrays are sent than the last
time, or a device is asked the same again where there are no arrays.
"""

from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from flwr.app import ArrayRecord, ConfigRecord, Message

from fedsim.flower.client_side import figure

_NUMBERS = ("server-round", "server_round", "current-round", "current_round", "round")
_COUNTED = {"done": "valid", "late": "slow", "memory": "slow"} | dict.fromkeys(("lost", "left", "battery"), "disconnected")


@dataclass(eq=False)
class Round:
    """A round."""

    number: int  # from 0
    told: int | None  # its number as the app has it
    # Tasks by how they ended; a device that went on with another message counts once.
    counts: dict[str, int] = field(default_factory=lambda: dict.fromkeys(("selected", "valid", "slow", "disconnected"), 0))
    used: list[tuple[int, float]] = field(default_factory=list)  # tasks whose replies the ServerApp has, and their examples
    sums: Counter[str] = field(default_factory=Counter)  # of each column value x examples
    weights: Counter[str] = field(default_factory=Counter)  # and examples
    own: dict[str, float] = field(default_factory=dict)  # measured by the ServerApp itself

    def figures(self) -> dict[str, float | None]:
        """Columns of the rounds' table; measurements of the ServerApp go before those of its clients."""
        means = {column: self.sums[column] / weight for column, weight in self.weights.items() if weight}
        return {**means, **self.own}

    def count(self, outcome: str, by: int = 1) -> None:
        """A task of the round has ended."""
        if outcome in _COUNTED:
            self.counts["selected"] += by
            self.counts[_COUNTED[outcome]] += by


class AppRounds:
    """The rounds of a run, one after another: ``names`` has the metric of each column; ``close`` takes a round that is over."""

    def __init__(self, names: dict[str, str], close: Callable[[Round], None]) -> None:
        self._names, self._close = names, close
        self._open: Round | None = None
        self._count = 0
        self._sent: ArrayRecord | None = None
        self._asked: set[tuple[str, int]] = set()
        self._trains = False
        self._early: dict[int, dict[str, float]] = defaultdict(dict)
        self.seen: set[str] = set()

    def of(self, message: Message) -> Round | None:
        """The round of a message that is about to be sent; one that begins a new round closes the one before."""
        if not self.leads(message):
            return self._open
        told, asked = _told(message), (message.metadata.message_type, message.metadata.dst_node_id)
        arrays = next((record for record in message.content.values() if isinstance(record, ArrayRecord)), None)
        again = not _alike(arrays, self._sent) or (arrays is None and asked in self._asked)
        if not self._trains and _trains(message):
            self._trains = True
            if self._open is not None:  # what was asked last prepares the first training, and is of its round
                self._open.told, again = told, False
        if self._open is None or (told != self._open.told if told is not None else again):
            self.end()
            self._open = Round(self._count, told)
            self._count += 1
            self._asked.clear()
        if told is not None:
            self._open.own |= self._early.pop(told, {})
        self._sent = arrays if arrays is not None else self._sent
        self._asked.add(asked)
        return self._open

    def leads(self, message: Message) -> bool:
        """Whether a message, or a reply, is one of those that rounds are made of."""
        return not self._trains or _trains(message)

    def end(self) -> None:
        """The round that is open, if one is, is over."""
        over, self._open = self._open, None
        if over is not None:
            self._close(over)

    def note_reply(self, task: int, reply: Message, examples: float | None) -> None:
        """The ServerApp gets a reply."""
        one = self._open  # what comes late counts when it comes
        if one is None or reply.has_error():
            return
        content, weight = reply.content, 1.0 if examples is None else examples
        self.seen |= {name for record in content.values() if not isinstance(record, ArrayRecord) for name in record}
        if self.leads(reply):
            one.used.append((task, weight))
        for column in ("train_loss",) if _trains(reply) else ("accuracy", "loss"):
            if (value := figure(content, self._names[column])) is not None:
                one.sums[column] += value * weight  # type: ignore[assignment]
                one.weights[column] += weight  # type: ignore[assignment]

    def note_figures(self, told: int, figures: dict[str, Any]) -> None:
        """The ServerApp has measured something in the round that it calls so."""
        self.seen |= set(figures)
        found = {column: float(figures[name]) for column, name in self._names.items() if name in figures}
        if self._open is not None and self._open.told in (told, None):
            self._open.own |= found
        elif told > 0:
            self._early[told] |= found


def _trains(message: Message) -> bool:
    return message.metadata.message_type.partition(".")[0] == "train"  # type: ignore[no-any-return]


def _told(message: Message) -> int | None:
    if (group := message.metadata.group_id).isdecimal():
        return int(group)
    configs = [record for record in message.content.values() if isinstance(record, ConfigRecord)]
    return next((record[name] for record in configs for name in _NUMBERS if type(record.get(name)) is int), None)


def _alike(one: ArrayRecord | None, other: ArrayRecord | None) -> bool:
    """Whether a message says the same as the one before: has no arrays, or equal ones."""
    if one is None or one is other:
        return True
    if other is None or list(one) != list(other):
        return False
    return all(one[name].data is other[name].data or one[name].data == other[name].data for name in one)
