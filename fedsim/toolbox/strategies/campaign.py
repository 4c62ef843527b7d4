"""Campaigns: a job that many devices do once, outside the rounds."""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from fedsim.federation import Contents, Server, TaskEnd

DEADLINE = "campaign-deadline"
"""Name of the timer that ends a campaign."""

_MOST_ATTEMPTS = 3  # tasks of one device in a campaign


class Campaign:
    """One task each for many devices; devices that are away get theirs on their return.

    A task that is lost is repeated, at most twice. The campaign is over when all its tasks have
    ended, or at its deadline.

    State, in the strategy's: ``campaign``, the job of the open campaign; ``campaign_open``, task ->
    device; ``campaign_waiting``, devices that are away; ``campaign_attempts``, the number of tasks
    of each device.

    Args:
        server: the run's server.
        state: the strategy's state.
        contents: the message to a device (first argument) with a job (second).
    """

    def __init__(
        self, server: Server, state: dict[str, Any], contents: Callable[[int, str], Contents]
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
        self._state |= {"campaign": job, "campaign_open": {}, "campaign_waiting": []}
        self._state["campaign_attempts"] = dict.fromkeys(devices, 0)
        self._server.emit("campaign", what=job, devices=len(devices))
        if limit is not None:
            self._server.timer(DEADLINE, self._server.now + limit)
        self._ask(devices)

    def _ask(self, devices: Iterable[int]) -> None:
        state = self._state
        for device in devices:
            if self._server.clients.idle(device):
                state["campaign_attempts"][device] += 1
                contents = self._contents(device, state["campaign"])
                task = self._server.ask(device, contents, state["campaign"])
                state["campaign_open"][task] = device
            elif self._server.clients.await_return(device):
                state["campaign_waiting"].append(device)

    def runs(self, task: int) -> bool:
        """Whether a task belongs to the open campaign."""
        return task in self._state.get("campaign_open", {})

    def end(self, message: TaskEnd) -> None:
        """One of the tasks has ended; ask its device again if the task was lost."""
        device = self._state["campaign_open"].pop(message.task)
        is_lost = message.outcome in ("lost", "battery")
        if is_lost and self._state["campaign_attempts"][device] < _MOST_ATTEMPTS:
            self._ask([device])

    def awaits(self, device: int) -> bool:
        """Whether a device gets its task on its return."""
        return device in self._state.get("campaign_waiting", [])

    def resume(self, device: int) -> None:
        """Ask a device that has returned."""
        self._state["campaign_waiting"].remove(device)
        self._ask([device])

    def stop(self) -> None:
        """End the campaign's tasks at its deadline, and do not wait for devices that are away."""
        self._state["campaign_waiting"] = []
        for task in list(self._state["campaign_open"]):
            self._server.end(task, "late")

    @property
    def is_over(self) -> bool:
        """Whether all of the campaign's tasks have ended."""
        return not (self._state["campaign_open"] or self._state["campaign_waiting"])

    def close(self) -> str:
        """Close a campaign that is over; its job."""
        job: str = self._state["campaign"]
        self._state["campaign"] = None
        self._server.cancel_timer(DEADLINE)
        return job
