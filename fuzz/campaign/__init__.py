"""The parent process: schedules, drives workers, decides what is new, keeps and shows it. No torch here."""
