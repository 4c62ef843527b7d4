"""A scenario file becomes a run, which is saved and resumed.

Imports all rooms but ``lab`` and ``cli``.
"""
