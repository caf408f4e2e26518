"""What libFuzzer's inputs mean: a case file's text, or bytes that drive the generators. Any bytes are a valid case."""

import random

from corpus import casefile
from generators.errors import CaseError
from generators.program.case import Case
from generators.sampling.choices import ByteChoices, Choices
from generators.sampling.sample import draw
from generators.sampling.variants import make_variants

TEXT = b"case_format"
"""A case file written by `encode` begins so."""

FRESH = 0.5
"""The share of inputs that owe nothing to earlier ones: coverage alone keeps a search beside what it has found."""
VARIANTS = 0.5
"""Of the other inputs that are bytes, the share that becomes a variant of its case. Case files always do."""
_FRESH_BYTES = 512


def decode(data: bytes) -> Case:
    """The case that an input stands for."""
    if data.startswith(TEXT):
        try:
            return casefile.loads(data, "input")
        except CaseError:
            pass  # Cut or patched text is bytes like any other.
    choices = ByteChoices(data)
    return draw(choices, choices)


def encode(case: Case) -> bytes:
    """The input that stands for a case."""
    return casefile.dumps(case).encode()


def mutate_input(data: bytes, most: int, seed: int) -> bytes:
    """An input made of one, at most `most` bytes long: fresh bytes, a variant, or a few bytes changed."""
    c = Choices(f"change:{seed}")
    if c.chance(FRESH):
        return _draw_bytes(c, _FRESH_BYTES)[:most]
    variants = make_variants(decode(data), c) if data.startswith(TEXT) or c.chance(VARIANTS) else []
    made = encode(c.pick(variants)) if variants else b""
    return made if 0 < len(made) <= most else _change_bytes(data, c)[:most]


def _change_bytes(data: bytes, c: Choices) -> bytes:
    """The bytes with a few of them overwritten, put in or taken out."""
    # libFuzzer's own `atheris.Mutate` fails in a custom mutator: "Fuzz() must be called before Mutate() can be called".
    at, count = c.below(len(data) + 1), 1 + c.below(4)
    put, taken = c.pick(((count, count), (count, 0), (0, count)))
    return data[:at] + _draw_bytes(c, put) + data[at + taken :]


def _draw_bytes(c: Choices, count: int) -> bytes:
    return random.Random(c.below(1 << 32)).randbytes(count)
