"""Where a value is wrong, as a picture."""
