"""What turns drawn programs away, why, and how often: the list of refusals in docs/coverage.md."""
