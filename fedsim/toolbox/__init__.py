"""Strategies and parts that scenarios can name in addition to the core's.

Imports ``strategies`` and the packages that ``strategies`` imports.
"""
