"""Errors, files, units, registries and random streams, which all packages of fedsim use.

The package imports no other package of fedsim, and does not depend on simulated time.
"""
