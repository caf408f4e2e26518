"""Replaces the sizes of a program by named dimensions: finds which numbers are the same dimension.

Every size gets a name of its own. The shape rules of the operations then say which sizes must be equal, and how a size
is made of other sizes. The names that are left are the dimensions. A dimension that can't change by itself stays a
number.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from generators.errors import CaseError
from generators.program.case import Attr, Case, Op, TensorType
from generators.program.edits import map_sizes
from generators.program.regions import list_autocasts
from generators.program.sizes import Size, product, quotient
from generators.program.type_check import check, infer, is_valid, prune

_LETTERS = {2: "BS", 3: "BSD", 4: "BHSD"}
"""Names of the axes of the first argument, by its rank."""
_TRIES = (1, 2, 3)
"""A dimension can change if the case stays valid with twice its size, or with any of these numbers added."""


def name_sizes(case: Case) -> Case:
    """The case with dimensions in place of numbers, where its operations allow other numbers."""
    named = _Solver(case).solve()
    named = _rename(named)
    for name, size in named.dims:
        if name in named.sizes and not _can_change(named, name):
            fixed = _substitute(named, {name: Size.of(size)})
            named = prune(replace(fixed, dims=tuple(item for item in named.dims if item[0] != name)))
    return named


def _can_change(case: Case, name: str) -> bool:
    size = case.sizes[name]
    for other in (2 * size, *(size + more for more in _TRIES)):
        if is_valid(replace(case, dims=tuple({**case.sizes, name: other}.items()))):
            return True
    return False


@dataclass
class _Solver:
    """Unifies the sizes of a program."""

    case: Case
    numbers: dict[str, int] = field(default_factory=dict)  # by name
    known: dict[str, Size] = field(default_factory=dict)  # names that are made of other names
    casts: Mapping[str, str | None] = field(init=False)  # the autocast around each operation
    _serial: Iterator[int] = field(default_factory=lambda: iter(range(1, 100_000)))

    def __post_init__(self) -> None:
        self.casts = list_autocasts(self.case)

    def solve(self) -> Case:
        inputs = tuple(replace(item, shape=self._name_all(item.shape)) for item in self.case.inputs)
        types = {item.name: item.type for item in inputs}
        ops = list[Op]()
        for op in self.case.ops:
            ops.append(self._name_op(op, types))
            types[op.name] = self._infer(ops[-1], types)
        named = replace(self.case, inputs=inputs, ops=tuple(ops))
        whole = replace(
            _substitute(named, self.known),
            dims=tuple((name, n) for name, n in self.numbers.items() if name not in self.known),
        )
        restored = self._restore(prune(whole))
        try:
            check(restored)
        except CaseError:
            return self.case
        return restored

    def _restore(self, case: Case) -> Case:
        """The case with -1 where the recorded calls have it."""
        own = {op.name: dict(op.attrs) for op in self.case.ops}

        def restore(op: Op) -> Op:
            old = own[op.name].get("sizes")
            if not isinstance(old, tuple):
                return op
            attrs = dict(op.attrs)
            new = attrs["sizes"]
            assert isinstance(new, tuple)
            attrs["sizes"] = tuple(b if b == Size.of(-1) else a for a, b in zip(new, old, strict=True))
            return replace(op, attrs=tuple(attrs.items()))

        return replace(case, ops=tuple(map(restore, case.ops)))

    def _name_all(self, sizes: Sequence[Size | int]) -> tuple[Size, ...]:
        return tuple(self._name(size) for size in sizes)

    def _name(self, size: Size | int) -> Size:
        """A new name for a size; 0, 1 and -1 stay."""
        number = Size.of(size).value({})
        if number in (-1, 0, 1):
            return Size.of(number)
        name = f"N{next(self._serial)}"
        self.numbers[name] = number
        return Size.of(name)

    def _name_op(self, op: Op, types: Mapping[str, TensorType]) -> Op:
        attrs = dict(op.attrs)
        shape = types[op.args[0]].shape if op.args else ()
        if op.kind in ("view", "reshape"):
            sizes = attrs["sizes"]
            assert isinstance(sizes, tuple)
            attrs["sizes"] = self._name_view(shape, self._fill(sizes, shape))
        elif "sizes" in attrs and isinstance(attrs["sizes"], tuple):
            attrs["sizes"] = self._name_all(attrs["sizes"])
        elif op.kind in ("narrow", "set_slice"):
            whole = shape[int(attrs.get("dim", -1))]  # type: ignore[arg-type]  # an axis is an integer
            attrs |= {key: self._name_bound(attrs[key], whole) for key in ("start", "stop") if key in attrs}
        else:
            attrs |= {key: self._name(value) for key, value in attrs.items() if isinstance(value, Size)}
        return replace(op, attrs=tuple(attrs.items()))

    def _fill(self, sizes: Iterable[Size | int], shape: Sequence[Size]) -> list[int]:
        """The sizes of a view as numbers, without -1."""
        numbers = [Size.of(size).value({}) for size in sizes]
        rest = math.prod(number for number in numbers if number != -1)
        whole = math.prod(size.value(self.numbers) for size in shape)
        return [whole // max(1, rest) if number == -1 else number for number in numbers]

    def _name_bound(self, bound: Attr, whole: Size) -> Attr:
        """A bound of a slice: the whole axis, its half, or a number of its own."""
        assert isinstance(bound, Size)
        number, length = bound.value({}), whole.value(self.numbers)
        if number == length and number > 1:
            return whole
        if number * 2 == length and number > 1:
            half = quotient(self._resolve(whole), Size.of(2), number)
            if half.constant is not None:
                half = self._name(number)
                self._equate(whole, half * 2)
            return half
        return self._name(number)

    def _name_view(self, shape: Sequence[Size], sizes: Sequence[int]) -> tuple[Size, ...]:
        """Names for the sizes of a view. Groups of axes with equal products, from the left, hold equal sizes."""
        old, new = list(shape), list(sizes)
        named = list[Size]()
        while new:
            left, right = old[:1], new[:1]
            del old[:1], new[:1]
            values = [size.value(self.numbers) for size in left]
            while math.prod(values) != math.prod(right) and (old or new):
                if (math.prod(values) < math.prod(right) and old) or not new:
                    left.append(old.pop(0))
                    values.append(left[-1].value(self.numbers))
                else:
                    right.append(new.pop(0))
            names = self._name_all(right)
            if 0 not in right:
                self._equate(product(left), product(names))
            named += names
        return tuple(named)

    def _infer(self, op: Op, types: Mapping[str, TensorType]) -> TensorType:
        equations: list[tuple[Size, Size]] = []
        made = infer(op, types, self.numbers, self.casts[op.name], equations)
        for left, right in equations:
            self._equate(left, right)
        if op.kind not in ("chunk", "glu"):
            return made
        # A part of an axis is the axis divided by a number, which no product says.
        attrs = dict(op.attrs)
        axis = int(attrs.get("dim", -1)) % made.rank  # type: ignore[arg-type]  # an axis is an integer
        whole, chunks = self._resolve(types[op.args[0]].shape[axis]), int(attrs.get("chunks", 2))  # type: ignore[arg-type]
        part = quotient(whole, Size.of(chunks), made.shape[axis].value(self.numbers))
        if part.constant is not None and part.constant > 1:
            part = self._name(part.constant)
            self._equate(whole, part * chunks)
        return replace(made, shape=(*made.shape[:axis], part, *made.shape[axis + 1 :]))

    def _resolve(self, size: Size) -> Size:
        return size.substitute(self.known)

    def _equate(self, left: Size, right: Size) -> None:
        """Note that two sizes are equal."""
        left, right = self._cancel(self._resolve(left), self._resolve(right))
        if left == right:
            return
        for size, equal in ((right, left), (left, right)):
            if size.is_name and str(size) not in equal.names():
                self._know(str(size), equal)
                return
        if left.constant is not None or right.constant is not None:
            for name in left.names() | right.names():
                self._know(name, Size.of(self.numbers[name]))
        elif len(left.terms) == len(right.terms) == 1:
            # Two products: a factor is probably the factor of the same number on the other side.
            factors = list(right.terms[0][0])
            for name in left.terms[0][0]:
                same = next((factor for factor in factors if self.numbers[factor] == self.numbers[name]), None)
                if same is not None:
                    factors.remove(same)
                    self._equate(Size.of(name), Size.of(same))

    def _know(self, name: str, size: Size) -> None:
        self.known = {key: value.substitute({name: size}) for key, value in self.known.items()} | {name: size}

    @staticmethod
    def _cancel(left: Size, right: Size) -> tuple[Size, Size]:
        """Both sizes without their common factors."""
        if len(left.terms) != 1 or len(right.terms) != 1:
            return left, right
        (a, m), (b, n) = left.terms[0], right.terms[0]
        common, divisor = Counter(a) & Counter(b), math.gcd(m, n) or 1
        alone = (tuple((Counter(names) - common).elements()) for names in (a, b))
        first, second = (Size(((names, number // divisor),)) for names, number in zip(alone, (m, n), strict=True))
        return first, second


def _rename(case: Case) -> Case:
    """The case with short names: letters for the axes of the first argument, then N, N2 and so on."""
    names: dict[str, str] = {}
    first = next(iter(case.arguments)).shape
    for size, letter in zip(first, _LETTERS.get(len(first), ""), strict=False):
        if size.is_name and str(size) not in names:
            names[str(size)] = letter
    others = (name for name, _ in case.dims if name not in names)
    names |= {name: f"N{number}" for number, name in enumerate(others, 1)}
    dims = tuple((names[name], size) for name, size in case.dims)
    renamed = {name: Size.of(new) for name, new in names.items()}
    return replace(_substitute(case, renamed), dims=dims)


def _substitute(case: Case, sizes: Mapping[str, Size]) -> Case:
    return map_sizes(case, lambda size: size.substitute(sizes))
