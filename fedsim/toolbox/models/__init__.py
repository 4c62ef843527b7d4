"""Kinds of ``model``: models of papers, models of tokens, and models described by a card."""
