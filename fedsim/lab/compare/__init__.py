"""Runs and studies side by side: their accuracies and their costs.

``lines`` reads the folders to compare, ``measures`` the figures of a run. ``paired`` has means and intervals over seeds,
``table`` makes rows and columns, ``answer`` sentences, ``text`` writes them for terminals, spreadsheets and Markdown,
``published`` sets them beside papers, and ``show`` does all of it.
"""
