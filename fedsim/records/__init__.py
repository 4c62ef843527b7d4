"""Writers and readers of a run folder: tables, ledger and fingerprints.

The package imports ``clock``, ``common`` and ``world.meters``.
"""
