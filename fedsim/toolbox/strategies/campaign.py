"""Campaigns, in which many devices each do one task of the same job, outside the rounds."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass, field

from fedsim.federation import Contents, Server, TaskEnd
from fedsim.strategies.state import State

DEADLINE = "campaign-deadline"
"""Name of the timer that ends a campaign."""

_MOST_ATTEMPTS = 3  # maximum count of tasks of one device in a campaign


@dataclass
class CampaignState(State):
    """State of a ``Campaign``, in which many devices each do one task of the same job.

    The strategy's state has it as a field, with which it is saved.

    Attributes:
        job: Name of the open campaign's job; None if no campaign is open.
        open: Open tasks of the campaign, task ID -> device ID.
        waiting: IDs of unavailable devices, which receive their task when they return.
        attempts: Count of tasks that each device has received in the campaign, by device ID.
    """

    job: str | None = None
    open: dict[int, int] = field(default_factory=dict)
    waiting: list[int] = field(default_factory=list)
    attempts: dict[int, int] = field(default_factory=dict)


class Campaign:
    """Campaign: many devices each do one task of the same job, such as a report, outside rounds.

    The strategy opens a campaign with ``begin``, and then calls these methods:

    - ``end``, when a task has ended that belongs to the campaign (``has_task``). A lost task is
      repeated, at most twice for each device.
    - ``resume``, when a device has returned for which the campaign waits (``awaits``). A device
      that was unavailable receives its task then.
    - ``stop``, when the timer ``campaign-deadline`` fires, at the campaign's deadline.

    When all tasks have ended and the campaign waits for no device, it is closed, and calls
    ``on_over``, which may begin another campaign.

    Args:
        server: the run's server.
        state: the campaign's state, a field of the strategy's state.
        contents: function (device ID, job) -> contents of the message that starts the task.
        on_over: async function that is called with the job's name when the campaign has been
            closed.
    """

    def __init__(
        self,
        server: Server,
        state: CampaignState,
        contents: Callable[[int, str], Contents],
        on_over: Callable[[str], Awaitable[None]],
    ) -> None:
        self._server = server
        self._state = state
        self._contents = contents
        self._on_over = on_over

    async def begin(self, job: str, devices: Sequence[int], limit: float | None) -> None:
        """Begin a campaign: send each available device its task.

        Unavailable devices receive their task when they return. The opening is recorded among the
        run's events as ``campaign``.

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
        await self._close_if_over()

    def _ask(self, devices: Iterable[int]) -> None:
        """Send each idle device its task, and wait for the return of all other devices."""
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

    def has_task(self, task: int) -> bool:
        """Return whether the task with ID ``task`` belongs to the open campaign."""
        return task in self._state.open

    async def end(self, message: TaskEnd) -> None:
        """Remove an ended task from the open campaign; a lost task is repeated.

        A device gets at most three tasks in a campaign.

        Args:
            message: the ended task, which must belong to the campaign.
        """
        device = self._state.open.pop(message.task)
        if message.outcome == "lost" and self._state.attempts[device] < _MOST_ATTEMPTS:
            self._ask([device])
        await self._close_if_over()

    def awaits(self, device: int) -> bool:
        """Return whether the campaign waits for a device's return, to send the device its task.

        Args:
            device: ID of the device.
        """
        return device in self._state.waiting

    async def resume(self, device: int) -> None:
        """Send the campaign's task to a device that has returned.

        Args:
            device: ID of the device, for whose return the campaign waited.
        """
        self._state.waiting.remove(device)
        self._ask([device])
        await self._close_if_over()

    async def stop(self) -> None:
        """End the campaign's open tasks as ``late``, such as at the campaign's deadline.

        Devices that have not received their task no longer take part.
        """
        self._state.waiting = []
        for task in list(self._state.open):
            self._server.end(task, "late")
        await self._close_if_over()

    async def _close_if_over(self) -> None:
        """Close the campaign if it has no open task and waits for no device."""
        state = self._state
        if state.open or state.waiting:
            return
        job = state.job
        assert job is not None
        state.job = None
        self._server.cancel_timer(DEADLINE)
        await self._on_over(job)
