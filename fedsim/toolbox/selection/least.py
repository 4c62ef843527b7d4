"""Selections of the clients that were asked least often, or available least often."""

from dataclasses import dataclass, field
from heapq import nsmallest
from typing import Literal

from fedsim.federation import Server, TaskEnd
from fedsim.strategies.parts.selection import Among, Ids, Selection
from fedsim.strategies.state import State


@dataclass
class LeastAskedState(State):
    """State of the selection ``least-asked``: how often each device was selected.

    Attributes:
        asked: Device ID -> how many times the device was asked.
    """

    asked: dict[int, int] = field(default_factory=dict)


class LeastAsked(Selection):
    """The available clients that were selected least often before, ties at random.

    Each selection examines every available device, which takes O(population) time.
    """

    kind: Literal["least-asked"] = "least-asked"
    State = LeastAskedState

    def select(
        self,
        server: Server,
        state: LeastAskedState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Select the available devices that were asked least often, and count that they are asked.

        Args:
            server: the run's server.
            state: the selection's memory, with the count for each device.
            count: largest count of clients.
            ids: the index of the round, and further numbers; they name the random stream.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            At most ``count`` device IDs.
        """
        counts = state.asked
        # a sample of all, in random order: of equal counts ``nsmallest`` takes the first
        shuffled = server.clients.sample(server.devices, "select", *ids, among=among)
        devices = nsmallest(count, shuffled, lambda device: counts.get(device, 0))
        for device in devices:
            counts[device] = counts.get(device, 0) + 1
        return devices


@dataclass
class LeastAvailableState(State):
    """State of the selection ``least-available``: in how many rounds each device was available.

    Attributes:
        availability: Device ID -> (first round in which the device was available or had a task,
            count of such rounds).
        at_work: IDs of the devices that have a task.
        counted: Index of the last round that ``availability`` includes; -1 before the first.
    """

    availability: dict[int, tuple[int, int]] = field(default_factory=dict)
    at_work: list[int] = field(default_factory=list)
    counted: int = -1


class LeastAvailable(Selection):
    """The available clients that were available least often before, ties at random.

    Source: Abdelmoniem et al., "REFL: resource-efficient federated learning" (EuroSys 2023),
    section 4.1. In the paper a device forecasts whether it will be available one round later. Here
    the server computes the share of rounds in which a device was available or carried out a task,
    since the first such round of the device, and selects the devices with the smallest shares. Each
    selection examines every device, which takes O(population) time.
    """

    kind: Literal["least-available"] = "least-available"
    State = LeastAvailableState

    def select(
        self,
        server: Server,
        state: LeastAvailableState,
        count: int,
        ids: Ids,
        among: Among = None,
    ) -> list[int]:
        """Select the devices that were available in the smallest share of rounds so far.

        At the first call in a round, the round is added to the counts of the devices that are
        available or have a task.

        Args:
            server: the run's server.
            state: the selection's memory, with the counts of rounds.
            count: largest count of clients.
            ids: the index of the round, and further numbers; they name the random stream.
            among: IDs of the devices to select from; None: all devices.

        Returns:
            At most ``count`` IDs of available devices.
        """
        round_number = ids[0]
        availability = state.availability
        if state.counted != round_number:  # a round may select several times
            state.counted = round_number
            for device in (*server.clients.idle_devices(), *state.at_work):
                first_round, rounds = availability.get(device, (round_number, 0))
                availability[device] = (first_round, rounds + 1)

        def available_share(device: int) -> float:
            # A device without an entry became available after the round was counted.
            first_round, rounds = availability.get(device, (round_number, 1))
            return float(rounds / (round_number - first_round + 1))

        # a sample of all, in random order: of equal shares ``nsmallest`` takes the first
        shuffled = server.clients.sample(server.devices, "select", *ids, among=among)
        devices = nsmallest(count, shuffled, available_share)
        state.at_work += devices
        return devices

    def on_task_end(self, server: Server, state: LeastAvailableState, message: TaskEnd) -> None:
        if message.device in state.at_work:
            state.at_work.remove(message.device)
