"""The worker process: runs a case under several subjects and judges the results. Standard library and torch only."""
