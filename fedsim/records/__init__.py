"""Records of a run and its folder: tables, the ledger, fingerprints; the audit of them is ``fedsim.audit``."""
