"""Readers of run folders for comparisons and figures: histories, targets, fairness, indices."""
