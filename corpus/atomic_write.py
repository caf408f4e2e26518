"""Replacing a file as a whole."""

import os
import tempfile
from pathlib import Path

from generators.errors import UserError


def replace_file(path: Path, content: bytes) -> None:
    """Write a file, its directory included; a kill at any instant leaves the old file or the new. Raises UserError."""
    temporary = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("wb", dir=path.parent, prefix=".", suffix=".tmp", delete=False) as file:
            temporary = Path(file.name)
            file.write(content)
            file.flush()
            os.fchmod(file.fileno(), 0o644)
            os.fsync(file.fileno())
        temporary.replace(path)
        directory = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
    except OSError as error:
        if temporary is not None:
            temporary.unlink(missing_ok=True)
        raise UserError(f"{path}: can't be written: {error.strerror}") from error
