"""Base of strategies in which a device may change its group when its data shift.

A shift is a change of the device's data during the run.
"""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, TypeVar

import numpy as np

from fedsim.common import former_keys
from fedsim.common.arrays import Ints
from fedsim.common.former_keys import Former
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.federation import Contents, Device, Header, Instruction
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.toolbox.clustering.moments import EachRound, ShiftTest, WhenShifted
from fedsim.toolbox.strategies.grouped import COLD_START, NO_GROUP, Grouped, GroupedParams


def distance(counts: Ints, reference: Ints, metric: ShiftTest) -> float:
    """Compute how far a device's label counts are from its earlier counts (FlexCFL, Eq. 9).

    With the counts c and r below and C classes, ``aligned_l1`` is the mean of |c_k - r_k| over the
    classes k. ``sorted_counts`` is this mean after both count vectors are sorted, which is the
    Wasserstein distance of the two vectors taken as samples, as in the published code. For
    ``oracle``, by which each change of the data counts, the distance is infinite.

    Args:
        counts: c, the present sample count of each class, int64 [C].
        reference: r, the sample count of each class when the device found its group, int64 [C].
        metric: name of the distance; not ``never``.

    Returns:
        The distance, in samples per class.
    """
    if metric == "oracle":
        return float("inf")
    if metric == "sorted_counts":
        counts = np.sort(counts)
        reference = np.sort(reference)
    return float(np.abs(counts - reference).sum() / len(counts))


class MigratingParams(GroupedParams):
    """Keys of ``[strategy]`` for strategies in which a device may change its group.

    It may do so in each round, or when its data have shifted.

    Attributes:
        moment: when devices choose their group, such as in each round (``each-round``); its
            ``shift`` is the test for a change of their data, after which they choose again.
    """

    instead: ClassVar[Former] = {**GroupedParams.instead, **former_keys.MIGRATION}
    moment: Annotated[
        WhenShifted, KindField(Registry.of("moment", EachRound, usual="each-round"))
    ] = EachRound()

    @property
    def usual_shift(self) -> ShiftTest:
        return "never"

    @property
    def shift(self) -> ShiftTest:
        """Test by which devices detect a shift, a change of their data during the run.

        It is the key ``strategy.moment.shift``; if this key is missing, the strategy's default.
        """
        return self.moment.shift or self.usual_shift


M = TypeVar("M", bound=MigratingParams)


class MigratingClient(SynchronousClient[M]):
    """Client that reports how far its label counts have shifted since it found its group.

    Entries of a device's state: ``reference``, the label counts of the data with which the device
    found its group.
    """

    def settles(self, device: Device, instruction: Instruction) -> bool:
        """Return whether a task is one by which a device finds its group.

        The device's label counts in such a task are stored as ``reference`` in its state. Later
        label counts are compared with them.

        Args:
            device: the device on which this code runs, with its data and its state.
            instruction: the message that has started the task.
        """
        raise NotImplementedError

    def on_sent(self, device: Device, instruction: Instruction, reply: Contents) -> None:
        if self.settles(device, instruction):
            device.state["reference"] = device.used_label_counts.tolist()

    def on_shift(self, device: Device) -> Contents | None:
        if self.params.shift == "never":
            return None
        first_counts = device.first_label_counts
        reference = np.array(device.state.get("reference", first_counts))
        shift = distance(device.label_counts, reference, self.params.shift)
        # tau_i of FlexCFL, Eq. 9
        threshold = 0.2 * float(first_counts.sum()) / len(first_counts)
        return {"distance": Header(shift), "threshold": Header(threshold)}


class Migrating(Grouped[M]):
    """Base of strategies in which a device may change its group when its data shift.

    A shift is a change of the device's data during the run. As soon as a device whose data have
    changed is idle, it compares its label counts with a reference, its label counts when it found
    its group. This takes no time and no bytes (FlexCFL, section 3.4). If the distance is too large,
    the device repeats its preparation, the task by which its group is found, and its present label
    counts become the reference. A change of its data during the preparation is tested after the
    preparation.
    """

    async def on_shift(self, device: int, contents: Mapping[str, float]) -> None:
        """Make a device find its group anew if its label counts have changed too much.

        Called when the device reports a change of its data, as a distance from the label counts
        with which it found its group. The report and its result are recorded among the run's events
        as ``shift-test``. If the distance is larger than the report's threshold, the device repeats
        its preparation, the task that finds its group. A device without a group, or in its
        preparation, is left as it is.

        Args:
            device: ID of the device.
            contents: the device's report, with ``distance`` and ``threshold`` (samples per class).
        """
        group = self.state.group[device]
        if group == NO_GROUP or self.is_preparing(device):
            return
        is_too_far = bool(contents["distance"] > contents["threshold"])
        measured: dict[str, float] = {}
        if self.params.shift != "oracle":  # with ``oracle`` the distance is always infinite
            measured = dict(contents)
        self.server.emit("shift-test", device=device, group=group, fired=is_too_far, **measured)
        if is_too_far:
            self.require_preparation(device)

    def settle(self, device: int, group: int, newcomer: str = COLD_START) -> None:
        """Assign a device to a group at the end of the task by which it has found the group.

        Args:
            device: ID of the device.
            group: index of the group.
            newcomer: the reason in the record ``assign`` of the run's events, if the device had no
                group before. If it had one, the reason is ``migration``.
        """
        is_newcomer = self.group_of(device) is None
        self.move(device, group, why=newcomer if is_newcomer else "migration")

    async def test_for_shifts(self, devices: Iterable[int]) -> None:
        """Make devices test whether their data have changed since they found their group.

        Called after the devices were assigned to groups, as their data may have changed between
        the task that found the group and the assignment. A device with a large change finds its
        group anew (``on_shift``).

        Args:
            devices: device IDs.
        """
        for device in devices:
            await self.server.clients.look_for_shift(device)

    async def _assign_prepared(self) -> None:
        devices = [preparation.device for preparation in self.state.prepared]
        await super()._assign_prepared()
        await self.test_for_shifts(devices)
