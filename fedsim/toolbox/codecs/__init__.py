"""Codecs: numbers in fewer bits, or fewer numbers."""
