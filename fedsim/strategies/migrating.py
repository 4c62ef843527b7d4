"""Groups whose devices notice when their own data have shifted, and then look for a group again."""

from collections.abc import Iterable, Mapping
from typing import Annotated, ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

from fedsim.federation.client import Instruction
from fedsim.federation.contents import Contents, Header
from fedsim.federation.devices import Device
from fedsim.language.registry import Registry
from fedsim.strategies.clustering.parts import EachRound, ShiftTest, WhenShifted
from fedsim.strategies.grouped import Grouped, GroupedParams
from fedsim.strategies.synchronous import SynchronousClient

Counts = NDArray[np.int64]


def distance(counts: Counts, reference: Counts, metric: ShiftTest) -> float:
    """How far a device's label counts [C] are from its reference, per class.

    ``aligned_l1`` compares label by label. ``sorted_counts`` is the Wasserstein distance of the two count vectors taken as
    samples, as the published code computes it: it does not see labels that change places. For ``oracle`` any distance is far.
    """
    if metric == "oracle":
        return float("inf")
    if metric == "sorted_counts":
        counts, reference = np.sort(counts), np.sort(reference)
    return float(np.abs(counts - reference).sum() / len(counts))


def threshold(first: Counts, share: float) -> float:
    """tau_i = share n_i / C, from the label counts [C] of the device's first data."""
    return share * float(first.sum()) / len(first)


class MigratingParams(GroupedParams):
    """What every strategy with migration takes, besides ``GroupedParams``.

    Attributes:
        moment: when devices choose their group: in each round, and when their data have shifted.
    """

    instead: ClassVar[Mapping[str, str]] = {
        **GroupedParams.instead,
        "dynamic": "moment.shift",
        "shift_metric": "moment.shift",
        "shift_threshold": "moment.shift_threshold",
    }
    usual_shift: ClassVar[ShiftTest] = "never"

    moment: Annotated[WhenShifted, Registry.of("moment", EachRound, usual="each-round")] = EachRound()

    @property
    def shift(self) -> ShiftTest:
        """How devices test themselves for a shift of their data."""
        return self.moment.shift or self.usual_shift


M = TypeVar("M", bound=MigratingParams)


class MigratingClient(SynchronousClient[M]):
    """Notices that its own data have shifted.

    State: ``reference``, the label counts of the data that say which group it belongs to; before there are any, those of its
    first data.
    """

    def settles(self, device: Device, order: Instruction) -> bool:
        """Whether this task says which group the device belongs to."""
        raise NotImplementedError

    def sent(self, device: Device, order: Instruction, reply: Contents) -> None:
        if self.settles(device, order):
            device.state["reference"] = device.used_label_counts.tolist()

    def on_shift(self, device: Device) -> Contents | None:
        if self.params.shift == "never":
            return None
        first = device.first_label_counts
        reference = np.array(device.state["reference"]) if "reference" in device.state else first
        far = distance(device.label_counts, reference, self.params.shift)
        return {"distance": Header(far), "threshold": Header(threshold(first, self.params.moment.shift_threshold))}


class Migrating(Grouped[M]):
    """A strategy with groups that devices leave when their data have shifted (FlexCFL, section 3.4).

    A device whose data have changed compares its label counts with its reference, the counts of its first data. If they are
    too far apart it has to be prepared again, and its present counts become the reference. One that works or is away tests
    itself when it is free or back; one that has just been selected is prepared before it trains. A device that finds its group
    on data that have changed meanwhile tests itself once more. Nothing is sent for a test.

    The test sees label counts only: neither rotated images nor labels permuted among equal counts fire it.
    """

    async def on_shift(self, device: int, contents: Mapping[str, float]) -> None:
        """A device has tested itself: it counts if it has a group that it could leave and does not look for one already."""
        group = self.state["group"][device]
        if group < 0 or self.is_preparing(device):
            return
        fired = bool(contents["distance"] > contents["threshold"])
        measured = {} if self.params.shift == "oracle" else dict(contents)
        self.server.emit("shift-test", device=device, group=group, fired=fired, **measured)
        if fired:
            self.must_prepare(device)

    def settle(self, device: int, group: int, newcomer: str = "cold-start") -> None:
        """A device's group is found."""
        known = self.group_of(device) is not None
        self.move(device, group, "migration" if known else newcomer)

    async def test_again(self, devices: Iterable[int]) -> None:
        """Devices settled by data that they do not hold any more test themselves: they could not do so before."""
        for device in devices:
            await self.server.look_for_shift(device)

    async def _assign(self) -> None:
        devices = [entry["device"] for entry in self.state["prepared"]]
        await super()._assign()
        await self.test_again(devices)
