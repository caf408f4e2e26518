"""What comes of asking an attention function for a result that is not one."""


class Unsupported(Exception):
    """The function does not take this case; the text says why, in one line."""


class Failed(Exception):
    """The function raised `error` when it was called again, or differentiated, with arguments of ours."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error
