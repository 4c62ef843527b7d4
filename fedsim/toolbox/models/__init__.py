"""Kinds of the table ``model``: models of papers, of token sequences, and large ones by sizes."""
