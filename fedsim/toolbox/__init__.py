"""Strategies and parts that a scenario can name beyond the core's.

Imports ``strategies`` and the rooms below it.
"""
