"""Records of a run: typed records, tables, the ledger, fingerprints, and the audit of all of them."""
