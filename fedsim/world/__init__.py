"""The simulated world: devices, network, steps, processes, energy and meters.

Imports ``clock`` and ``common``.
"""
