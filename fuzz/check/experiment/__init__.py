"""Changes a failing call of an attention function, and says whether the failure stays."""
