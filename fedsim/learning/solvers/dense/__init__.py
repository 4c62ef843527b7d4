"""Dense layers on a processor: gradients in closed form, in compiled loops, one device at a time."""

from fedsim.learning.solvers.dense.solver import Dense

__all__ = ["Dense"]
