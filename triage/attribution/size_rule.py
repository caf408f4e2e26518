"""The rule that tells sizes that fail from those that pass."""

from collections.abc import Collection

_TILES = tuple(2**power for power in range(10, 0, -1))
_LISTED = 12


def describe_sizes(failing: Collection[int], passing: Collection[int], name: str) -> str:
    """Which sizes fail: by a rule, as `find_rule` gives it, else one by one, "S = 7, 9, 23"."""
    more = f", ... ({len(failing)} sizes in all)" if len(failing) > _LISTED else ""
    listed = f"{name} = {', '.join(map(str, sorted(failing)[:_LISTED]))}{more}"
    return find_rule(failing, passing, name) or listed


def find_rule(failing: Collection[int], passing: Collection[int], name: str) -> str:
    """What tells the sizes that fail from those that pass, "S > 64 and S % 64 != 0"; "" where no rule does.

    Rules are tried from simple to involved: a bound, a remainder of a power of two, both.
    """
    if not failing or not passing:
        return ""
    if min(failing) > max(passing):
        return f"{name} > {_round(max(passing), min(failing))}"
    if max(failing) < min(passing):
        return f"{name} < {min(passing)}"
    return _remainder(failing, passing, name) or _both(failing, passing, name)


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
