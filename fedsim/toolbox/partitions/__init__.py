"""Partitions: kinds of ``data.partition``, which divide the samples among the devices."""
