"""Aggregations that are robust or private."""
