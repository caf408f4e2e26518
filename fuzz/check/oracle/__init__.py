"""Which differences are bugs: the float64 reference, the noise of eager, and the judgement."""
