"""Received updates, which strategies store until they are aggregated."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self, cast

from fedsim.common.errors import SimulationError, show_value
from fedsim.federation import Contents, TaskEnd
from fedsim.learning.refs import Ref
from fedsim.strategies.state import Entries

_MOST_SAMPLES = 2**63 - 1


def samples_of(message: TaskEnd) -> int:
    """Return the count of samples that a device reports in the content ``samples`` of its answer.

    Args:
        message: the end of the task with the answer.

    Raises:
        SimulationError: the answer has no such content, or it is no number of 0 or more.
    """
    samples = message["samples"]
    number = math.nan
    try:
        if not isinstance(samples, str | bool):
            number = float(samples)
    except (TypeError, ValueError, OverflowError):
        pass  # NaN is refused below
    if not 0 <= number <= _MOST_SAMPLES:
        raise SimulationError(
            f"the answer of device {message.device} has the content 'samples' "
            f"{show_value(samples)}; allowed is a count of 0 or more"
        )
    return cast(int, samples)


@dataclass
class Update(Entries):
    """Update that the server has received in a round: the trained model, and facts about it.

    The fields can be read by key too, and a strategy may add entries by key.

    Attributes:
        task: ID of the task whose answer is the update.
        device: ID of the device.
        group: Group of the device when it was asked; None if there are no groups.
        contents: All contents of the answer by name.
        update: The trained model.
        samples: Count of samples on which the update was trained.
        start: The model from which the update was trained, if known.
    """

    task: int
    device: int
    group: int | None
    contents: Contents
    update: Ref
    samples: int
    start: Ref | None

    @classmethod
    def of(cls, entry: Mapping[str, object]) -> Self:
        """Convert the result of a strategy's method ``entry``, such as a dict, to an update.

        Args:
            entry: a dict with names of fields as keys, which may lack fields; or an update, which
                is returned unchanged.
        """
        if isinstance(entry, cls):
            return entry
        update = cls.__new__(cls)
        update |= entry
        return update


@dataclass
class AsynchronousUpdate(Update):
    """Update that an asynchronous strategy has received, with its weight and its staleness.

    A version is a model that the server has published.

    Attributes:
        base: The model from which the update was trained, as ``start``, but never None.
        weight: Weight of the update in the version in which it is combined.
        staleness: Count of versions published between the request to the device and its answer.
    """

    base: Ref
    weight: float = field(init=False)
    staleness: int = field(init=False)
