"""The judgement on one call of an attention function, by float64, a first-order error bound and simulated kernels."""
