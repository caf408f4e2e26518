"""Reads embeddings, attention, convolutions, pooling and products by equations."""

from typing import Any

from fuzz.importing.call import ImportedCall, Reader, freeze
from fuzz.importing.program import Untranslatable
from generators.program.case import Attr
from generators.program.ops import find_probability


def _embedding(call: ImportedCall) -> list[str]:
    given = call.bind("input", "weight", "padding_idx", "max_norm", "norm_type", "scale_grad_by_freq", "sparse")
    tokens, table = given["input"], given["weight"]
    if call.type(table).dtype in ("int64", "int32"):
        tokens, table = table, tokens  # torch.embedding takes the table first
    if given["padding_idx"] not in (None, -1) and call.program.recorded.training:
        raise Untranslatable("padding_idx in training")
    return [call.emit("embedding", [call.tensor(tokens), call.tensor(table)])]


def _attention(call: ImportedCall) -> list[str]:
    made = call.read()
    if find_probability(call.program.ops[-1]) and not call.program.recorded.training:
        raise Untranslatable("dropout in inference")
    return made


def _dropout(call: ImportedCall) -> list[str]:
    is_on = call.bind("input", "p", "training", "inplace")["training"] is not False
    is_own = is_on == call.program.recorded.training
    return call.read(active="mode" if is_own else "always" if is_on else "never")


def _einsum(call: ImportedCall) -> list[str]:
    equation, *operands = call.args
    operands = operands[0] if len(operands) == 1 and isinstance(operands[0], list) else operands
    equation = _write_out(equation.replace(" ", ""), [call.type(item).rank for item in operands])
    letters = dict.fromkeys(letter for letter in equation if letter.isalpha())
    taken = {letter for letter in letters if letter.islower()}
    free = (letter for letter in "abcdefghijklmnopqrstuvwxyz" if letter not in taken)
    renamed = {letter: letter if letter.islower() else next(free) for letter in letters}
    text = "".join(renamed.get(letter, letter) for letter in equation)
    terms, out = text.split("->")
    if len(operands) == 1 and sorted(terms) == sorted(out):
        return [call.emit("permute", [call.tensor(operands[0])], dims=tuple(map(terms.index, out)))]
    return [call.emit("einsum", [call.tensor(item) for item in operands], equation=text)]


def _write_out(equation: str, ranks: list[int]) -> str:
    """The equation with letters in place of "...", and with its result."""
    terms, arrow, out = equation.partition("->")
    parts = terms.split(",")
    counts = [rank - len(part.replace("...", "")) for part, rank in zip(parts, ranks, strict=True)]
    free = [letter for letter in "zyxwvutsrqponmlkjihgfedcba" if letter not in equation][: max(counts)]
    if not arrow:
        once = sorted(letter for letter in {*terms} if letter.isalpha() and terms.count(letter) == 1)
        out = "..." * ("..." in terms) + "".join(once)
    lead = ["".join(free[len(free) - count :]) for count in counts]
    named = [part.replace("...", letters) for part, letters in zip(parts, lead, strict=True)]
    return f"{','.join(named)}->{out.replace('...', ''.join(free))}"


def _convolution(call: ImportedCall) -> list[str]:
    more = ("output_padding", "groups", "dilation") if "transpose" in call.function else ("dilation", "groups")
    given = call.bind("input", "weight", "bias", "stride", "padding", *more)
    args = [call.tensor(given[name]) for name in ("input", "weight", "bias") if given[name] is not None]
    if isinstance(given["padding"], str):
        given["padding"] = _pad_before(call, args, given["dilation"]) if given["padding"] == "same" else None
    numbers = {name: _several(given[name]) for name in ("stride", "padding", *more) if name != "groups"}
    groups = given["groups"] if given["groups"] not in (None, 1) else None
    return [call.emit(call.function, args, **numbers, groups=groups)]


def _pad_before(call: ImportedCall, args: list[str], dilation: Any) -> list[int]:
    """The padding that keeps sizes. As in torch, a number that is left over pads the end of the argument before."""
    widths = call.program.types[args[1]].sizes({})[2:]
    steps = dilation if isinstance(dilation, list) else [dilation or 1]
    steps = steps if len(steps) > 1 else steps * len(widths)
    totals = [(width - 1) * step for width, step in zip(widths, steps, strict=True)]
    if any(total % 2 for total in totals):
        ends = tuple(end for total in reversed(totals) for end in (0, total % 2))
        args[0] = call.emit("pad", args[:1], sizes=ends)
    return [total // 2 for total in totals]


def _several(value: Any) -> Attr:
    """A number for each axis, or None for the default."""
    return None if value is None else freeze(value if isinstance(value, list) else [value])


def _pool_to(call: ImportedCall) -> list[str]:
    given = call.bind("input", "output_size")
    shape = call.type(given["input"]).sizes({})[2:]
    sizes = given["output_size"] if isinstance(given["output_size"], list) else [given["output_size"]] * len(shape)
    whole = tuple(length if size is None else size for size, length in zip(sizes, shape, strict=True))
    return [call.emit(call.function, [call.tensor(given["input"])], sizes=whole)]


def _batch_norm(call: ImportedCall) -> list[str]:
    given = call.bind("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    if (given["weight"] is None) != (given["bias"] is None):
        raise Untranslatable("a weight without a bias")
    if given["training"] and given["running_mean"] is not None:
        raise Untranslatable("running statistics that are updated")
    names = [name for name in ("running_mean", "running_var", "weight", "bias") if given[name] is not None]
    statistics = "batch" if given["training"] or given["running_mean"] is None else "running"
    args = [call.tensor(given[name]) for name in ("input", *names)]
    return [call.emit("batch_norm", args, statistics=statistics, affine=given["weight"] is not None, eps=given["eps"])]


def _interpolate(call: ImportedCall) -> list[str]:
    given = call.bind("input", "size", "scale_factor", "mode", "align_corners", "recompute_scale_factor", "antialias")
    scale = given["scale_factor"]
    if isinstance(scale, list) and len(set(scale)) > 1:
        raise Untranslatable(f"scale_factor={scale}")
    scale = scale[0] if isinstance(scale, list) else scale
    flags = {name: bool(given[name]) for name in ("align_corners", "antialias")}
    scaled = {"scale": float(scale)} if scale is not None else {"sizes": _several(given["size"])}
    return [call.emit("interpolate", [call.tensor(given["input"])], **scaled, mode=given["mode"] or "nearest", **flags)]


def _one_hot(call: ImportedCall) -> list[str]:
    given = call.bind("input", "num_classes")
    return [call.emit("one_hot", [call.tensor(given["input"])], classes=call.result.shape[-1])]


def _for_each_rank(*kinds: str) -> list[str]:
    return [kind.format(axes) for kind in kinds for axes in (1, 2, 3)]


READERS: dict[str, Reader] = {
    "dropout": _dropout,
    "normalize": lambda call: call.read(dim=1),
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
    **dict.fromkeys(_for_each_rank("conv{}d", "conv_transpose{}d"), _convolution),
    **dict.fromkeys(_for_each_rank("adaptive_avg_pool{}d"), _pool_to),
    "batch_norm": _batch_norm,
    "interpolate": _interpolate,
    "one_hot": _one_hot,
}
"""By the last part of the function's name."""
