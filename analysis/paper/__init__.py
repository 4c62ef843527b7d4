"""Figures for papers: vector files in the width of a column, from runs and studies.

Each kind of figure has a module, with a function that computes the numbers and a function that
draws them. ``fedsim figures`` writes the figures.
"""
