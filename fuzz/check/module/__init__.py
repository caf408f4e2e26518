"""A user's module: loads it, runs its parts as programs, records its calls and values."""
