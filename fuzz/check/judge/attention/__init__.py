"""The judgement on a call of an attention function, by float64, a first-order error bound and simulated kernels."""
