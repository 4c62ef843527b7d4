"""``[malicious]``: devices that attack by false labels or updates.

The strategy's code does not notice the attack, neither on the server nor on devices.
"""

from typing import Annotated, Any, Self

import numpy as np
from pydantic import Field, model_validator

from fedsim.common.errors import ScenarioError
from fedsim.common.kind_field import KindField
from fedsim.common.registry import Registry
from fedsim.common.spec import Spec
from fedsim.common.streams import Streams

_TOOLS = "fedsim.toolbox.attacks"
ATTACKS = Registry(
    "attack",
    f"{_TOOLS}:Attack",
    {
        "label-flip": (
            f"{_TOOLS}:LabelFlip",
            "training labels are turned around: l becomes C - 1 - l",
        ),
        "sign-flip": (f"{_TOOLS}:SignFlip", "the change goes the other way"),
        "gaussian": (f"{_TOOLS}:Gaussian", "noise instead of a change"),
        "scaled": (f"{_TOOLS}:Scaled", "the change is many times as long"),
    },
    usual="label-flip",
    key="malicious.attack",
)


class MaliciousSpec(Spec):
    """``[malicious]``: which devices attack, and how.

    Attributes:
        attack: the attack: a kind, or a table with a ``kind``.
        share: share (0..1) of all devices that attack, including devices that join later. The first
            devices of a random order attack, so that a larger share adds devices to the
            devices of a smaller share.
        devices: IDs of the devices that attack, in place of a ``share``.
    """

    attack: Annotated[Any, KindField(ATTACKS)]
    share: float | None = Field(default=None, ge=0.0, le=1.0)
    devices: list[int] | None = None

    @model_validator(mode="after")
    def _check_share_or_devices(self) -> Self:
        if (self.share is None) == (self.devices is None):
            raise ValueError(
                "'share' and 'devices' both say which devices are malicious; give one of them"
            )
        return self

    def check(self, devices: int) -> None:
        """Check that the malicious devices exist.

        Args:
            devices: count of devices in the population.

        Raises:
            ScenarioError: an ID in ``malicious.devices`` belongs to no device.
        """
        for device in self.devices or ():
            if not 0 <= device < devices:
                raise ScenarioError(
                    f"malicious.devices has {device}; allowed are 0 to {devices - 1}"
                )

    def members(self, streams: Streams, devices: int) -> list[int]:
        """Return the IDs of the malicious devices, ascending.

        If ``share`` is given, the devices are drawn from the stream ``world/malicious``.

        Args:
            streams: random streams of the run's seed.
            devices: count of devices in the population.
        """
        if self.devices is not None:
            return sorted(set(self.devices))
        order = streams.generator("world/malicious").permutation(devices)
        count = round((self.share or 0.0) * devices)
        members: list[int] = np.sort(order[:count]).tolist()
        return members
