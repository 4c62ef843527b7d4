"""Reading a scenario file, building it into a run, and running, saving and resuming the run.

May import every package of fedsim except ``lab``, ``cli`` and ``deployed``.
"""
