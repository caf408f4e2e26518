"""The worker process: runs one case at a time several ways and judges what came out. Standard library and torch."""
