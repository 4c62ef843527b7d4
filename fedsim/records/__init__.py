"""Writers and readers of a run folder: tables, ledger and fingerprints.

Imports ``clock``, ``common``, and the columns of ``world.meters``.
"""
