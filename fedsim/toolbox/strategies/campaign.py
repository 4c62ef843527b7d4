"""Campaigns, in which many devices do one job once, outside the rounds."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedsim.federation import Contents, Server, TaskEnd
from fedsim.strategies.state import State

DEADLINE = "campaign-deadline"
"""Name of the timer that ends a campaign."""

_MOST_ATTEMPTS = 3  # maximum count of tasks of one device in a campaign


@dataclass
class CampaignState(State):
    """Server state of a ``Campaign``, which checkpoints save."""

    job: str | None = None
    """Name of the open campaign's job; None if no campaign is open."""
    open: dict[int, int] = field(default_factory=dict)
    """Open tasks of the campaign, task ID -> device ID."""
    waiting: list[int] = field(default_factory=list)
    """IDs of unavailable devices, which receive their task when they return."""
    attempts: dict[int, int] = field(default_factory=dict)
    """Count of tasks that each device has received in the campaign, by device ID."""


class Campaign:
    """Campaign in which each of many devices does one task of the same job.

    An unavailable device receives its task when it returns. A lost task is repeated, at most twice.
    The campaign is over when all its tasks have ended, or at its deadline.

    Args:
        server: the run's server.
        state: the campaign's state, a field of the strategy's server state.
        contents: function (device ID, job) -> contents of the message that starts the task.
    """

    def __init__(
        self, server: Server, state: CampaignState, contents: Callable[[int, str], Contents]
    ) -> None:
        self._server = server
        self._state = state
        self._contents = contents

    def begin(self, job: str, devices: Sequence[int], limit: float | None) -> None:
        """Open a campaign, and send each available device its task.

        Args:
            job: name of the job, which devices receive as ``Instruction.job``.
            devices: IDs of the devices that take part.
            limit: time until the campaign's deadline (s); None: no deadline.
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
        """Return whether the task with ID ``task`` belongs to the open campaign."""
        return task in self._state.open

    def end(self, message: TaskEnd) -> None:
        """Close a task of the campaign that has ended, and repeat it if it was lost."""
        device = self._state.open.pop(message.task)
        is_lost = message.outcome in ("lost", "battery")
        if is_lost and self._state.attempts[device] < _MOST_ATTEMPTS:
            self._ask([device])

    def awaits(self, device: int) -> bool:
        """Whether ``device`` (ID) is unavailable, and receives its task when it returns."""
        return device in self._state.waiting

    def resume(self, device: int) -> None:
        """Send its task of the campaign to a device that has returned."""
        self._state.waiting.remove(device)
        self._ask([device])

    def stop(self) -> None:
        """End all open tasks as late, and no longer wait for unavailable devices."""
        self._state.waiting = []
        for task in list(self._state.open):
            self._server.end(task, "late")

    @property
    def is_over(self) -> bool:
        """Whether all of the campaign's tasks have ended."""
        return not (self._state.open or self._state.waiting)

    def close(self) -> str:
        """Close a campaign that is over, and return the name of its job."""
        job = self._state.job
        assert job is not None
        self._state.job = None
        self._server.cancel_timer(DEADLINE)
        return job
