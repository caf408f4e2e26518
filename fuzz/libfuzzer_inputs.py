"""libFuzzer's inputs: the text of a case file, or bytes that drive the generators. Any bytes give a valid case."""

import random

from corpus import casefile
from generators.errors import CaseError
from generators.program.case import Case
from generators.sampling.choices import ByteChoices, Choices
from generators.sampling.mutations import SHARES, mutate
from generators.sampling.sample import draw
from generators.sampling.variants import make_variants

TEXT = b"case_format"
"""The first bytes of a case file written by `encode`."""

FRESH = 0.5
"""The share of inputs that are drawn anew. A search that only follows coverage stays close to its cases."""
VARIANT_SHARE = 0.5
"""The share of byte inputs, of the rest, that become a variant of their case. Case files always become a variant."""
_FRESH_BYTES = 512
_SHARES = {name: SHARES[name] for name in ("autocast_within", "writes")}


def decode(data: bytes) -> Case:
    """The case of an input."""
    if data.startswith(TEXT):
        try:
            return casefile.loads(data, "input")
        except CaseError:
            pass  # A mutated text is read as bytes.
    choices = ByteChoices(data)
    return mutate(draw(choices, choices), lambda _: choices, _SHARES)


def encode(case: Case) -> bytes:
    """The input of a case, as the text of a case file."""
    return casefile.dumps(case).encode()


def mutate_input(data: bytes, most: int, seed: int) -> bytes:
    """Fresh bytes, a variant of the input's case, or the input with a few bytes changed; at most `most` bytes."""
    c = Choices(f"change:{seed}")
    if c.chance(FRESH):
        return _draw_bytes(c, _FRESH_BYTES)[:most]
    variants = make_variants(decode(data), c) if data.startswith(TEXT) or c.chance(VARIANT_SHARE) else []
    made = encode(c.pick(variants)) if variants else b""
    return made if 0 < len(made) <= most else _change_bytes(data, c)[:most]


def _change_bytes(data: bytes, c: Choices) -> bytes:
    """The bytes with a few overwritten, inserted or removed."""
    # libFuzzer's own `atheris.Mutate` fails in a custom mutator: "Fuzz() must be called before Mutate() can be called".
    at, count = c.below(len(data) + 1), 1 + c.below(4)
    put, taken = c.pick(((count, count), (count, 0), (0, count)))
    return data[:at] + _draw_bytes(c, put) + data[at + taken :]


def _draw_bytes(c: Choices, count: int) -> bytes:
    return random.Random(c.below(1 << 32)).randbytes(count)
