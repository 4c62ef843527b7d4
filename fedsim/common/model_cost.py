"""Cost of training a model: arithmetic, memory traffic and memory, independent of the device.

The learning side computes the cost, and the world computes times from it.
"""

from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

Processor = Literal["cpu", "gpu", "arm"]
"""The processor that trains: a server's CPU, a GPU, or a board with ARM cores."""

COLUMNS = 5
"""Count of values per operation.

The values are FLOPs, bytes moved, and bytes of additional passes on a server's CPU. For a board
with ARM cores there are two more: FLOPs of matrix products that take the same time, and bytes of
additional passes.
"""

Operations = NDArray[np.float64]
"""Operations of a pass, float64 [operations, 2 COLUMNS].

Each of the ``COLUMNS`` values is a fixed amount and an amount per sample of the batch.
"""


def operation(fixed: float, a_sample: float, moved: float) -> Operations:
    """Return the cost of an operation that reads and writes its data once, as FLOPs and bytes.

    Args:
        fixed: FLOPs of a batch that do not depend on its count of samples.
        a_sample: additional FLOPs for each sample of the batch.
        moved: bytes read and written for a batch, whatever its count of samples.

    Returns:
        The cost as an ``Operations`` array with one row, float64 [1, 2 COLUMNS]. The bytes of
        additional passes over the data are 0.
    """
    flops = (fixed, a_sample)
    moved_bytes = (moved, 0.0)
    additional_bytes = (0.0, 0.0)
    return np.array([[*flops, *moved_bytes, *additional_bytes, *flops, *additional_bytes]])


@dataclass(frozen=True)
class ModelCost:
    """Cost of an SGD step of a model, from which the step's time and memory on a device follow.

    Attributes:
        forward, backward, update: operations of the forward pass, the backward pass and the
            optimiser's update, float64 [operations, 2 COLUMNS] each. A row describes an operation
            by its FLOPs, the bytes that it moves, and three more values (``COLUMNS``). Each value
            takes two columns: a fixed amount, and an amount per sample of the batch.
        weights: memory of the model's weights (bytes).
        memory: memory of weights, gradients and the optimiser's state during a training (bytes).
        memory_a_sample: memory for each sample of a batch until its backward pass (bytes).
    """

    forward: Operations
    backward: Operations
    update: Operations
    weights: float
    memory: float
    memory_a_sample: float
