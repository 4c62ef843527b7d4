"""Selections that need more than a draw."""
