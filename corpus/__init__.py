"""Cases on disk: load, save, shrink; and the cases themselves."""
