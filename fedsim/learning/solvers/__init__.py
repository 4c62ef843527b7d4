"""Local SGD on a processor in closed form: ``dense`` for dense layers alone, ``chain`` for those with convolutions between too.

``module`` is for modules of a user's own, and for GPUs.
"""
