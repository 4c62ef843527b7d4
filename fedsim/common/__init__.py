"""Errors, files, units, registries and random streams, which every room uses.

Imports no other room, and knows no time.
"""
