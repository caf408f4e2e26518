"""Attention in Triton, forward and backward, and the reference that defines it. Needs torch and triton, nothing of
ours."""
