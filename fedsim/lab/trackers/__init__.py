"""Exports of run folders to experiment trackers and trace viewers."""
