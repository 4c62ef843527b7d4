"""Partitions: the recipes by which samples are dealt to devices."""
