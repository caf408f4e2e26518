"""Which constants of a program differ from those of a pattern that matched it: the matcher ignores them.

Patterns of attention come to the matcher serialized, with `Ignored()` for every number, list and dtype. Here the
pattern's function is traced anew with the operands of the match, and the two graphs are walked together.
"""

import inspect
import operator
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from fuzz.check.controls.inductor import refuse_matches
from fuzz.check.coverage import rewrite_name
from fuzz.check.torch_internals import require
from fuzz.protocol.controls import ConstantDiffers, ConstantsNotCompared, Observation

_MATCHER = "torch._inductor.pattern_matcher"
_KNOWN, _TO_PATTERN = (_MATCHER, "_known_precompiled_patterns"), (_MATCHER, "fx_to_pattern")
_MODE_OF, _MODE = ("torch._dynamo.utils", "detect_fake_mode"), ("torch._subclasses.fake_tensor", "FakeTensorMode")
_AXES = frozenset({"amax", "sum", "permute", "transpose", "softmax", "_softmax", "mean", "unsqueeze", "squeeze"})
"""Operations whose whole numbers are axes: -1 and 3 are one of four."""

_SHAPES = frozenset({"expand", "view", "reshape", "_unsafe_view", "clone", "empty", "rand", "inductor_random"})
"""Operations whose numbers are sizes, which follow from the operands."""

_OPERANDS = frozenset({"KeywordArg", "ExclusiveKeywordArg", "Ignored", "Arg"})
_EXAMPLE_RANK = 4
_Means = dict[Any, Any] | None  # None where the sizes are the program's
_NO_CONSTANT = frozenset({"device", "layout", "pin_memory", "memory_format"})


class Unlike(Exception):
    """The two graphs have other operations, so that constants can't be compared."""


@contextmanager
def compare_constants(record: Callable[[Observation], None]) -> Iterator[None]:
    """While entered, no pattern of attention takes a program with other constants; those that differ are recorded.

    Raises `SubjectError` where this torch lacks what it takes.
    """

    def refuses(entry: Any, match: Any) -> bool:
        pattern = rewrite_name(entry)
        if "sfdp" not in pattern:
            return False
        try:
            found = differences(entry, match.kwargs, match.output_nodes())
        except Unlike as reason:
            record(ConstantsNotCompared(pattern=pattern, why=str(reason)))
            return False
        for operation, program, expected in found:
            record(ConstantDiffers(pattern=pattern, operation=operation, program=program, expected=expected))
        return bool(found)

    for names in (_KNOWN, _TO_PATTERN, _MODE_OF, _MODE):
        require(*names)  # must raise here: within a pass it would be an error of the compiler
    with refuse_matches(refuses):
        yield


def differences(entry: Any, operands: dict[str, Any], outputs: list[Any]) -> list[tuple[str, str, str]]:
    """Constants that differ between the pattern of `entry` and what it matched, the nodes from `operands` to `outputs`:
    the operation, the program's and the pattern's. Raises `Unlike`."""
    origin = _find_origin(entry)
    try:
        return _compare(_as_pattern(origin, _by_operands(origin, operands)), outputs, None)
    except Unlike:
        # Some operations leave no trace for some sizes; the serialized pattern was traced with the authors' examples.
        return _compare(_as_pattern(origin, _by_examples(origin)), outputs, _read_examples(origin, operands))


def trace_pattern(entry: Any, operands: dict[str, Any]) -> torch.fx.GraphModule:
    """The graph of `entry`'s pattern for such operands, with its own constants. Raises `Unlike`."""
    return _by_operands(_find_origin(entry), operands)


def _find_origin(entry: Any) -> tuple[Any, ...]:
    known = map(read_known_pattern, require(*_KNOWN))
    origin = next((item for item in known if item[4] is entry.pattern), None)
    if origin is None:
        raise Unlike("the pattern's text is not known")
    return origin


def read_known_pattern(item: Any) -> tuple[Any, ...]:
    """Search function, example inputs, trace function, scalars and serialized pattern; a tuple before torch 2.15."""
    names = ("search_fn", "example_inputs", "trace_fn", "scalar_workaround", "search_fn_pattern")
    return item if isinstance(item, tuple) else tuple(getattr(item, name) for name in names)


def _read_examples(origin: Any, operands: dict[str, Any]) -> dict[Any, Any]:
    """What constants of a pattern mean that follow from the examples' dtype and sizes; None where it is not known."""
    example = origin[1][0]
    query = operands["query"].meta["val"].dtype
    means: dict[Any, Any] = {example.dtype: query}
    if example.dtype.is_floating_point and query.is_floating_point:
        means |= {torch.finfo(example.dtype).min: torch.finfo(query).min}
    # Older patterns take their scale from head_dim.
    root = float(example.shape[-1]) ** 0.5
    return means | dict.fromkeys((root, 1 / root, root**0.5, root**-0.5))


def _compare(traced: Any, nodes: list[Any], means: _Means) -> list[tuple[str, str, str]]:
    outputs = getattr(traced, "outputs", [traced])
    found: dict[tuple[str, str, str], None] = {}
    for expression, node in zip(outputs, nodes, strict=False):
        if expression is not None and node is not None:
            found |= dict.fromkeys(_walk(expression, node, set(), means))
    return list(found)


def _by_operands(origin: Any, operands: dict[str, Any]) -> torch.fx.GraphModule:
    """The pattern traced with the operands. Raises `Unlike` where it does not fit them."""
    search, examples, *_ = origin
    values = [operands.get(name) for name in inspect.signature(search).parameters]
    values = [value.meta["val"] if isinstance(value, torch.fx.Node) else value for value in values]
    tensors = [value for value in values if isinstance(value, torch.Tensor)]
    if any(isinstance(size, torch.SymInt) for tensor in tensors for size in (*tensor.shape, *tensor.stride())):
        raise Unlike("sizes are symbolic")
    # Of the examples, those that follow the workaround's scalars have no operand.
    examples = [*examples, *[None] * (len(values) - len(examples))]
    return _trace(origin, values, examples, require(*_MODE_OF)(values))


def _by_examples(origin: Any) -> torch.fx.GraphModule:
    """The pattern as its authors traced it: its sizes say nothing here, its axes do."""
    examples = [*origin[1], *(origin[3] or {}).values()]
    return _trace(origin, examples, examples, require(*_MODE)())


def _trace(origin: Any, values: list[Any], examples: list[Any], mode: Any) -> torch.fx.GraphModule:
    """The pattern of `values`, which want gradients as `examples` do."""
    search, _, trace, _, _ = origin
    grads = [isinstance(example, torch.Tensor) and example.requires_grad for example in examples]
    try:
        with mode:
            graph: torch.fx.GraphModule = trace(search, [_fresh(v, g) for v, g in zip(values, grads, strict=False)])
    except (RuntimeError, ValueError, IndexError) as error:
        raise Unlike(f"the pattern can't be traced: {error}") from error
    return graph


def _as_pattern(origin: Any, graph: torch.fx.GraphModule) -> Any:
    """What the matcher makes of a graph, its constants included. Raises `Unlike`."""
    names = [*inspect.signature(origin[0]).parameters]
    try:
        return require(*_TO_PATTERN)(graph, argnames=names, scalar_workaround=origin[3])
    except (RuntimeError, ValueError, IndexError) as error:
        raise Unlike(f"the pattern can't be read: {error}") from error


def _fresh(value: Any, grad: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    grad = grad and value.is_floating_point()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device, requires_grad=grad)


def _walk(expression: Any, node: Any, seen: set[tuple[int, int]], means: _Means) -> Iterator[tuple[str, str, str]]:
    """Every pair of constants, from the outputs down, that differ. Raises `Unlike`."""
    if (id(expression), id(node)) in seen:
        return
    seen.add((id(expression), id(node)))
    if not isinstance(node, torch.fx.Node) or node.target not in expression.fns:
        raise Unlike(f"the pattern has {expression.fns[0]}, the program {getattr(node, 'target', node)}")
    name = _name(node.target)
    if len(node.args) != len(expression.args):
        raise Unlike(f"{name} has another number of arguments")
    pairs = list(zip(expression.args, node.args, strict=True))
    pairs += [(value, node.kwargs.get(key)) for key, value in expression.kwargs.items() if key not in _NO_CONSTANT]
    for wanted, given in pairs:
        if hasattr(wanted, "fns"):
            yield from _walk(wanted, given, seen, means)
        elif type(wanted).__name__ in _OPERANDS or isinstance(given, torch.fx.Node):
            continue
        elif not _equal(name, node, wanted, given, means):
            meant = wanted if means is None or isinstance(wanted, list) else means.get(wanted, wanted)
            yield name, _format(given), _format(meant)


def _equal(name: str, node: Any, wanted: Any, given: Any, means: _Means) -> bool:
    if node.target is operator.getitem or name in _SHAPES:
        return True
    if name == "permute" and isinstance(wanted, (list, tuple)):
        return _from_end(wanted) == _from_end(given)
    if name in _AXES:
        # A pattern's first argument has the rank of its own axes when it is exact; else axes count from the end.
        rank = node.args[0].meta["val"].dim()
        return bool(_axes(wanted, rank if means is None else _EXAMPLE_RANK) == _axes(given, rank))
    if isinstance(wanted, (list, tuple)):
        return name == "full" or list(wanted) == list(given)
    if means is not None and isinstance(wanted, (float, int, torch.dtype)) and wanted in means:
        meant = means[wanted]
        return meant is None or bool(meant == given) or bool(wanted == given)
    return bool(wanted == given)


def _from_end(axes: Any) -> tuple[int, ...]:
    """A permutation by what it does to the last axes, so that ranks compare: [0, 1, 3, 2] and [1, 0] are the same."""
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


def _name(target: Any) -> str:
    packet = getattr(target, "overloadpacket", target)
    return str(getattr(packet, "__name__", packet)).removeprefix("aten.")
