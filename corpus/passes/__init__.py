"""The shrinker's passes: functions from a case to simpler candidates."""
