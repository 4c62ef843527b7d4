"""Further models: of papers, of tokens, and by their card."""
