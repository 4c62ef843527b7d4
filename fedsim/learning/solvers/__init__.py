"""Solvers of local SGD: ``reference`` defines the result in plain torch, and ``dense`` is faster."""
