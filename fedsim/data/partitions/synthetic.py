"""How many samples each device of the synthetic source has."""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from fedsim.data.dataset import Dataset, Normalise
from fedsim.data.federated import FederatedData
from fedsim.data.partitions.base import Partition, cut, hold_out_tenths
from fedsim.streams import Streams


class SyntheticSizes(Partition):
    """int(lognormal(``log_mean``, ``log_std``)) + ``least`` samples a device, of which a tenth is held back for testing.

    Goes with the source ``synthetic`` only, which draws each device's samples for it (code of FedProx).

    Attributes:
        log_mean, log_std: of the logarithm of the size.
        least: added to every size.
    """

    kind: Literal["synthetic"] = "synthetic"
    usual_normalise: ClassVar[Normalise] = "none"

    log_mean: float = Field(default=4.0, ge=0.0, le=10.0)
    log_std: float = Field(default=2.0, ge=0.0, le=3.0)
    least: int = Field(default=50, ge=2, le=1_000_000_000)

    def sizes(self, devices: int, streams: Streams) -> NDArray[np.int64]:
        """Samples of each device, int64 [devices]."""
        draws = streams.generator("world/data/sizes").lognormal(self.log_mean, self.log_std, devices)
        return draws.astype(np.int64) + self.least

    def split(self, dataset: Dataset, devices: int, streams: Streams) -> FederatedData:
        """Cut a data set that was drawn in ``sizes``, device after device."""
        return hold_out_tenths(dataset, cut(dataset.all, self.sizes(devices, streams)), streams)
