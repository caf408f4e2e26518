"""Cases, and how random cases are made. Pure Python: neither torch nor YAML is imported here."""
