"""Kinds of the world's parts, such as availability by day, regions of clouds, or heat."""
