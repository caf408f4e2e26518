"""Sizes over named dimensions: polynomials with integer coefficients such as `B`, `3*H*D` or `S+1`."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Self

from generators.errors import CaseError

MAX_TEXT = 80
MAX_TERMS = 16
"""The most terms of a sum, and factors of a product. Without it, products in a hostile file could explode."""
_FACTOR = r"\s*(?:[A-Z][A-Za-z0-9]{0,7}|[0-9]{1,9})"
_PRODUCT = rf"{_FACTOR}(?:\s*\*{_FACTOR})*"
_SUM = re.compile(rf"(?:\s*-)*{_PRODUCT}(?:\s*[+-](?:\s*-)*{_PRODUCT})*\s*")
_PART = re.compile(rf"[+-]|{_PRODUCT}")

Monomial = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Size:
    """A size: the sum of `coefficient * product of names`; canonical, so equal polynomials are equal objects."""

    terms: tuple[tuple[Monomial, int], ...]

    @classmethod
    def _of_terms(cls, terms: Iterable[tuple[Monomial, int]]) -> Self:
        total: dict[Monomial, int] = {}
        for names, coefficient in terms:
            key = tuple(sorted(names))
            total[key] = total.get(key, 0) + coefficient
        kept = tuple(sorted((n, c) for n, c in total.items() if c))
        if len(kept) > MAX_TERMS or any(len(n) > MAX_TERMS for n, _ in kept):
            raise CaseError(f"a size of more than {MAX_TERMS} terms or factors")
        return cls(kept)

    @classmethod
    def of(cls, value: "Size | int | str") -> "Size":
        """`value` as a size; text is parsed. Raises CaseError on anything that is not a sum of products."""
        if isinstance(value, Size):
            return value
        if isinstance(value, int):
            return cls._of_terms([((), value)])
        return cls.parse(value)

    @classmethod
    @lru_cache(maxsize=4096)
    def parse(cls, text: str) -> "Size":
        """Read `3*H*D + 1`: names, integers, `*`, `+` and `-`. Raises CaseError on anything else."""
        if len(text) > MAX_TEXT:
            raise CaseError(f"size of {len(text)} characters: at most {MAX_TEXT} are allowed")
        if not _SUM.fullmatch(text):
            raise CaseError(f"size {text!r}: expected a sum of products such as '3*H*D + 1'")
        total, sign = cls(()), 1
        for part in _PART.findall(text):
            if part in ("+", "-"):
                sign = -sign if part == "-" else sign
                continue
            factors = [factor.strip() for factor in part.split("*")]
            known = (cls.of(int(f)) if f.isdecimal() else cls((((f,), 1),)) for f in factors)
            total, sign = total + product(known) * sign, 1
        return total

    def __add__(self, other: "Size | int") -> "Size":
        return Size._of_terms((*self.terms, *Size.of(other).terms))

    def __sub__(self, other: "Size | int") -> "Size":
        return self + Size.of(other) * -1

    def __mul__(self, other: "Size | int") -> "Size":
        return Size._of_terms((a + b, c * d) for a, c in self.terms for b, d in Size.of(other).terms)

    def value(self, dims: Mapping[str, int]) -> int:
        """The size under `dims`. Raises CaseError when a name is not among them."""
        total = 0
        for names, coefficient in self.terms:
            part = coefficient
            for name in names:
                if name not in dims:
                    raise CaseError(f"size {self}: dimension {name!r} is not defined")
                part *= dims[name]
            total += part
        return total

    def names(self) -> frozenset[str]:
        return frozenset(name for names, _ in self.terms for name in names)

    def rename(self, names: Mapping[str, str]) -> "Size":
        return Size._of_terms((tuple(names.get(n, n) for n in m), c) for m, c in self.terms)

    def substitute(self, sizes: Mapping[str, "Size"]) -> "Size":
        """The size with other sizes in place of names."""
        total = Size(())
        for names, coefficient in self.terms:
            total += product(sizes.get(name) or Size._of_terms([((name,), 1)]) for name in names) * coefficient
        return total

    @property
    def is_name(self) -> bool:
        return len(self.terms) == 1 and self.terms[0][1] == 1 and len(self.terms[0][0]) == 1

    @property
    def constant(self) -> int | None:
        """The number, if no name occurs."""
        if not self.terms:
            return 0
        return self.terms[0][1] if self.terms[0][0] == () and len(self.terms) == 1 else None

    def __str__(self) -> str:
        if not self.terms:
            return "0"
        parts: list[str] = []
        # Names first, the bare number last, as a person writes it.
        for names, coefficient in sorted(self.terms, key=lambda t: (not t[0], t[1] < 0, t[0])):
            factors = [str(abs(coefficient))] if abs(coefficient) != 1 or not names else []
            text = " * ".join([*factors, *names])
            if parts:
                parts.append(f"- {text}" if coefficient < 0 else f"+ {text}")
            else:
                parts.append(f"-{text}" if coefficient < 0 else text)
        return " ".join(parts)


ONE = Size.of(1)


def product(sizes: Iterable[Size]) -> Size:
    """The product of sizes; 1 of none."""
    total = ONE
    for size in sizes:
        total = total * size
    return total


def quotient(whole: Size, part: Size, value: int) -> Size:
    """`whole / part` as a size if both are single products that divide, else the number `value`."""
    if len(whole.terms) == len(part.terms) == 1:
        (names, a), (divisor, b) = whole.terms[0], part.terms[0]
        left = Counter(names)
        left.subtract(divisor)
        if a % b == 0 and min(left.values(), default=0) >= 0:
            return Size(((tuple(left.elements()), a // b),))
    return Size.of(value)


def show(shape: Sequence[Size]) -> str:
    return f"[{', '.join(map(str, shape))}]"
