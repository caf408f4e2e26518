"""Distinguishes bugs from rounding: the float64 reference, the noise of eager, and the judgement."""
