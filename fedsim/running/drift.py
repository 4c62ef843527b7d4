"""Timing of data shifts during a run; ``learning.data.shifts`` implements the shifts."""

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, TypedDict

import numpy as np
from numpy.typing import NDArray

from fedsim.clock.simulation import on_grid
from fedsim.federation.notices import NoticeKind
from fedsim.learning.data.shifts import ShiftSpec

if TYPE_CHECKING:
    from fedsim.federation.dispatch import Dispatch
    from fedsim.learning.data.federated import FederatedData


class DriftState(TypedDict):
    """State of ``Drift``, the part that shifts devices' data, in a checkpoint.

    Attributes:
        begun: index of the last round that has begun.
        candidates: for each past shift, the IDs of the devices from which the shift chose, int64
            [n].
    """

    begun: int
    candidates: list[NDArray[np.int64]]


class Drift:
    """Part of a run that changes devices' data at the rounds or times given by ``[drift]``.

    Scenarios with equal seeds have equal random draws of shifts, whatever their strategies.

    Args:
        spec: the section ``[drift]``.
        data: the data of all devices.
        dispatch: the server's side of the run, which passes notifications to the strategy.
        present: returns which devices have arrived and not left, bool [devices]; None if all are
            always present.
    """

    def __init__(
        self,
        spec: ShiftSpec,
        data: "FederatedData",
        dispatch: "Dispatch",
        present: Callable[[], NDArray[np.bool_] | None],
    ) -> None:
        self._spec = spec
        self._data = data
        self._dispatch = dispatch
        self._present = present  # which devices have arrived and not left; None for all
        # for each past shift, the IDs of the devices from which the shift chose
        self._past_candidates: list[NDArray[np.int64]] = []
        self._last_round = -1  # index of the last round that has begun
        dispatch.simulation.env.declare_alarm("drift", self._set_alarm)
        self._schedule_shift(index=0)

    def begin_round(self, number: int) -> None:
        """Apply the shift of data that is due at the start of a round, if any.

        Repeated calls for one round do nothing.

        Args:
            number: index of the round, from 0.
        """
        if number > self._last_round:
            self._last_round = number
            if self._spec.at.has_round(number):
                self._shift()

    def _schedule_shift(self, index: int) -> None:
        """Set the alarm of the shift at the ``index``-th time that ``[drift]`` gives, if any.

        Args:
            index: index of the time, from 0. Nothing is done if there are fewer times.
        """
        when = self._spec.at.time(index)
        if when is not None:
            self._set_alarm(index, on_grid(when))

    def _set_alarm(self, index: int, when: float) -> None:
        self._dispatch.simulation.wake(("drift", index), when, partial(self._on_alarm, index))

    def _on_alarm(self, index: int) -> None:
        self._shift()
        self._schedule_shift(index + 1)

    def _shift(self) -> None:
        """Change the data of some devices now; record the changes, and notify the strategy."""
        dispatch = self._dispatch
        occasion = len(self._past_candidates)  # index of this shift
        candidates = self._candidates()
        self._past_candidates.append(candidates)
        changes = self._spec.apply(self._data, occasion, candidates, dispatch.streams)
        for change in changes:
            shard = self._data.shard(change.device, change.version)
            dispatch.learner.check_sizes({change.device: len(shard.train)})
            dispatch.population.shift(change.device, change.version, len(shard.train))
            dispatch.learner.shift(change.device, change.version)
            fields: dict[str, object] = {"what": self._spec.kind, "occasion": occasion}
            if change.partner is not None:  # the device exchanges data with another device
                fields["partner"] = change.partner
            dispatch.simulation.record("shift", {"device": change.device, **fields})
        for change in changes:
            dispatch.notices.notify(NoticeKind.SHIFT, change.device)

    def _candidates(self) -> NDArray[np.int64]:
        """Return the devices from which a data shift may choose; int64, ascending IDs.

        They are the devices that have arrived and not left. With ``among = "selected"`` devices
        that the server has never selected are left out.
        """
        device_count = len(self._dispatch.population.speed)
        candidates = np.ones(device_count, dtype=np.bool_)
        present = self._present()
        if present is not None:
            candidates = present.copy()
        if self._spec.among == "selected":
            selected = np.zeros_like(candidates)
            selected[list(self._dispatch.tasks.times_selected)] = True
            candidates &= selected
        return np.flatnonzero(candidates)

    def snapshot(self) -> DriftState:
        """Return the state to save; together with the seed it determines all past shifts."""
        return {"begun": self._last_round, "candidates": self._past_candidates}

    def restore(self, state: DriftState) -> None:
        """Apply all past shifts to the data again, without records and messages.

        The caller sets the alarms of future shifts.

        Args:
            state: the saved state.
        """
        self._last_round = state["begun"]
        self._past_candidates = state["candidates"]
        dispatch = self._dispatch
        for occasion, candidates in enumerate(self._past_candidates):
            changes = self._spec.apply(self._data, occasion, candidates, dispatch.streams)
            for change in changes:
                dispatch.learner.shift(change.device, change.version)
