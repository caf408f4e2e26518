"""Runs and judges cases: commands, campaigns, workers, and the search for root causes."""
