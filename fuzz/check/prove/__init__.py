"""Proves which rewrites and fused calls are wrong, in float64 on their own operands."""
