"""Findings of any number of campaigns, one cluster for each root cause, and the ledger's entries for them."""
