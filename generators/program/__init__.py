"""Cases: operations, types, sizes, values, and the source text that a case is printed as."""
