"""Received updates, which strategies store until they are aggregated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Self

from fedsim.federation import Contents
from fedsim.learning.refs import Ref
from fedsim.strategies.state import Entries


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
        """Return an ``Update`` made of a dict, which the method ``entry`` of a strategy may return.

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
        base: The model from which the update was trained: the same as ``start``, but never None.
        weight: Weight of the update in the version in which it is combined.
        staleness: Count of versions published between the request to the device and its answer.
    """

    base: Ref
    weight: float = field(init=False)
    staleness: int = field(init=False)
