"""Between the strategy and the world: the faces of its two halves, what they say to each other, and who carries it."""
