"""Readers of run and study folders, for comparisons and figures."""
