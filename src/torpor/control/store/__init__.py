"""The records: one contract, its tables, and the store on SQL."""
