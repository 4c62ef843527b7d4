"""The cost of training a model, independent of the device: arithmetic, memory traffic, and memory.

The learning side counts it, the world turns it into time.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Processor = Literal["cpu", "gpu", "arm"]
"""The processor that trains: a server's CPU, a GPU, or a board with ARM cores."""

COLUMNS = 5
"""Numbers of an operation: FLOPs, bytes moved, and bytes of further passes on a server's CPU; and
for a board with ARM cores, FLOPs of matrix products that take as long, and bytes of further
passes.
"""

Operations = NDArray[np.float64]
"""One row per operation, [operations, 2 COLUMNS]: each number as a fixed amount and an amount
per sample of the batch.
"""


def operation(fixed: float, a_sample: float, moved: float) -> Operations:
    """One operation, without further passes over its data.

    Args:
        fixed: FLOPs of a batch.
        a_sample: FLOPs of a sample.
        moved: bytes moved, per batch.
    """
    return np.array([[fixed, a_sample, moved, 0.0, 0.0, 0.0, fixed, a_sample, 0.0, 0.0]])


@dataclass(frozen=True)
class ModelCost:
    """The cost of one SGD step on a batch.

    Attributes:
        forward, backward, update: operations of the forward pass, the backward pass and the
            optimiser.
        weights: bytes of the model itself.
        memory: bytes that training holds for weights, gradients and the optimiser's state.
        memory_a_sample: bytes kept for each sample of a batch until its backward pass.
    """

    forward: Operations
    backward: Operations
    update: Operations
    weights: float
    memory: float
    memory_a_sample: float
