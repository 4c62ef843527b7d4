"""The cost of training a model, independent of the device: arithmetic, memory traffic, and memory.

The learning side counts it, the world turns it into time; neither knows the other.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Operations = NDArray[np.float64]
"""One row per operation, [operations, 6]: FLOPs, bytes moved, bytes of further passes on a CPU; each as a fixed amount and an
amount per sample of the batch."""


@dataclass(frozen=True)
class ModelCost:
    """The operations of one SGD step on a batch.

    Attributes:
        forward, backward, update: those of the forward pass, the backward pass and the optimiser.
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

    @classmethod
    def of_size(cls, weights: float, flops_a_sample: float, *, momentum: bool) -> "ModelCost":
        """The cost of a model with a known size (bytes) and known FLOPs of a training step on a sample.

        A step reads the weights twice, writes the gradients once, and reads and writes what the optimiser touches.
        """
        forward = np.array([[0.0, flops_a_sample / 3, weights, 0.0, 0.0, 0.0]])
        backward = np.array([[0.0, flops_a_sample * 2 / 3, 2 * weights, 0.0, 0.0, 0.0]])
        update = np.array([[weights / 2, 0.0, (8.0 if momentum else 3.0) * weights, 0.0, 0.0, 0.0]])
        return cls(forward, backward, update, weights, (3.0 if momentum else 2.0) * weights, 0.0)
