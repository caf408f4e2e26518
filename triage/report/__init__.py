"""What is written for one finding: an issue for PyTorch, or what a kernel's author needs, and repro.py."""
