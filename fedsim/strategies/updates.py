"""Updates that a server has received, as strategies keep them until they are aggregated."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

from fedsim.federation import Contents
from fedsim.learning.refs import Ref
from fedsim.strategies.state import Entries


@dataclass
class Update(Entries):
    """An update of a round.

    Its fields can be read by key too, and a strategy may add entries by key.
    """

    task: int
    """Number of the task that brought the update."""
    device: int
    """The device."""
    group: int | None
    """Group of the device when it was asked; None without groups."""
    contents: Contents
    """The whole answer, by name."""
    update: Ref
    """The trained model."""
    samples: int
    """Number of samples behind the update."""
    start: Ref | None
    """The model from which the update was trained, if known."""

    @classmethod
    def of(cls, entry: Mapping[str, Any]) -> Self:
        """The update of a plain dict, which may lack fields; an update is returned as it is.

        Args:
            entry: an update, or a dict with names of fields as keys.
        """
        if isinstance(entry, cls):
            return entry
        update = cls.__new__(cls)
        update |= entry
        return update


@dataclass
class AsynchronousUpdate(Update):
    """An update in a strategy without rounds."""

    base: Ref
    """The model from which the update was trained, which is ``start``, too."""
    weight: float = field(init=False)
    """Weight of the update in a version."""
    staleness: int = field(init=False)
    """Number of versions made since the device was asked."""
