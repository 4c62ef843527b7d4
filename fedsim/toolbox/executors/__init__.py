"""Executors besides those of this process: work on Ray."""
