"""The parent process of a campaign: schedules cases, drives workers, stores and shows failures. Never imports torch."""
