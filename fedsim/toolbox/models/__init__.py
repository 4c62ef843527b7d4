"""Kinds of the table ``model``: models of papers, models of token sequences, and model cards."""
