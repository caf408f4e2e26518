"""Control experiments: a subject with one thing about how it compiles or runs changed, or watched."""
