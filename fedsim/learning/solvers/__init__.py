"""Solvers of local SGD: ``reference`` defines the results in plain torch; the others are faster."""
