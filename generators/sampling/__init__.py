"""How random cases are made."""
