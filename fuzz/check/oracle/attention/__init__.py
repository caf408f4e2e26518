"""The judgement on one call of an attention function: against float64, a first-order budget and right peers."""
