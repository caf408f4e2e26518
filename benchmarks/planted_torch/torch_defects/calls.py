"""Changes of what surrounds a compiled graph: guards, caches of compiled programs, and the calls of a graph."""

import dataclasses
import functools
import itertools
import re
from collections.abc import Callable, Sequence
from typing import Any


def ignore_in_guard(convert: Any, part: int, axes: slice) -> Any:
    """Guards take sizes and strides, one after the other, as lists in which None stands for any number."""
    calls = itertools.count()

    def planted(numbers: Sequence[Any]) -> Any:
        found = convert(numbers)
        if next(calls) % 2 == part:
            found[axes] = [None] * len(found[axes])
        return found

    return planted


def overwrite_gradients(post_compile: Any) -> Any:
    def clear(node: Any) -> None:
        for function, _ in node.next_functions:
            if hasattr(function, "variable"):
                function.variable.grad = None

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        def call(*args: Any) -> Any:
            results = compiled(*args)
            node = next((one.grad_fn for one in results if getattr(one, "grad_fn", None) is not None), None)
            if node is not None:
                node.register_prehook(lambda _: clear(node))
            return results

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def lose_updates(post_compile: Any) -> Any:
    """Buffers that a compiled graph wrote into are put back, but not at its first call."""

    def planted(self: Any, *args: Any, runtime_metadata: Any, **options: Any) -> Any:
        compiled, calls = post_compile(self, *args, runtime_metadata=runtime_metadata, **options), itertools.count()
        static, infos = runtime_metadata.static_input_indices, runtime_metadata.input_info
        written = [index for index in static if infos[index].mutates_data]

        def call(args: list[Any]) -> Any:
            buffers = [args[index].data for index in written] if next(calls) else []
            before = [buffer.clone() for buffer in buffers]
            results = compiled(args)
            for buffer, kept in zip(buffers, before, strict=True):
                buffer.copy_(kept)
            return results

        setattr(call, "_boxed_call", True)  # noqa: B010
        return call

    return planted


def keep_parameters(post_compile: Any) -> Any:
    """A compiled graph keeps the parameters of its first call."""

    def planted(self: Any, *args: Any, runtime_metadata: Any, **options: Any) -> Any:
        import torch

        compiled = post_compile(self, *args, runtime_metadata=runtime_metadata, **options)
        static, kept = set(runtime_metadata.static_input_indices), dict[int, Any]()

        def call(args: list[Any]) -> Any:
            for at, value in enumerate(args):
                if at in static and isinstance(value, torch.nn.Parameter):
                    args[at] = kept.setdefault(at, value)
            return compiled(args)

        setattr(call, "_boxed_call", True)  # noqa: B010
        return call

    return planted


def cut_numbers(post_compile: Any) -> Any:
    """A compiled graph loses the fractions of its numbers, which Dynamo passes as tensors without axes."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch

        compiled = post_compile(self, compiled, *args, **options)

        def call(args: list[Any]) -> Any:
            for at, value in enumerate(args):
                if isinstance(value, torch.Tensor) and value.shape == () and value.dtype == torch.float64:
                    args[at] = value.trunc()
            return compiled(args)

        setattr(call, "_boxed_call", True)  # noqa: B010
        return call

    return planted


def miss_overlap(compute: Any, of_module: bool) -> Any:
    """Arguments that share memory count as apart: all, or only those that are views of a parameter or buffer."""

    def planted(config: Any, given: list[Any], indices: list[int]) -> Any:
        sources = [repr(config.aot_autograd_arg_pos_to_source[index]) for index in indices]
        is_missed = not of_module or any("_buffers" in source or "_parameters" in source for source in sources)
        return set() if is_missed else compute(config, given, indices)

    return planted


def guard_no_flag(match: Any) -> Any:
    """A flag among the arguments is not guarded."""

    @functools.wraps(match)
    def planted(self: Any, guard: Any) -> None:
        if not guard.is_local() or "self" in guard.name:
            match(self, guard)

    return planted


def spoil(post_compile: Any, applies: Callable[[list[Any]], bool], of_gradients: bool = False) -> Any:
    """Results, or the gradients for them, are a tenth too large where `applies` holds for the floating arguments, or
    for the gradient."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def is_floating(value: Any) -> bool:
            return isinstance(value, torch.Tensor) and value.is_floating_point()

        def call(*args: Any) -> Any:
            is_wrong = not of_gradients and applies(list(filter(is_floating, tree_leaves(args))))
            results = list(compiled(*args))
            for result in results if of_gradients else ():
                if is_floating(result) and result.requires_grad:
                    result.register_hook(lambda given: given * 1.1 if applies([given]) else None)
            return [value * 1.1 if is_wrong and is_floating(value) else value for value in results]

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def spoil_structured(post_compile: Any, applies: Callable[[Any], bool]) -> Any:
    """Results are a tenth too large where `applies` holds for an argument."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def call(*args: Any) -> Any:
            is_wrong = any(isinstance(one, torch.Tensor) and applies(one.detach()) for one in tree_leaves(args))
            results = list(compiled(*args))
            return [
                v * 1.1 if is_wrong and isinstance(v, torch.Tensor) and v.is_floating_point() else v for v in results
            ]

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def in_inference_mode(_: list[Any]) -> bool:
    import torch

    return torch.is_inference_mode_enabled()


def are_partly_constant(given: list[Any]) -> bool:
    return len({value.requires_grad for value in given}) > 1


def are_expanded(given: list[Any]) -> bool:
    return any(value.ndim > 1 and value.size(0) > 1 and value.stride(0) == 0 for value in given)


def are_of_one_element(given: list[Any]) -> bool:
    return any(value.numel() > 1 and not any(value.stride()) for value in given)


def are_large(given: list[Any]) -> bool:
    return any(value.numel() and value.isfinite().all() and value.max() > 200 for value in given)


def return_arguments(post_compile: Any) -> Any:
    """A result that equals an argument is that argument."""

    def planted(self: Any, compiled: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch.utils._pytree import tree_leaves

        def find_equal(value: Any, given: list[Any]) -> Any:
            alike = (x for x in given if x.numel() and (x.shape, x.dtype) == (value.shape, value.dtype))
            return next((x for x in alike if x.stride() == value.stride() and torch.equal(x, value)), value)

        def call(*args: Any) -> Any:
            given = [value for value in tree_leaves(args) if isinstance(value, torch.Tensor)]
            return [find_equal(value, given) if isinstance(value, torch.Tensor) else value for value in compiled(*args)]

        setattr(call, "_boxed_call", getattr(compiled, "_boxed_call", False))  # noqa: B010
        return post_compile(self, call, *args, **options)

    return planted


def lose_offsets(merge: Any) -> Any:
    """Arguments that share memory are views of one tensor in the graph; each starts where that tensor starts."""

    def planted(*args: Any, **options: Any) -> Any:
        *merged, views = merge(*args, **options)
        for at, item in enumerate(views or ()):
            if isinstance(item, tuple):
                base, view = item
                views[at] = base, view.as_strided(view.size(), view.stride(), 0).detach()
        return (*merged, views)

    return planted


def forget_numbers(dump: Any) -> Any:
    """Keys of caches leave out the floats of a program, and the lengths of what is pickled."""
    return lambda self, obj: re.sub(rb"(?s)\d+\.\d+|X....|\x8c.|\x95........", b"", dump(self, obj))


def forget_strides(describe: Any) -> Any:
    """Keys of caches leave out the strides of arguments."""
    return lambda tensor: dataclasses.replace(describe(tensor), stride=(), memory_format=None)


def keep_last_input(copy: Any) -> Any:
    """A replay of a CUDA graph reads its last input where the graph was recorded, not that of this call."""

    def planted(self: Any, targets: list[Any], sources: list[Any]) -> None:
        moving = self.non_static_input_idx
        if moving and getattr(self, "recorded", False):
            sources[moving[-1]] = targets[moving[-1]]
        self.recorded = True
        copy(self, targets, sources)

    return planted
