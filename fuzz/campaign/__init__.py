"""The parent's wing: schedules, drives workers, decides what is new, keeps and shows it. No torch here."""
