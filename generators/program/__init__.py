"""What a case is: its operations, types, sizes and values, and the source text it is printed as."""
