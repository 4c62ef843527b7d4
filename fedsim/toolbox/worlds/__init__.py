"""Kinds of ``population``, ``network`` and ``world``: availability, traces, clouds, outages.

Each kind is a model of devices or links that a scenario can name.
"""
