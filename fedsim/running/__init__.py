"""Reading a scenario file, building it into a run, and running, saving and resuming the run.

Imports all rooms but ``lab`` and ``cli``.
"""
