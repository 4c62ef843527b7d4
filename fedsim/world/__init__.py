"""The simulated world: devices, network, steps, processes, energy and meters.

The package imports ``clock`` and ``common``.
"""
