"""Runs and studies side by side: their accuracies and their costs.

``lines`` reads the folders to compare, and ``measures`` computes the figures of a run. ``paired``
has means and intervals over seeds. ``table`` makes rows and columns. ``cells``, ``ranking`` and
``answer`` find the best variant of each world (devices, network and data) and describe it in
sentences. ``published`` and ``figures`` compare a study with papers. ``show`` formats the results.
"""
