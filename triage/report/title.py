"""The title of a report: the symptom, in the words of the one who reads it."""

import math
import textwrap
from collections.abc import Iterator

from fuzz.campaign.symptom import operation_of
from fuzz.protocol import SubjectResult, Verdict
from generators.program.case import Case, Op, TensorType
from generators.program.dtypes import LOW_PRECISION
from generators.program.type_check import attributes, types_of

_PRODUCTS = frozenset({"matmul", "bmm", "einsum", "baddbmm"})
_SOFTMAX = frozenset({"softmax", "log_softmax"})
_MASKED = frozenset({"where", "masked_fill"})
_VIEWS = frozenset(
    {
        "view",
        "reshape",
        "permute",
        "transpose",
        "mT",
        "unsqueeze",
        "squeeze",
        "unflatten",
        "flatten",
        "expand",
        "chunk",
        "unbind",
        "select",
        "contiguous",
        "clone",
        "scalar",
    }
)
_MASK_VALUES = {
    "small_counts": "an integer mask of values other than 0 and 1",
    "signed": "an integer mask of negative values",
    "empty_row": "a mask that hides whole rows",
    "empty_row_mask": "a mask that hides whole rows",
    "zeros": "a mask that hides every key",
}


def title(case: Case, result: SubjectResult, device: str) -> str:
    """One line such as "[Inductor][CPU] attention with softmax over dim -2: compiled off by 2.3, eager by 3e-08"."""
    compiler = "" if result.verdict is Verdict.EAGER_SUSPECT else "[Inductor]"
    return f"{compiler}[{device.upper()}] {program(case)}: {symptom(result)}"


def symptom(result: SubjectResult) -> str:
    """How the compiled program fails, or eager, with its numbers."""
    numbers, verdict = result.numbers, result.verdict
    if verdict is Verdict.EAGER_SUSPECT:
        error = numbers.get("eager_error", math.inf)
        if not math.isfinite(error):
            return f"eager gives NaN or inf, float64 is finite ({operation_of(result)})"
        return f"eager off by {error:.2g} (float64), values up to {numbers['scale']:.2g} ({operation_of(result)})"
    if verdict in (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT) and "compiled_error" in numbers:
        what = "gradient" if verdict is Verdict.WRONG_GRADIENT else "compiled"
        off = f"{what} off by {numbers['compiled_error']:.2g}, eager by {numbers['eager_error']:.2g} (float64)"
        return f"{off}, values up to {numbers['scale']:.2g}"
    if verdict is Verdict.NONFINITE:
        return "compiled gives NaN or inf, eager and float64 are finite"
    if verdict in (Verdict.COMPILE_ERROR, Verdict.RUNTIME_ERROR):
        return f"{'compiling' if verdict is Verdict.COMPILE_ERROR else 'the compiled program'} raises {textwrap.shorten(result.message, 90)}"
    return result.message or verdict.explanation


def program(case: Case) -> str:
    """The program in a few words: what it computes and what is unusual about it."""
    kinds = [op.kind for op in case.ops]
    if "sdpa" in kinds:
        what = "scaled_dot_product_attention"
    elif _SOFTMAX & set(kinds) and sum(kind in _PRODUCTS for kind in kinds) > 1:
        what = "attention"
    else:
        what = ", ".join(kind for kind in kinds if kind not in _VIEWS) or ", ".join(kinds)
    unusual = list(dict.fromkeys(_unusual(case)))[:2]
    if unusual:
        what += f" with {' and '.join(unusual)}"
    elif what == "attention":
        what += f" spelled {', '.join(kind for kind in kinds if kind not in _VIEWS)}"
    low = sorted({item.dtype for item in case.inputs if item.dtype in LOW_PRECISION})
    what += f" in {' and '.join(low)}" if low else ""
    what += " in training" if case.training else ""
    return what + (" with symbolic sizes" if case.dynamic else "")


def _unusual(case: Case) -> Iterator[str]:
    types = types_of(case)
    for op in case.ops:
        yield from _of_op(op, types)
    kinds = {op.kind for op in case.ops}
    for item in case.inputs:
        masks = not item.parameter and item.values.kind in _MASK_VALUES
        if masks and (kinds & _MASKED or item.values.kind == "empty_row_mask" or "sdpa" in kinds):
            yield _MASK_VALUES[item.values.kind]


def _of_op(op: Op, types: dict[str, TensorType]) -> Iterator[str]:
    attrs = attributes(op)
    scale = attrs.get("scale")
    if op.kind == "sdpa" and isinstance(scale, float) and scale < 0:
        yield "a negative scale"
    if op.kind == "sdpa" and attrs["is_causal"]:
        yield "is_causal"
    if op.kind in _SOFTMAX and attrs["dim"] not in (-1, types[op.args[0]].rank - 1):
        yield f"softmax over dim {attrs['dim']}"
    if op.kind in ("add", "sub") and len(op.args) == 2:
        left, right = (types[name] for name in op.args)
        if right.dtype == "bool" or "int" in right.dtype:
            yield f"a mask of dtype {right.dtype} added"
        elif left.rank != right.rank:
            yield f"a mask of rank {right.rank} added to scores of rank {left.rank}"
