"""Energy from plugs and batteries: watts by device and phase, batteries that run flat, the
carbon of a grid.
"""
