"""How far rounding alone moves a program: eager, with every operation's result moved one ulp up or down at random.

A mode below autograd sees backward operations too. Inputs are left as they are, and so are results that carry no
rounding of their own: views, copies, casts, fills, selections, and everything random.
"""

from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from fuzz.check.oracle.higher_order import in_steps, is_higher_order
from fuzz.check.oracle.operations import EXACT, RANDOM

_BITS = {
    torch.float64: torch.int64,
    torch.float32: torch.int32,
    torch.float16: torch.int16,
    torch.bfloat16: torch.int16,
}

_POOL = 1 << 16


class Noise(TorchDispatchMode):
    """One replica: `seed` decides which way every result moves. `dtypes` collects the float dtypes it rounded to.

    Moving a value doesn't round it, and neither does a cast to more bits: a mask kept in bfloat16 makes no bfloat16
    program.
    """

    supports_higher_order_operators = True

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._generator = torch.Generator().manual_seed(seed)
        self._signs = torch.randint(0, 2, (_POOL,), generator=self._generator, dtype=torch.int8).mul_(2).sub_(1)
        self._next = 0
        self.dtypes: set[torch.dtype] = set()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Run `func` and move what it computed."""
        if is_higher_order(func):
            return in_steps(self, func, args, kwargs or {})
        result = func(*args, **(kwargs or {}))
        if func.overloadpacket.__name__ == "_to_copy" and _is_narrowed(args[0], result):
            self.dtypes.add(result.dtype)
        if isinstance(result, Tensor):
            self._move(func, result)
        elif isinstance(result, (tuple, list)):
            for item in result:
                if isinstance(item, Tensor):
                    self._move(func, item)
        return result

    def _move(self, func: Any, value: Tensor) -> None:
        dtype = value.dtype
        if dtype not in _BITS:
            return
        name = func.overloadpacket.__name__
        if name in EXACT or func.is_view or name in RANDOM:
            return
        self.dtypes.add(dtype)
        count = value.numel()
        if not count:
            return
        size = value.abs()
        # Zero stays zero, and the largest finite number, which masks are made of, must not become infinite.
        live = (size > 0).logical_and_(size < torch.finfo(dtype).max)
        value.view(_BITS[dtype]).add_(self._draw(count, value).mul(live))

    def _draw(self, count: int, like: Tensor) -> Tensor:
        if count > _POOL:
            drawn = torch.randint(0, 2, (count,), generator=self._generator, dtype=torch.int8).mul_(2).sub_(1)
        else:
            if self._next + count > _POOL:
                self._next = self._next * 31 % 61 if count < _POOL - 61 else 0
            drawn = self._signs[self._next : self._next + count]
            self._next += count
        return drawn.view(like.shape).to(like.device)


def _is_narrowed(before: Tensor, after: Tensor) -> bool:
    return (
        before.is_floating_point()
        and after.is_floating_point()
        and torch.finfo(after.dtype).eps > torch.finfo(before.dtype).eps
    )
