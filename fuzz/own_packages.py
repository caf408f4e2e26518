"""Refuses a package of another project that hides one of ours: they are not published, and their names are common."""

import sys
from importlib.util import find_spec
from pathlib import Path
from typing import NoReturn

OWN_PACKAGES = ("generators", "kernels", "corpus", "fuzz", "triage")
_ROOT = Path(__file__).resolve().parents[1]
_USAGE = 2
"""As `fuzz.cli.USAGE`, which can't be imported yet."""


def require_own(*names: str) -> None:
    """Require that Python finds our packages of these names. If not, ends a command with one line and exit code 2, and
    raises ImportError for other importers."""
    for name in names:
        spec = find_spec(name)
        found = Path(next(iter(spec.submodule_search_locations or [spec.origin or ""]))) if spec else None
        if found is None or found.resolve() != _ROOT / name:
            _refuse(name, found)


def _refuse(name: str, found: Path | None) -> NoReturn:
    place = f"finds {found} first" if found else "does not find it"
    text = f"attnfuzz needs its package {name!r} in {_ROOT}, and Python {place}: run in {_ROOT}, or put that first"
    if sys.argv[0] != "-m":  # Python's name for a module that `python -m` still looks for
        raise ImportError(text)
    sys.stderr.write(f"error: {text}\n")
    sys.exit(_USAGE)
