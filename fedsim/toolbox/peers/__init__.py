"""Strategies without a server: devices train, and send their models to each other."""
