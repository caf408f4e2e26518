"""The float64 reference: the same module, with nothing in it rounded to a lower precision."""

from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, ExitStack
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from fuzz.check.oracle.operations import RANDOM, OperationMode
from fuzz.check.process_state import hold_state
from fuzz.check.program import Execution, Tensors, execute

_LOWER = (torch.float32, torch.float16, torch.bfloat16)


def reference(
    module: nn.Module,
    calls: Callable[[nn.Module, Callable[[Any], Any]], Iterable[list[Any]]],
    *,
    training: bool,
    cotangents: Tensors | None,
) -> Execution:
    """A fresh `module` in float64 on its `calls` (`Program.calls`), with the gradients for `cotangents`.

    - Casts to lower float dtypes become casts to float64.
    - scaled_dot_product_attention runs on its MATH backend, and attention layers without their fast path: a fused
      kernel makes the same mistakes in float64.
    - Constants keep the value of their dtype, and random operations draw the numbers of lower precision.
    """
    exact = module.double()
    raised = calls(exact, lambda memory: memory.double() if _is_lower(memory) else memory)
    return execute(exact, exact, raised, training=training, cotangents=cotangents, mode=_Exactly())


class _Exactly(AbstractContextManager[None]):
    """Surrounds each call. The text that makes the inputs runs outside, and rounds them."""

    def __enter__(self) -> None:
        with ExitStack() as stack:
            stack.enter_context(hold_state("torch's default dtype", torch.float64))
            stack.enter_context(hold_state("torch's fast path", False))
            stack.enter_context(sdpa_kernel([SDPBackend.MATH]))
            stack.enter_context(Float64())
            self._exit = stack.pop_all().close

    def __exit__(self, *_: object) -> None:
        self._exit()


class Float64(OperationMode):
    """A mode below autograd in which every floating result is float64."""

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if func.overloadpacket.__name__ in RANDOM:
            return _draw(func, args, kwargs)
        if kwargs.get("dtype") in _LOWER:
            if not any(isinstance(arg, Tensor) for arg in args):
                return func(*args, **kwargs).double()  # a constant: round it as the program would
            kwargs = {**kwargs, "dtype": torch.float64}
        if not func._schema.is_mutable and any(_is_lower(arg) for arg in args):
            args = tuple(arg.double() if _is_lower(arg) else arg for arg in args)
        return func(*args, **kwargs)


def _draw(func: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    # The CPU generator takes more bits for a float64 than for a float32.
    if kwargs.get("dtype") == torch.float64:
        kwargs = {**kwargs, "dtype": torch.float32}
    narrow = tuple(arg.float() if isinstance(arg, Tensor) and arg.dtype == torch.float64 else arg for arg in args)
    result = func(*narrow, **kwargs)
    if isinstance(result, Tensor) and args and result is narrow[0] and result is not args[0]:
        return args[0].copy_(result)
    return _widen(result)


def _widen(result: Any) -> Any:
    if isinstance(result, (tuple, list)):
        return type(result)(_widen(item) for item in result)
    return result.double() if _is_lower(result) else result


def _is_lower(value: Any) -> bool:
    return isinstance(value, Tensor) and value.dtype in _LOWER
