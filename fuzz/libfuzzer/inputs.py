"""What libFuzzer's inputs mean: a case file's text, or bytes that drive the generators. Any bytes are a valid case."""

import random

from corpus import casefile
from generators.errors import CaseError
from generators.program.case import Case
from generators.sampling.byte_choices import ByteChoices
from generators.sampling.choices import Choices
from generators.sampling.mutate import mutate
from generators.sampling.sample import draw
from generators.sampling.variants import make_variants

TEXT = b"case_format"
"""A case file written by `encode` begins so."""

FRESH = 0.5
"""The share of inputs that owe nothing to earlier ones: coverage alone keeps a search beside what it has found."""
VARIANTS = 0.6
"""Of the inputs made of others, the share that is another variant of the case (`generators.sampling.variants`)."""
_FRESH_BYTES = 512
_IN_BYTES = 0.5
"""The share of changes to an input's bytes, where those drive the generators."""


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
    """An input made of one, at most `most` bytes long."""
    c = Choices(f"change:{seed}")
    if c.chance(FRESH):
        return _bytes(c, _FRESH_BYTES)[:most]
    if not data.startswith(TEXT) and c.chance(_IN_BYTES):
        return _patched(data, c)[:most]
    case = decode(data)
    variants = make_variants(case, c) if c.chance(VARIANTS) else []
    made = encode(c.pick(variants) if variants else mutate(case, c).case)
    return made if len(made) <= most else data[:most]


def _patched(data: bytes, c: Choices) -> bytes:
    """The bytes with a few of them overwritten, put in or taken out."""
    at, count = c.below(len(data) + 1), 1 + c.below(4)
    put, taken = c.pick(((count, count), (count, 0), (0, count)))
    return data[:at] + _bytes(c, put) + data[at + taken :]


def _bytes(c: Choices, count: int) -> bytes:
    return random.Random(c.below(1 << 32)).randbytes(count)
