"""Attention in Triton, forward and backward. Needs torch and triton, nothing of ours."""
