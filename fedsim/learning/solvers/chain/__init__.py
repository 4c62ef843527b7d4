"""Layers with convolutions, trained in closed form on a CPU."""

from fedsim.learning.solvers.chain.solver import Chain

__all__ = ["Chain"]
