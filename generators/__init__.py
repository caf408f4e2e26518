"""What a case is, and how random ones are made. Pure Python: neither torch nor YAML is imported here."""
