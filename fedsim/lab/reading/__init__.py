"""Readers of run folders for comparisons and pictures: histories, targets, fairness and indices."""
