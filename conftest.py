"""`pytest` here also replays the case files of the corpus."""

pytest_plugins = ["fuzz.pytest_plugin", "pytester"]
