"""Runs and studies side by side: their accuracies and their costs.

``lines`` reads the folders to compare, ``measures`` the figures of a run. ``paired`` has means and
intervals over seeds, ``table`` makes rows and columns, ``answer`` sentences, ``published`` sets
them beside papers, and ``show`` writes all of it.
"""
