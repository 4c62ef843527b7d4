"""Tables, ledger and fingerprints of a run folder.

Imports ``clock``, ``common``, and the columns of ``world.meters``.
"""
