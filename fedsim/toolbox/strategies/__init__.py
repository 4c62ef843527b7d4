"""Strategies, a file for each."""
