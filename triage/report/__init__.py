"""Reports: the draft of an issue for PyTorch or for the author of a kernel, and repro.py."""
