"""Random edits of a case, by what they change."""
