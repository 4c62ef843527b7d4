"""Samples and who holds them: sources, partitions, and the shards of a population."""
