"""Takes a user's module in as cases: translates its recorded calls, names its sizes, checks that bits agree."""
