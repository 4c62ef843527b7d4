"""Result of a round, as a strategy gives it to ``Server.finish_round``: models and updates."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from fedsim.learning.refs import Ref

ModelAssignment = Mapping[str, tuple[Ref, Sequence[int] | None]]
"""A strategy's models by name, each with the devices that it serves (None: all)."""


class Measured(NamedTuple):
    """Aggregated update whose training loss and distances are measured at the end of a round.

    A strategy passes the round's updates as the argument ``updates`` of ``Server.finish_round``,
    which also records that they were aggregated (record ``aggregate``).

    Attributes:
        update: the received model (``message["update"]``). The record names the task that has sent
            this model.
        weight: weight of the update in the mean of the training losses, such as its count of
            samples. The record has this weight, divided by the sum of the weights of the updates
            that it lists.
        start: the model from which the update was trained; None if unknown.
        center: the model into which the update was aggregated; None if unknown. The distance of
            ``update`` from ``center`` is the discrepancy of FlexCFL, as in its published figures;
            its Eq. 3 has the model before the aggregation instead.
        device: ID of the device; None for an update of several devices.
    """

    update: Ref
    weight: float
    start: Ref | None = None
    center: Ref | None = None
    device: int | None = None
