"""Memory in a module of a user's, beside that of ``zoo``."""

STEPS = 0
