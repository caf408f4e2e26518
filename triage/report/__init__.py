"""Reports: the draft of an issue for PyTorch or for the author of a kernel, and the script of the bug."""
