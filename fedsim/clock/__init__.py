"""Simulated clock on SimPy, and executors of real work, for which the clock stands still.

The package imports ``common``.
"""
