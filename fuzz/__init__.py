"""Run cases, check them, decide, schedule and show."""
