"""Runs and judges cases: commands, campaigns, workers, and the search for root causes."""

from fuzz.own_packages import require_own

require_own("generators", "corpus")
