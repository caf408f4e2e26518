"""The list of refusals in docs/coverage.md: the places that turn drawn programs away, why, and how often."""
