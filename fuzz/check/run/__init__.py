"""Runs programs: from text, tensors and settings to the numbers of one subject."""
