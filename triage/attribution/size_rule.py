"""The rule that tells sizes that fail from those that pass."""

from collections.abc import Collection, Iterator

_TILES = tuple(2**power for power in range(10, 0, -1))
_LISTED = 12


def describe_sizes(failing: Collection[int], passing: Collection[int], name: str) -> str:
    """Which sizes fail: by a rule, as `find_rule` gives it, else one by one, "S = 7, 9, 23"."""
    more = f", ... ({len(failing)} sizes in all)" if len(failing) > _LISTED else ""
    listed = f"{name} = {', '.join(map(str, sorted(failing)[:_LISTED]))}{more}"
    return find_rule(failing, passing, name) or listed


def find_rule(failing: Collection[int], passing: Collection[int], name: str) -> str:
    """What tells the sizes that fail from those that pass, "S > 64 and S % 64 != 0"; "" where no rule does.

    The simplest rule: a bound, a remainder of a power of two, both; of these best one where bound and tile are one
    number.
    """
    if not failing or not passing:
        return ""
    found = []
    for tile, text, remainders in _list_remainders(failing, passing):
        others = [size for size in passing if size % tile in remainders]
        sign, bound = "", tile
        if others and max(others) < min(failing):
            sign, bound = ">", _round(max(others), min(failing))
        elif others and min(others) > max(failing):
            sign, bound = "<", min(others)
        if all(size % tile in remainders for size in failing) and (sign or not others):
            parts = [f"{name} {sign} {bound}" if sign else "", text.format(f"{name} % {tile}")]
            rank = bool(sign and text) * (1 + (bound != tile))
            found.append((rank, " and ".join(filter(None, parts))))
    return min(found, key=lambda rule: rule[0], default=(0, ""))[1]


def _list_remainders(failing: Collection[int], passing: Collection[int]) -> Iterator[tuple[int, str, Collection[int]]]:
    """Tiles, each with what a remainder may be like and the remainders that are; first of all, any."""
    yield 1, "", (0,)
    if len(failing) == 1:
        return
    for tile in (tile for tile in _TILES if tile < max(*failing, *passing)):
        bad, good = ({size % tile for size in sizes} for sizes in (failing, passing))
        yield tile, "{} != 0", range(1, tile)
        yield tile, "{} == 0", (0,)
        if len(passing) > 1:
            yield tile, f"{{}} == {min(bad)}", (min(bad),)
        if len(failing) > 2 and len(passing) > 2:
            yield tile, f"{{}} > {max(good)}", range(max(good) + 1, tile)
            if 0 in good:
                yield tile, f"0 < {{}} <= {max(bad)}", range(1, max(bad) + 1)


def _round(low: int, high: int) -> int:
    """The largest power of two in [low, high), `low` where there is none."""
    power = 1 << max(high - 1, 1).bit_length() - 1
    return power if low <= power < high else low
