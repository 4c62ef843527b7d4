"""Figures for papers: vector files in the width of a column, from runs and studies.

Each figure is one file: a function that measures, with a typed result, and one that draws the
result. ``fedsim figures`` writes them.
"""
