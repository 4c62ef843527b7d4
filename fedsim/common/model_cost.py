"""The cost of training a model, independent of the device: arithmetic, memory traffic, and memory.

The learning side counts it, the world turns it into time.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Processor = Literal["cpu", "gpu", "arm"]
"""What trains: a server's CPU, a GPU, or a board with ARM cores."""

COLUMNS = 5
"""Numbers of an operation: FLOPs, bytes moved, bytes of further passes on a server's CPU; FLOPs
of matrix products that take as long on a board with ARM cores, and bytes of further passes
there.
"""

Operations = NDArray[np.float64]
"""One row per operation, [operations, 2 COLUMNS]: each number as a fixed amount and an amount
per sample of the batch.
"""


def operation(fixed: float, a_sample: float, moved: float) -> Operations:
    """One operation of so many FLOPs, a fixed amount and one a sample, that moves so many bytes
    once.
    """
    return np.array([[fixed, a_sample, moved, 0.0, 0.0, 0.0, fixed, a_sample, 0.0, 0.0]])


@dataclass(frozen=True)
class ModelCost:
    """The operations of one SGD step on a batch: of the forward pass, the backward pass and the
    optimiser.
    """

    forward: Operations
    backward: Operations
    update: Operations
    weights: float
    """bytes of the model itself."""
    memory: float
    """bytes that training holds for weights, gradients and the optimiser's state."""
    memory_a_sample: float
    """bytes kept for each sample of a batch until its backward pass."""
