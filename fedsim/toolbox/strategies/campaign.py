"""Campaigns: a job that many devices do once, outside the rounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedsim.federation import Contents, Server, TaskEnd
from fedsim.strategies.state import State

DEADLINE = "campaign-deadline"
"""Name of the timer that ends a campaign."""

_MOST_ATTEMPTS = 3  # tasks of one device in a campaign


@dataclass
class CampaignState(State):
    """Memory of a ``Campaign``."""

    job: str | None = None
    """The job of the open campaign; None if none is open."""
    open: dict[int, int] = field(default_factory=dict)
    """Open tasks, task -> device."""
    waiting: list[int] = field(default_factory=list)
    """Devices that are away, and get their task on their return."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Number of tasks of each device."""


class Campaign:
    """One task each for many devices; devices that are away get theirs on their return.

    A task that is lost is repeated, at most twice. The campaign is over when all its tasks have
    ended, or at its deadline.

    Args:
        server: the run's server.
        state: its memory, in the strategy's.
        contents: the message to a device (first argument) with a job (second).
    """

    def __init__(
        self, server: Server, state: CampaignState, contents: Callable[[int, str], Contents]
    ) -> None:
        self._server = server
        self._state = state
        self._contents = contents

    def begin(self, job: str, devices: Sequence[int], limit: float | None) -> None:
        """Open a campaign, and ask the devices.

        Args:
            job: the job, ``Instruction.job`` on the devices.
            devices: the devices.
            limit: time until the deadline (s); None: without one.
        """
        self._state.job = job
        self._state.attempts = dict.fromkeys(devices, 0)
        self._server.emit("campaign", what=job, devices=len(devices))
        if limit is not None:
            self._server.timer(DEADLINE, self._server.now + limit)
        self._ask(devices)

    def _ask(self, devices: Iterable[int]) -> None:
        state = self._state
        assert state.job is not None
        for device in devices:
            if self._server.clients.idle(device):
                state.attempts[device] += 1
                contents = self._contents(device, state.job)
                task = self._server.ask(device, contents, state.job)
                state.open[task] = device
            elif self._server.clients.await_return(device):
                state.waiting.append(device)

    def runs(self, task: int) -> bool:
        """Whether a task belongs to the open campaign."""
        return task in self._state.open

    def end(self, message: TaskEnd) -> None:
        """Take in the end of one of the tasks; repeat the task if it was lost."""
        device = self._state.open.pop(message.task)
        is_lost = message.outcome in ("lost", "battery")
        if is_lost and self._state.attempts[device] < _MOST_ATTEMPTS:
            self._ask([device])

    def awaits(self, device: int) -> bool:
        """Whether a device gets its task on its return."""
        return device in self._state.waiting

    def resume(self, device: int) -> None:
        """Ask a device that has returned."""
        self._state.waiting.remove(device)
        self._ask([device])

    def stop(self) -> None:
        """End the campaign's tasks at its deadline, and do not wait for devices that are away."""
        self._state.waiting = []
        for task in list(self._state.open):
            self._server.end(task, "late")

    @property
    def is_over(self) -> bool:
        """Whether all of the campaign's tasks have ended."""
        return not (self._state.open or self._state.waiting)

    def close(self) -> str:
        """Close a campaign that is over, and return its job."""
        job = self._state.job
        assert job is not None
        self._state.job = None
        self._server.cancel_timer(DEADLINE)
        return job
