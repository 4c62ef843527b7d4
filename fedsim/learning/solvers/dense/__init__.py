"""Dense layers on a processor, one device at a time: gradients in closed form, in compiled loops where a step is small."""

from fedsim.learning.solvers.dense.solver import Dense, Way

__all__ = ["Dense", "Way"]
