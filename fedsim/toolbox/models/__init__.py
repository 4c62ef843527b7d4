"""Further models: models of papers, models of tokens, and models by their card."""
