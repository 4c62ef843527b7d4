"""Runs that can be stopped at any instant and continued to the bit."""
