"""Masks as data: which places they keep, and how they say it.

A mask is a *pattern* of kept places and a *spelling*: booleans, ones and zeros, or numbers to be added. A pattern of
the last two axes, queries and keys, joins at most one structure, one rule of keys and one rule of queries, such as
`causal+left_key_padding`. Masks that come with a batch have lengths of their own for each index of the first axis.
"""

import itertools
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Keep:
    """A rule which places are kept.

    text: a boolean torch expression. Beside the words of `Distribution.template`: `{items}`, `{item_keys}` and
        `{item_queries}` are the shape with 1 for all axes but the first, and the keys or queries; `{width}` is the
        parameter of the values
    fills: whether the expression has the whole shape of the mask
    """

    name: str
    text: str
    min_rank: int = 1
    fills: bool = False
    param: str = ""  # the meaning of the parameter
    default: int = 0  # the parameter where none is given


_ONES = "torch.ones({shape}, dtype=torch.bool)"
_LENGTHS = "torch.randint(1, {shape}[-1] + 1, {shape}[:-1] + (1,), generator=rng({seed}))"
_STARTS = "torch.randint(0, {shape}[-1], {shape}[:-1] + (1,), generator=rng({seed}))"
_DOCUMENTS = (
    "(lambda d: d[..., :{queries}, None] == d[..., None, :{keys}])"
    "(torch.randint(0, {width}, {item_longest}, generator=rng({seed})).sort(-1).values)"
)

STRUCTURES = (
    Keep("causal", f"{_ONES}.tril()", 2, True),
    Keep("causal_end", f"{_ONES}.tril({{keys}} - {{queries}})", 2, True),
    Keep("window", f"{_ONES}.tril({{keys}} - {{queries}}).triu({{keys}} - {{queries}} - {{width}} + 1)", 2, True,
         "keys that a query sees", 4),
    Keep("band", f"{_ONES}.tril({{width}}).triu(-{{width}})", 2, True, "keys on each side", 1),
    Keep("blocks", "torch.arange({queries})[:, None] // {width} == torch.arange({keys}) // {width}", 2, False,
         "the size of a block", 4),
    Keep("causal_blocks", f"{_ONES}.tril() & (torch.arange({{queries}})[:, None] // {{width}} == "
         "torch.arange({keys}) // {width})", 2, True, "the size of a block", 4),
    Keep("documents", _DOCUMENTS, 2, False, "the most documents", 3),
    Keep("causal_documents", f"{_ONES}.tril() & {_DOCUMENTS}", 2, True, "the most documents", 3),
)  # fmt: skip
"""Which keys a query sees. In `causal_end` and `window` the queries are the last keys."""
OF_KEYS = (
    Keep("key_padding", "torch.arange({keys}) < torch.randint(1, {keys} + 1, {items}, generator=rng({seed}))", 2),
    Keep("left_key_padding", "torch.arange({keys}) >= torch.randint(0, {keys}, {items}, generator=rng({seed}))", 2),
    Keep("random_keys", "torch.rand({item_keys}, generator=rng({seed})) < {share}", 2),
)
"""Which keys an item of the batch has, for all of its queries."""
OF_QUERIES = (
    Keep(
        "query_padding",
        "torch.arange({queries})[:, None] < torch.randint(1, {queries} + 1, {items}, generator=rng({seed}))",
        2,
    ),
    Keep(
        "left_query_padding",
        "torch.arange({queries})[:, None] >= torch.randint(0, {queries}, {items}, generator=rng({seed}))",
        2,
    ),
    Keep("empty_rows", "torch.rand({item_queries}, generator=rng({seed1})) < 0.6", 1),
)
"""Which queries see a key at all. With the same seed and size, padding of queries is as long as that of keys."""
_RANDOM = "torch.rand({shape}, generator=rng({seed})) < {share}"
BY_ROW = (
    Keep("random", _RANDOM, 0, True, "the share of kept places, of a mask to be added"),
    Keep("ones", _ONES, 0, True),
    Keep("zeros", "torch.zeros({shape}, dtype=torch.bool)", 0, True),
    # Every row keeps its first key, and drops a tail of keys of random length.
    Keep("padding", f"torch.arange({{shape}}[-1]) < {_LENGTHS}", 1, True),
    # Every row keeps its last key, and drops keys before a random place, as in batches of prompts of several lengths.
    Keep("left_padding", f"torch.arange({{shape}}[-1]) >= {_STARTS}", 1, True),
    # Some rows keep no key at all.
    Keep("empty_row", f"({_RANDOM}) & (torch.rand({{shape}}[:-1] + (1,), generator=rng({{seed1}})) < 0.6)", 1, True,
         "the share of kept places, of a mask to be added"),
    Keep("one_hot", "torch.arange({keys}) == torch.randint(0, {keys}, {rows}, generator=rng({seed}))", 1, True),
    # A cache that is padded on the left, and whose tail is unused.
    Keep("span", "(lambda ends: (torch.arange({keys}) >= ends[..., :1]) & (torch.arange({keys}) <= ends[..., 1:]))"
         "(torch.randint(0, {keys}, {pairs}, generator=rng({seed})).sort(-1).values)", 1, True),
)  # fmt: skip
"""Rules for each row of the last axis by itself."""


@dataclass(frozen=True, slots=True)
class Spelling:
    """How a mask says which places it keeps.

    text: the torch expression of the mask; `{keep}` is the boolean expression of the pattern
    low: whether dropped places hold the scale, which may be -inf, and the parameter is the share that random patterns
        keep; else the scale is that share
    """

    suffix: str
    text: str
    kinds: str  # of dtypes: "bool", "numbers" or "floats"
    low: bool = False


SPELLINGS = (
    Spelling("", "{keep}", "bool"),
    Spelling("_drop", "~({keep})", "bool"),
    Spelling("_zero_one", "{keep}", "numbers"),
    Spelling("_mask", "torch.where({keep}, 0.0, {scale})", "floats", low=True),
    # Positions and a mask in one tensor, as in T5.
    Spelling("_bias", "torch.where({keep}, torch.randn({shape}, generator=rng({seed2})), {scale})", "floats", low=True),
)


@dataclass(frozen=True, slots=True)
class Pattern:
    """A rule of kept places that several parts make."""

    parts: tuple[Keep, ...]

    @property
    def name(self) -> str:
        return "+".join(part.name for part in self.parts)

    @property
    def min_rank(self) -> int:
        return max(part.min_rank for part in self.parts)

    @property
    def chooses_place(self) -> bool:
        """Whether it has no draw without an element."""
        return any("randint" in part.text and part not in STRUCTURES for part in self.parts)

    @property
    def param(self) -> Keep:
        """The part whose parameter it has."""
        return next((part for part in self.parts if part.param), self.parts[0])

    @property
    def text(self) -> str:
        if len(self.parts) == 1 and self.parts[0].fills:
            return self.parts[0].text
        texts = [part.text if part.text.endswith(".tril()") else f"({part.text})" for part in self.parts]
        return " & ".join(texts if any(part.fills for part in self.parts) else [_ONES, *texts])


def _are_joined(structure: Keep | None, of_keys: Keep | None, of_queries: Keep | None) -> bool:
    """Documents have padding of keys alone; padding of queries is on the side of that of keys."""
    if structure is not None and "documents" in structure.name and (of_queries or of_keys is OF_KEYS[-1]):
        return False
    is_padded = of_keys is not None and of_queries is not None and of_queries is not OF_QUERIES[-1]
    return not is_padded or OF_KEYS.index(of_keys) == OF_QUERIES.index(of_queries)


def _list_patterns() -> list[Pattern]:
    joined = itertools.product((None, *STRUCTURES), (None, *OF_KEYS), (None, *OF_QUERIES))
    patterns = [Pattern(tuple(filter(None, parts))) for parts in joined if any(parts) and _are_joined(*parts)]
    padded = [part for part in BY_ROW if part.name in ("padding", "left_padding", "span")]
    rows = [Pattern((part,)) for part in BY_ROW] + [Pattern((part, OF_QUERIES[-1])) for part in padded]
    return [*rows, *patterns]


PATTERNS = {pattern.name: pattern for pattern in _list_patterns()}


def split_kind(kind: str) -> tuple[Pattern, Spelling] | None:
    """The pattern and the spelling of a kind of values; None if it is no mask."""
    for spelling in reversed(SPELLINGS):
        pattern = kind.removesuffix(spelling.suffix)
        if kind.endswith(spelling.suffix) and pattern in PATTERNS:
            return PATTERNS[pattern], spelling
    return None


def is_added(kind: str) -> bool:
    """Whether it is a mask whose dropped places hold the scale, to be added to scores."""
    found = split_kind(kind)
    return found is not None and found[1].low


def list_simpler(kind: str) -> list[str]:
    """The mask without one of its parts, spelled alike."""
    found = split_kind(kind)
    if found is None or len(found[0].parts) == 1:
        return []
    parts = found[0].parts
    smaller = (Pattern(tuple(part for part in parts if part is not dropped)) for dropped in parts)
    return [pattern.name + found[1].suffix for pattern in smaller if pattern.name in PATTERNS]


def side_of(kind: str) -> str:
    """The side on which a mask or padded indices are padded: "right", "left" or "" for neither."""
    found = split_kind(kind)
    names = [part.name for part in found[0].parts] if found else [kind]
    if any(name.startswith("left_") for name in names):
        return "left"
    return "right" if any(name.startswith(("padding", "key_padding", "padded")) for name in names) else ""


def shares_lengths(kind: str) -> bool:
    """Whether equal seeds give it the lengths that other masks, ids and positions of the batch have."""
    return bool(side_of(kind)) or "documents" in kind or kind == "packed_positions"
