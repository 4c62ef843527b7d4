"""The phase before a round in which a selection asks candidates, and chooses from their answers."""

from collections.abc import Callable
from typing import Protocol

from fedsim.federation import Contents, Server, TaskEnd
from fedsim.federation.round_result import ModelAssignment
from fedsim.learning.refs import Ref
from fedsim.strategies.parts.selection import QUESTION, Selection
from fedsim.strategies.round_timers import RoundTimer
from fedsim.strategies.state import PartState


class CandidateState(Protocol):
    """Interface of a strategy's state for ``Candidates``: the questions and answers of a round.

    A candidate is a device that is asked a question before the selection chooses.

    Attributes:
        cohort: devices of the round, candidates included.
        candidates: for each call of the selection, its candidates and the greatest count of devices
            to choose from them.
        questions: questions without an answer so far: ID of the task -> device.
        answers: device -> contents of its answer, by name.
        selection: state of the selection.
    """

    cohort: list[int]
    candidates: list[tuple[list[int], int]]
    questions: dict[int, int]
    answers: dict[int, Contents]
    selection: PartState


class Candidates:
    """Dialogue of a selection with candidates: it asks devices a question, then chooses among them.

    Used by strategies in rounds if ``Selection.asks``.

    Args:
        selection: the selection.
        server: API of the strategy's server code.
        state: state of the strategy, which is changed.
    """

    def __init__(self, selection: Selection, server: Server, state: CandidateState) -> None:
        self._selection = selection
        self._server = server
        self._state = state

    def propose(self, devices: list[int], missing: int) -> None:
        """Store which of the selected devices are candidates, in ``state.candidates``.

        ``ask`` sends the question to these devices, and ``reject`` removes the candidates that the
        selection does not choose. The other selected devices join the round without a question.

        Args:
            devices: the devices that ``Selection.select`` has returned.
            missing: wanted count of devices minus the count of ``devices``. Of the candidates,
                ``Selection.choose`` may choose at most their count plus ``missing``, which is
                negative if more devices were selected than are wanted.
        """
        candidates = self._selection.asked_first(self._state.selection, devices)
        if candidates:
            most_chosen = missing + len(candidates)
            self._state.candidates.append((candidates, most_chosen))

    def devices(self) -> list[int]:
        """Return the IDs of all devices that the selection asks in this round before it chooses."""
        devices: list[int] = []
        for candidates, _ in self._state.candidates:
            devices += candidates
        return devices

    def ask(self, models: ModelAssignment, group_of: Callable[[int], int | None]) -> None:
        """Send each candidate the selection's question, with the models that serve the candidate.

        Args:
            models: the models of the strategy and the devices that each serves. A candidate that no
                model serves receives all models.
            group_of: function of a device's ID that returns its group, or None for no group.
        """
        selection = self._selection
        server = self._server
        models_by_device = _models_by_device(models, self.devices())
        for device, device_models in models_by_device.items():
            contents = selection.question(device_models)
            task = server.ask(device, contents, QUESTION, group=group_of(device))
            self._state.questions[task] = device  # open until the device has answered
        if selection.patience_s is not None:  # answers are awaited until this time at the latest
            server.timer(RoundTimer.QUESTIONS, server.now + selection.patience_s)

    def receive(self, message: TaskEnd) -> bool:
        """Store a candidate's answer when its task has ended.

        Args:
            message: the end of the question's task.

        Returns:
            Whether this was the last open question.
        """
        state = self._state
        device = state.questions.pop(message.task)
        if message.outcome == "done":
            state.answers[device] = dict(message.contents)
        if state.questions:
            return False
        self._server.cancel_timer(RoundTimer.QUESTIONS)
        return True

    def end(self) -> None:
        """End the tasks of all open questions as late, when ``Selection.patience_s`` is over."""
        for task in list(self._state.questions):
            self._server.end(task, "late")

    async def reject(self) -> list[int]:
        """Remove from the cohort the candidates that the selection does not choose.

        Devices of the cohort that can no longer be asked are removed too. The stored candidates and
        their answers are then cleared.

        Returns:
            IDs of the removed candidates.
        """
        state = self._state
        for candidates, most_chosen in state.candidates:
            await self._remove_unchosen(candidates, most_chosen)
        # a device may have left while the selection waited for answers
        state.cohort = [device for device in state.cohort if self._server.clients.idle(device)]
        rejected = [device for device in self.devices() if device not in state.cohort]
        state.candidates = []
        state.answers = {}
        return rejected

    async def _remove_unchosen(self, candidates: list[int], most_chosen: int) -> None:
        """Remove from the cohort the candidates that the selection does not choose.

        Args:
            candidates: the candidates that one call of ``Selection.select`` proposed.
            most_chosen: the largest count of candidates that may join the round.
        """
        state = self._state
        answers = {}  # answers of the candidates that can still join the round
        for device in candidates:
            if device in state.answers and self._server.clients.idle(device):
                answers[device] = state.answers[device]
        chosen = await self._selection.choose(self._server, state.selection, most_chosen, answers)
        rejected = set(candidates).difference(chosen)
        state.cohort = [device for device in state.cohort if device not in rejected]


def _models_by_device(models: ModelAssignment, devices: list[int]) -> dict[int, list[Ref]]:
    """Return a dict with the models that serve each device: ID -> models.

    A device that no model serves gets all models.

    Args:
        models: the strategy's models, and the devices that each serves (None: all).
        devices: IDs of the devices.
    """
    models_by_device: dict[int, list[Ref]] = {device: [] for device in devices}
    for model, assigned in models.values():
        served = set(devices)
        if assigned is not None:
            served.intersection_update(assigned)
        for device in served:
            models_by_device[device].append(model)
    all_models = [model for model, _ in models.values()]
    return {device: served_by or all_models for device, served_by in models_by_device.items()}
