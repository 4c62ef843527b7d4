"""Histories, targets, fairness and the index of a study, read from run folders for comparisons
and pictures.
"""
