"""Root causes of findings, found by experiments."""
