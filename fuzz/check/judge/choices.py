"""The discrete choices of a run: places of maxima and of sorted elements, comparisons, roundings to integers.

Rounding decides a choice between nearly equal numbers. The other choice is right too, but moves some results far more
than rounding does. So runs are compared that make the same choices. Runs with other choices show, element by element,
where results may differ, and to what.
"""

from collections import defaultdict
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge.operations import RANDOM, UNWRITTEN, OperationMode, bind, is_floating, is_fused, names, take

_WITH_PLACES = names("sort topk max min median nanmedian mode kthvalue cummax cummin")
"""Operations that return elements along an axis, and their places."""
_POOLED_AXES = {"max_pool2d_with_indices": 2, "max_pool3d_with_indices": 3}
"""The same for windows, with places in these last axes as one."""
_ROUNDED = names("floor ceil round trunc sign sgn histc")
_FINE = 0.25
"""An integer is a choice if the numbers of its dtype lie closer together than this there."""

ChoiceKey = tuple[str, tuple[int, ...]]
"""The operation, and the shape of its choice."""


class ChoiceMode(OperationMode):
    """Records the choices of a run. With `held`, the run makes the choices of that run.

    Choices belong together by their number among those with the same key. The float64 reference may run some operations
    more or less often than eager; it is free in choices of such keys.
    """

    def __init__(self, held: "ChoiceMode | None" = None) -> None:
        super().__init__()
        self._made: dict[ChoiceKey, list[Tensor]] = defaultdict(list)
        self._held = held

    @property
    def are_any(self) -> bool:
        return bool(self._made)

    def differ(self, others: "ChoiceMode") -> bool:
        """Whether another run made another choice."""
        both = [key for key, made in self._made.items() if len(made) == len(others._made.get(key, ()))]
        return any(
            _is_other(mine, theirs)
            for key in both
            for mine, theirs in zip(self._made[key], others._made[key], strict=True)
        )

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = func(*args, **kwargs)
        name = func.overloadpacket.__name__
        if func._schema.is_mutable or func.is_view or name in RANDOM or name in UNWRITTEN or is_fused(func):
            return result
        if not any(is_floating(value) for value in args):
            return result
        if isinstance(result, (tuple, list)):
            if (name in _WITH_PLACES or name in _POOLED_AXES) and result[1].dim() <= args[0].dim():
                places = self._choose(name, result[1])
                if places is not result[1]:
                    result[1].copy_(places)
                    result[0].copy_(_take(name, bind(func, args, kwargs), places, result[0]))
        elif isinstance(result, Tensor) and (name in _ROUNDED or not (is_floating(result) or result.is_complex())):
            is_number = name in _ROUNDED or (name == "_to_copy" and result.dtype is not torch.bool)
            own = _round(result, args[0]) if is_number else result
            chosen = self._choose(name, own)
            if chosen is not own:
                result.copy_(torch.where(chosen.isnan(), result.double(), chosen) if is_number else chosen)
        return result

    def _choose(self, name: str, own: Tensor) -> Tensor:
        """The choice to make: `own`, or what the run to follow made in its place."""
        key = name, tuple(own.shape)
        number, found = len(self._made[key]), own
        made = self._held._made.get(key, ()) if self._held is not None else ()
        if number < len(made):
            found = made[number].to(own.device)
        self._made[key].append(found.clone())
        return found


def _round(value: Tensor, given: Tensor) -> Tensor:
    """Rounded numbers; NaN where the numbers that were rounded lie too far apart for a choice."""
    eps = torch.finfo(given.dtype).eps if is_floating(given) else 0.0
    wide = value.double()
    return wide.masked_fill(wide.abs() * eps >= _FINE, torch.nan)


def _take(name: str, given: dict[str, Any], places: Tensor, like: Tensor) -> Tensor:
    """The elements at these places."""
    values: Tensor = given["self"]
    if count := _POOLED_AXES.get(name):
        return values.flatten(-count).gather(-1, places.flatten(-count)).view_as(places)
    return take(values, given.get("dim", -1), places) if values.dim() else like


def _is_other(mine: Tensor, theirs: Tensor) -> bool:
    if mine.is_floating_point():
        return bool(((mine != theirs) & ~(mine.isnan() | theirs.isnan())).any())
    return not torch.equal(mine, theirs)
