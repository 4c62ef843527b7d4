"""Models besides the basic ones: those of papers, of tokens, and by their card."""
