"""Strategies and parts besides those of the core; the core knows them by the registry alone."""
