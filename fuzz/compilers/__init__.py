"""Compilers of PyTorch modules behind one interface (docs/compilers.md)."""
