"""Fuzzes one of our own parsers with Atheris: `python -m tests.parsers case --seconds 3600`.

What a parser neither refuses with its documented error nor reads ends the process, and the input is kept. A run begins
with `tests/parsers/inputs`: valid files, and mistakes once made.
"""

import argparse
import contextlib
import io
import tempfile
from pathlib import Path

import atheris

with (
    contextlib.redirect_stderr(io.StringIO()),
    atheris.instrument_imports(include=["corpus", "fuzz", "generators", "triage"]),
):
    from tests.parsers.test_parsers import INPUTS, TARGETS, mutate

ROOT = Path(__file__).parents[2]


def main() -> None:
    """Fuzz one target."""
    parser = argparse.ArgumentParser(prog="python -m tests.parsers", description=__doc__.splitlines()[0])
    parser.add_argument("target", choices=TARGETS)
    parser.add_argument("--seconds", type=int, default=3600)
    parser.add_argument("--runs", type=int, default=-1, help="end after as many inputs, seeds among them")
    parser.add_argument("--keep", type=Path, default=Path(), help="directory for an input that fails")
    options = parser.parse_args()
    as_yaml = options.target in {"case", "ledger"}
    seeds = [INPUTS / options.target, *([ROOT / "corpus"] if options.target == "case" else [])]
    with tempfile.TemporaryDirectory() as grown:
        flags = [f"-max_total_time={options.seconds}", f"-runs={options.runs}", "-max_len=65536"]
        flags += [f"-artifact_prefix={options.keep.resolve()}/", "-timeout=20", "-rss_limit_mb=4096", "-len_control=0"]
        atheris.Setup(
            ["parsers", *flags, grown, *map(str, seeds)],
            TARGETS[options.target],
            custom_mutator=lambda data, most, seed: mutate(data, most, seed, as_yaml=as_yaml),
        )
        atheris.Fuzz()


if __name__ == "__main__":
    main()
