"""Which sizes of each dimension fail, found by trying them, and the rule that tells them from those that pass."""

import itertools
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass

from fuzz.protocol import FINDINGS, Verdict
from generators.program.case import Case
from generators.program.type_check import types_of
from triage.attribution.perturbations import resize

_TILES = tuple(2**power for power in range(10, 0, -1))
SECONDS = 60.0
MOST = 25
"""Sizes tried of one dimension."""

_EDGES = (64, 65, 63, 128, 1, 129, 2, 32, 33, 48, 127, 66, 16, 17, 31, 96, 8, 130, 3, 15, 4, 80, 112, 100)
"""Around the edges of tiles, the telling ones first: time may run out."""

_COUNTS = (1, 2, 3, 4, 5, 6, 8, 7, 9, 12)
"""For batches and heads, which no kernel tiles."""

_PASSING = frozenset({Verdict.OK, Verdict.ROUNDING, Verdict.RANDOM_STREAM})
_VALUES = frozenset({Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT, Verdict.NONFINITE})

Judge = Callable[[Case], Verdict | None]
"""The verdict on a case, None where there is none."""


def tile_rule(failing: Collection[int], passing: Collection[int], name: str = "S") -> str:
    """What tells the sizes that fail from those that pass.

    Rules are tried from simple to involved: a bound, a remainder of a power of two, both; the sizes themselves where
    none holds.
    """
    if not failing:
        return "at no size tried"
    if not passing:
        return "at every size tried"
    if min(failing) > max(passing):
        return f"only where {name} > {_round(max(passing), min(failing))}"
    if max(failing) < min(passing):
        return f"only where {name} < {min(passing)}"
    rule = _remainder(failing, passing, name) or _both(failing, passing, name)
    if rule:
        return f"only where {rule}"
    more = f", ... ({len(failing)} sizes in all)" if len(failing) > 12 else ""
    return f"only at {name} = {', '.join(map(str, sorted(failing)[:12]))}{more}"


def _round(low: int, high: int) -> int:
    """The largest power of two in [low, high), `low` where there is none."""
    power = 1 << max(high - 1, 1).bit_length() - 1
    return power if low <= power < high else low


def _below(failing: Collection[int], passing: Collection[int]) -> list[int]:
    """The tiles that can explain something: at most the largest size, and none for a single failing size."""
    largest = max(*failing, *passing)
    return [tile for tile in _TILES if tile < largest] if len(failing) > 1 else []


def _remainder(failing: Collection[int], passing: Collection[int], name: str) -> str:
    for tile in _below(failing, passing):
        bad, good = ({size % tile for size in sizes} for sizes in (failing, passing))
        if bad & good:
            continue
        told = _zero(bad, good, f"{name} % {tile}")
        if told:
            return told
        if len(failing) > 2 and len(passing) > 2:
            if min(bad) > max(good):
                return f"{name} % {tile} > {max(good)}"
            if max(bad) < min(good - {0}) and 0 in good:
                return f"0 < {name} % {tile} <= {max(bad)}"
    return ""


def _zero(bad: set[int], good: set[int], remainder: str) -> str:
    if good == {0}:
        return f"{remainder} != 0"
    if bad == {0}:
        return f"{remainder} == 0"
    return f"{remainder} == {min(bad)}" if len(bad) == 1 and len(good) > 1 else ""


def _both(failing: Collection[int], passing: Collection[int], name: str) -> str:
    """A remainder that tells them apart on one side of a bound; best one where bound and tile are one number."""
    found: list[tuple[bool, str]] = []
    for tile in _below(failing, passing):
        bad = {size % tile for size in failing}
        for sign in (1, -1):
            edge = min(sign * size for size in failing)
            inside = {size for size in passing if sign * size > edge}
            good = {size % tile for size in inside}
            told = "" if bad & good or not inside else _zero(bad, good, f"{name} % {tile}")
            if not told:
                continue
            remainders = set(range(1, tile)) if good == {0} else bad
            nearest = max(
                (sign * size for size in passing if size not in inside and size % tile in remainders), default=0
            )
            bound = _round(nearest, edge) if sign == 1 else -nearest
            found.append((bound != tile, f"{name} {'>' if sign == 1 else '<'} {bound} and {told}"))
    return min(found, key=lambda item: item[0])[1] if found else ""


@dataclass(frozen=True, slots=True)
class Boundary:
    """One dimension: its size in the case, and what other sizes give while all else stays as it is.

    `failing` as the case does (any wrong value is alike); `passing`; `otherwise` failing, such as out of bounds only.
    """

    name: str
    size: int
    failing: frozenset[int]
    passing: frozenset[int]
    otherwise: frozenset[int] = frozenset()

    @property
    def rule(self) -> str:
        """Which sizes fail: "only where S > 64 and S % 64 != 0", "any S"."""
        others = self.passing | self.otherwise
        return tile_rule(self.failing, others, self.name) if others else f"any {self.name}"


def search_sizes(case: Case, verdict: Verdict, judge: Judge, seconds: float = SECONDS) -> list[Boundary]:
    """Every dimension of a case that gives `verdict`, by trying other sizes in turn for about so many seconds."""
    deadline = time.monotonic() + seconds
    alike = _VALUES if verdict in _VALUES else {verdict}
    seen = {name: {size: verdict} for name, size in case.dims}
    for name, size in _in_turn(case):
        if time.monotonic() > deadline:
            break
        other = resize(case, name, size)
        found = None if other is None else judge(other)
        if found is not None and (found.is_finding or found in _PASSING):
            seen[name][size] = found

    def sizes(name: str, kinds: Collection[Verdict]) -> frozenset[int]:
        return frozenset(size for size, found in seen[name].items() if found in kinds)

    return [
        Boundary(name, size, sizes(name, alike), sizes(name, _PASSING), sizes(name, FINDINGS - alike))
        for name, size in case.dims
    ]


def _in_turn(case: Case) -> Iterator[tuple[str, int]]:
    """The sizes to try, a round of one size of each dimension after the other; the attention's dimensions first."""
    counts = _counting(case)
    attention = _of_attention(case)
    names = sorted(case.sizes, key=lambda name: (name not in attention, name in counts))
    rounds = [[(name, size) for size in _sizes(case.sizes[name], name in counts)] for name in names]
    for together in itertools.zip_longest(*rounds):
        yield from (item for item in together if item is not None)


def _sizes(size: int, counted: bool) -> list[int]:
    near = (size - 1, size + 1)
    tried = (*near, *_COUNTS) if counted else (*near, *_EDGES, size // 2, 2 * size)
    return [other for other in dict.fromkeys(tried) if 0 < other != size][: MOST - 1]


def _counting(case: Case) -> frozenset[str]:
    types = types_of(case)
    counted: set[str] = set()
    measured: set[str] = set()
    for contract in case.contracts:
        head = {"bhsd": 1, "bshd": 2}.get(contract.layout)
        for value in (contract.q, contract.k, contract.v):
            for axis, size in enumerate(types[value].shape):
                (counted if axis in (0, head) else measured).update(size.names())
    return frozenset(counted - measured)


def _of_attention(case: Case) -> frozenset[str]:
    types = types_of(case)
    shapes = [types[value].shape for contract in case.contracts for value in contract.reads.values()]
    return frozenset(name for shape in shapes for size in shape for name in size.names())
