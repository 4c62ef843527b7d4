"""CATA-Fed on the devices: as many epochs as fit, and splitting one's data when it is too much (straggler mitigation, SMS)."""

from collections.abc import Sequence

from fedsim.federation.client import Done, Order
from fedsim.federation.contents import Contents, Free
from fedsim.federation.devices import Device
from fedsim.strategies.cata_fed.params import CataFedParams
from fedsim.strategies.synchronous import SynchronousClient
from fedsim.training import Limit, Part, Training
from fedsim.world.task import Evaluate, Train


def most_splits(samples: int, smallest_part: int) -> int:
    """beta = floor(log2(|D| / pi)), at least 0: how often |D| samples may be halved (Eq. 10)."""
    return max(0, (samples // smallest_part).bit_length() - 1)


class CataFedClient(SynchronousClient[CataFedParams]):
    """Connects, trains on the part of its data whose turn it is, and splits them when not one epoch is finished in time.

    State: ``splits`` (u), how often it has halved its data; ``selected`` (n), how often it was selected; both since it
    connected.
    """

    params: CataFedParams

    def work(self, device: Device, order: Order) -> Sequence[Train | Evaluate]:
        """Begin again, with all data in one piece; or train."""
        if order.job == "connect":
            device.state.update(splits=0, selected=0)
            return ()
        device.state["selected"] += 1
        return super().work(device, order)

    def training(self, device: Device, order: Order) -> Training:
        """On the part x = 1 + n mod 2^u (Eq. 12); on everything before any split."""
        params, (splits, selected) = self.params, self._counts(device)
        part = Part(splits, 1 + selected % 2**splits, device.samples) if splits else None
        return Training(order["model"], params.most_epochs if params.adaptive else params.local_epochs, part=part)

    def limit(self, device: Device, order: Order) -> Limit:
        """As many epochs as fit, or exactly so many; a straggler goes on to its answer with nothing trained."""
        params = self.params
        reserve = device.upload_bytes({"update": order["model"], "control": 1}) if params.reserve_upload else 0.0
        at_least = 1 if params.adaptive else params.local_epochs
        return Limit(None, order["control"], reserve, params.adaptive, at_least, go_on=True)

    def reply(self, device: Device, order: Order, done: Done) -> Contents:
        """The size of the largest part on connection; update and flag; or the flag, and the size when the data were split."""
        params = self.params
        if order.job == "connect":
            return {"size-report": self._sizes(device)[0]}
        if done.update is not None:
            return {"update": done.update, "control": 1, "samples": Free(done.samples)}
        unchanged = {"unchanged-model": order["model"]} if params.straggler_upload == "model" else {}
        splits, _ = self._counts(device)
        if not params.mitigation or splits >= most_splits(device.samples, params.smallest_part):
            return {**unchanged, "control": 0}
        device.state["splits"] = splits + 1
        sizes = self._sizes(device)
        return {**unchanged, "control": 0, "size-report": sizes[0], "parts": Free(sizes)}

    def _counts(self, device: Device) -> tuple[int, int]:
        return device.state["splits"], device.state["selected"]

    def _sizes(self, device: Device) -> list[int]:
        """The sizes of all parts, the largest first."""
        splits, _ = self._counts(device)
        return [Part(splits, number, device.samples).samples for number in range(1, 2**splits + 1)]
