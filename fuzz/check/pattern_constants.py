"""The constants of a pattern of attention that differ from those of a program that the pattern matched.

Serialized patterns have `Ignored()` for every number, list and dtype. Here the pattern's function is traced again, and
its graph is compared with the program's.
"""

import inspect
import math
import operator
from typing import Any

import torch
from torch import fx

from fuzz.check.exact_graph import read_outputs
from fuzz.check.torch_internals import require

_KNOWN = ("torch._inductor.pattern_matcher", "_known_precompiled_patterns")
_MODE = ("torch._subclasses.fake_tensor", "FakeTensorMode")
_AXES = frozenset({"amax", "sum", "permute", "transpose", "softmax", "_softmax", "mean", "unsqueeze", "squeeze"})
"""Operations whose whole numbers are axes: -1 and 3 are one of four."""

_SHAPES = frozenset({"expand", "view", "reshape", "_unsafe_view", "clone", "empty", "rand", "inductor_random"})
"""Operations whose numbers are sizes, which follow from the operands."""

_EXAMPLE_RANK = 4
_ROOT_ERROR = 1e-6
_NO_CONSTANT = frozenset({"device", "layout", "pin_memory", "memory_format"})


class Unlike(Exception):
    """A pattern can't be traced with operands, or its graph differs from the program's in more than constants."""


def trace_pattern(entry: Any, operands: dict[str, Any]) -> fx.GraphModule:
    """The graph of a pattern for operands. Raises `Unlike`, and `SubjectError` where torch hides patterns."""
    origin = _find_origin(entry)
    return _trace(origin, [operands.get(name) for name in inspect.signature(origin[0]).parameters])


def find_differences(entry: Any, operands: dict[str, Any], kept: list[int], program: list[Any]) -> list[str]:
    """The constants of a program that differ from the pattern's, such as "amax [-2] for [-1]".

    `kept`: the places of the program's outputs among the pattern's. The pattern is traced with the examples of its
    authors, since some operations leave no trace for sizes of 1. Raises as `trace_pattern`.
    """
    origin = _find_origin(entry)
    examples, scalars = origin[1], origin[3] or {}
    traced = read_outputs(_trace(origin, [*examples, *(operands.get(name, scalars[name]) for name in scalars)]))
    example, query = examples[0], operands["query"]
    means: dict[Any, Any] = {example.dtype: query.dtype}
    if example.dtype.is_floating_point and query.dtype.is_floating_point:
        means |= {torch.finfo(example.dtype).min: torch.finfo(query.dtype).min}
    # Older patterns take their scale from head_dim.
    means |= {float(example.shape[-1]) ** power: query.shape[-1] ** power for power in (0.5, -0.5, 0.25, -0.25)}
    walk = _Walk(means)
    for index, output in zip(kept, program, strict=True):
        walk.compare(traced[index], output)
    return sorted(walk.found)


def _find_origin(entry: Any) -> tuple[Any, ...]:
    known = map(read_known_pattern, require(*_KNOWN))
    origin = next((item for item in known if item[4] is entry.pattern), None)
    if origin is None:
        raise Unlike("the pattern's text is not known")
    return origin


def read_known_pattern(item: Any) -> tuple[Any, ...]:
    """Search function, example inputs, trace function, scalars and serialized pattern (a tuple before torch 2.15)."""
    names = ("search_fn", "example_inputs", "trace_fn", "scalar_workaround", "search_fn_pattern")
    return item if isinstance(item, tuple) else tuple(getattr(item, name) for name in names)


def _trace(origin: tuple[Any, ...], values: list[Any]) -> fx.GraphModule:
    """The graph of a pattern for values, which require gradients as its examples do."""
    search, examples, trace, _, _ = origin
    # The scalars of the workaround have no example.
    examples = [*examples, *[None] * (len(values) - len(examples))]
    grads = [isinstance(example, torch.Tensor) and example.requires_grad for example in examples]
    try:
        with require(*_MODE)():
            graph: fx.GraphModule = trace(search, [_fresh(v, g) for v, g in zip(values, grads, strict=False)])
    except (RuntimeError, ValueError, IndexError) as error:
        raise Unlike(f"the pattern can't be traced: {error}") from error
    return graph


def _fresh(value: Any, grad: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    grad = grad and value.is_floating_point()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device, requires_grad=grad)


class _Walk:
    """Compares a pattern with a program, from outputs to operands; `found` has the constants that differ.

    means: constants that follow from the pattern's examples, with their counterparts for the operands
    """

    def __init__(self, means: dict[Any, Any]) -> None:
        self._means = means
        self.found: set[str] = set()
        self._seen: set[tuple[Any, Any]] = set()

    def compare(self, pattern: fx.Node, program: Any) -> None:
        """Compares two nodes and all nodes before them. Raises `Unlike`."""
        if pattern.op == "placeholder" or (pattern, program) in self._seen:
            return
        self._seen.add((pattern, program))
        if not isinstance(program, fx.Node) or program.target != pattern.target:
            raise Unlike(f"the pattern has {pattern.target}, the program {getattr(program, 'target', program)}")
        if len(program.args) != len(pattern.args):
            raise Unlike(f"{pattern.target} has another number of arguments")
        pairs = list(zip(pattern.args, program.args, strict=True))
        schema: Any = getattr(pattern.target, "_schema", None)
        defaults = {item.name: item.default_value for item in (schema.arguments if schema else ())}
        both = [{**defaults, **node.kwargs} for node in (pattern, program)]
        named = {**pattern.kwargs, **program.kwargs}.keys() - _NO_CONSTANT
        pairs += [(both[0].get(key), both[1].get(key)) for key in named]
        packet: Any = getattr(pattern.target, "overloadpacket", pattern.target)
        for wanted, given in pairs:
            if isinstance(wanted, fx.Node):
                self.compare(wanted, given)
            elif isinstance(given, fx.Node):
                # The matcher takes a tensor for a number that it ignores.
                self.found.add(f"{packet.__name__} a tensor for {_format(self._means.get(wanted, wanted))}")
            elif not self._is_equal(packet.__name__, program, wanted, given):
                meant = wanted if isinstance(wanted, list) else self._means.get(wanted, wanted)
                self.found.add(f"{packet.__name__} {_format(given)} for {_format(meant)}")

    def _is_equal(self, name: str, node: fx.Node, wanted: Any, given: Any) -> bool:
        is_list = isinstance(wanted, (list, tuple))
        if node.target is operator.getitem or name in _SHAPES or (name == "full" and is_list):
            return True
        if name == "permute" and is_list:
            return _count_from_end(wanted) == _count_from_end(given)
        if name in _AXES:
            source: Any = node.args[0]
            return bool(_axes(wanted, _EXAMPLE_RANK) == _axes(given, source.meta["val"].dim()))
        if is_list:
            return list(wanted) == list(given)
        meant = self._means.get(wanted, wanted)
        if isinstance(meant, float) and isinstance(given, float) and math.isclose(meant, given, rel_tol=_ROOT_ERROR):
            return True
        return given in (meant, wanted)


def _count_from_end(axes: Any) -> tuple[int, ...]:
    """A permutation of the last axes, whatever the rank: equal for [0, 1, 3, 2] and [1, 0]."""
    rank = len(axes)
    order = [axis % rank - rank for axis in axes]
    while order and order[0] == -len(order):
        del order[0]
    return tuple(order)


def _axes(value: Any, rank: int) -> Any:
    """Axes counted from the end."""
    if isinstance(value, (list, tuple)):
        return sorted(_axes(item, rank) for item in value)
    return value % max(1, rank) - max(1, rank) if isinstance(value, int) and not isinstance(value, bool) else value


def _format(value: Any) -> str:
    return str(list(value)) if isinstance(value, (list, tuple)) else str(value).removeprefix("torch.")
