"""Verbs of the command line besides those that run, study and audit (``fedsim.cli``)."""
