"""One case under several torch versions: what changed between them."""
