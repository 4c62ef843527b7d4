"""Dense layers, many devices at once: gradients in closed form on stacked weights, in place."""

from fedsim.learning.solvers.dense.layout import padded
from fedsim.learning.solvers.dense.solver import Dense

__all__ = ["Dense", "padded"]
