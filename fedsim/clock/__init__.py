"""One simulated clock on SimPy, and real work that is computed while the clock stands still.

Imports ``common``.
"""
