"""The constants of an attention pattern beside those of a program that it matches.

Serialized patterns have `Ignored()` for every number, list and dtype. To compare constants, the pattern's function is
traced again.
"""

import inspect
import math
import operator
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, fx

from fuzz.check.judge.case_run import CaseRun
from fuzz.check.run.subject_builder import Subject
from fuzz.check.run.subject_changes import refuse_matches
from fuzz.check.torch_api.coverage import rewrite_name
from fuzz.check.torch_api.torch_internals import require
from fuzz.protocol import SubjectResult
from fuzz.protocol.rewrites import OtherConstant, WrongRewrite

_KNOWN = ("torch._inductor.pattern_matcher", "_known_precompiled_patterns")
_MODE = ("torch._subclasses.fake_tensor", "FakeTensorMode")
_AXES = frozenset({"amax", "sum", "permute", "transpose", "softmax", "_softmax", "mean", "unsqueeze", "squeeze"})
"""Operations whose whole numbers are axes: -1 and 3 may be the same axis."""

_SHAPES = frozenset({"expand", "view", "reshape", "_unsafe_view", "clone", "empty", "rand", "inductor_random"})
"""Operations whose numbers are sizes, which follow from the operands."""

_EXAMPLE_RANK = 4
_ROOT_ERROR = 1e-6
_NO_CONSTANT = frozenset({"device", "layout", "pin_memory", "memory_format"})


def compare_constants(record: Callable[[WrongRewrite], None]) -> AbstractContextManager[None]:
    """While entered, an attention pattern is not applied to a program whose constants differ from the pattern's.

    `record` is called with each rewrite that is refused.
    """

    def refuses(entry: Any, match: Any) -> bool:
        if "sfdp" not in rewrite_name(entry):
            return False
        outputs = {index: node for index, node in enumerate(match.output_nodes()) if node is not None}
        operands = {name: getattr(value, "meta", {}).get("val", value) for name, value in match.kwargs.items()}
        try:
            constants = tuple(find_differences(entry, operands, [*outputs], [*outputs.values()]))
        except Unlike:
            return False
        if constants:
            record(WrongRewrite(rewrite_name(entry), constants=constants))
        return bool(constants)

    return refuse_matches(refuses)


def prove_constants(judgement: SubjectResult, case: CaseRun, subject: Subject) -> SubjectResult:
    """`judgement` on an error. If there is no error when patterns must match constants, the rewrites that are refused
    then are named as wrong."""
    refused: list[WrongRewrite] = []
    try:
        with compare_constants(refused.append):
            case.run_anew(subject)
    except Exception:
        return judgement
    return replace(judgement, wrong_rewrites=tuple({rewrite.pattern: rewrite for rewrite in refused}.values()))


def read_outputs(graph: fx.GraphModule) -> list[Any]:
    found = graph.graph.output_node().args[0]
    return list(found) if isinstance(found, (list, tuple)) else [found]


class Unlike(Exception):
    """A pattern can't be traced with its operands, or its graph differs from the program's in more than constants."""


def trace_pattern(entry: Any, operands: dict[str, Any]) -> fx.GraphModule:
    """The graph of a pattern for operands. Raises `Unlike`, and `SubjectError` if torch hides its patterns."""
    origin = find_origin(entry)
    return trace_values(origin, [operands.get(name) for name in inspect.signature(origin[0]).parameters])


def find_differences(entry: Any, operands: dict[str, Any], kept: list[int], program: list[Any]) -> list[OtherConstant]:
    """The constants of a program that differ from the pattern's.

    `kept`: the indices of the program's outputs among the pattern's. The pattern is traced with its authors' examples,
    because some operations leave no trace for sizes of 1. Raises as `trace_pattern`.
    """
    origin = find_origin(entry)
    examples, scalars = origin[1], origin[3] or {}
    traced = read_outputs(trace_values(origin, [*examples, *(operands.get(name, scalars[name]) for name in scalars)]))
    example, query = examples[0], operands["query"]
    means: dict[Any, Any] = {example.dtype: query.dtype}
    if example.dtype.is_floating_point and query.dtype.is_floating_point:
        means |= {torch.finfo(example.dtype).min: torch.finfo(query.dtype).min}
    # Older patterns take their scale from head_dim.
    means |= {float(example.shape[-1]) ** power: query.shape[-1] ** power for power in (0.5, -0.5, 0.25, -0.25)}
    seen: set[tuple[Any, Any]] = set()
    pairs = [(traced[index], output) for index, output in zip(kept, program, strict=True)]
    return sorted({constant for pattern, node in pairs for constant in _compare_nodes(pattern, node, means, seen)})


def find_origin(entry: Any) -> tuple[Any, ...]:
    known = map(read_known_pattern, require(*_KNOWN))
    origin = next((item for item in known if item[4] is entry.pattern), None)
    if origin is None:
        raise Unlike("the pattern's text is not known")
    return origin


def read_known_pattern(item: Any) -> tuple[Any, ...]:
    """Search function, example inputs, trace function, scalars and serialized pattern (a tuple before torch 2.15)."""
    names = ("search_fn", "example_inputs", "trace_fn", "scalar_workaround", "search_fn_pattern")
    return item if isinstance(item, tuple) else tuple(getattr(item, name) for name in names)


def trace_values(origin: tuple[Any, ...], values: list[Any]) -> fx.GraphModule:
    """The graph of a pattern for values, which require gradients as its examples do."""
    search, examples, trace, _, _ = origin
    # The scalars of the workaround have no example.
    examples = [*examples, *[None] * (len(values) - len(examples))]
    grads = [isinstance(example, Tensor) and example.requires_grad for example in examples]
    try:
        with require(*_MODE)():
            graph: fx.GraphModule = trace(search, [_fresh(v, g) for v, g in zip(values, grads, strict=False)])
    except (RuntimeError, ValueError, IndexError) as error:
        raise Unlike(f"the pattern can't be traced: {error}") from error
    return graph


def _fresh(value: Any, grad: bool) -> Any:
    if not isinstance(value, Tensor):
        return value
    grad = grad and value.is_floating_point()
    return torch.empty_strided(value.shape, value.stride(), dtype=value.dtype, device=value.device, requires_grad=grad)


def _compare_nodes(
    pattern: fx.Node, program: Any, means: dict[Any, Any], seen: set[tuple[Any, Any]]
) -> Iterator[OtherConstant]:
    """The constants that differ in two nodes and in all nodes before them. Skips pairs in `seen`. Raises `Unlike`.

    means: constants that follow from the pattern's examples, with their counterparts for the operands
    """
    if pattern.op == "placeholder" or (pattern, program) in seen:
        return
    seen.add((pattern, program))
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
            yield from _compare_nodes(wanted, given, means, seen)
            continue
        meant = means.get(wanted, wanted) if isinstance(wanted, (int, float, torch.dtype)) else wanted
        if isinstance(given, fx.Node):
            # The matcher accepts a tensor in place of a number that it ignores.
            yield OtherConstant(packet.__name__, "a tensor", _format(meant))
        elif not _is_equal(packet.__name__, program, wanted, given, meant):
            yield OtherConstant(packet.__name__, _format(given), _format(meant))


def _is_equal(name: str, node: fx.Node, wanted: Any, given: Any, meant: Any) -> bool:
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
    if isinstance(value, (list, tuple)):
        return str(value[0]) if len(value) == 1 else str(list(value))
    return str(value).removeprefix("torch.")
