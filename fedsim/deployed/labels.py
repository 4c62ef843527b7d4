"""Label counts of a device's data, by which the device notices that its data have changed."""

from collections.abc import Mapping

import numpy as np

from fedsim.common.arrays import Ints

USED = 1
"""Version of the data of the device's last task, for ``LabelHistory.of_version``."""


class LabelHistory:
    """Class counts of a deployed device's data, now and at earlier tasks; int64 [classes] each.

    The data may change between tasks, and an answer may be lost, so that the strategy on the server
    knows older counts.

    Args:
        present: counts of the data that the device has now.

    Attributes:
        first: counts at the device's first task.
        used: counts at the device's last task.
        reported: counts at the last task whose answer reached the server.
    """

    def __init__(self, present: Ints) -> None:
        self._present = present
        self.first = present
        self.used = present
        self.reported = present

    @property
    def has_changed(self) -> bool:
        """Whether the counts by class have changed since the last task whose answer has arrived."""
        return not np.array_equal(self._present, self.reported)

    def of_version(self, device: int, version: int | None) -> Ints:
        """Return the device's counts of samples by class in a version of its data; int64 [classes].

        Args:
            device: ID of the device; not used, as a history is of one device.
            version: None for the present data, ``USED`` for the data in its last task, or 0 for the
                data in its first task.
        """
        if version is None:
            return self._present
        if version == USED:
            return self.used
        return self.first

    def restore(self, counts: Mapping[str, Ints], *, has_arrived: bool) -> None:
        """Restore the history that ``snapshot`` returned after the device's last task.

        Args:
            counts: the result of ``snapshot``; empty before the first task.
            has_arrived: whether the answer of the last task has arrived.
        """
        self.first = counts.get("first", self._present)
        self.used = counts.get("used", self._present)
        self.reported = self.used if has_arrived else counts.get("reported", self._present)

    def snapshot(self) -> dict[str, Ints]:
        """Return the history after a task, to be restored in the device's next task."""
        return {"first": self.first, "used": self._present, "reported": self.reported}
