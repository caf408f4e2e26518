"""Attention of other packages, with the signatures and limits of docs/kernels.md."""
