"""What a run leaves: typed records, tables, the ledger, fingerprints, and the audit of it all."""
