"""Simulated clock on SimPy, and executors of real computations, during which the clock stops.

The package imports ``common``.
"""
