"""Local SGD on a processor in closed form: ``dense`` for stacks of dense layers, ``chain`` for those with convolutions too.

``module`` is for modules of a user's own, and for GPUs.
"""
