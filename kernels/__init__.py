"""Attention in Triton, forward and backward. It needs only torch and triton."""
