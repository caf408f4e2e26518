"""Reads embeddings, attention, convolutions, pooling and products by equations."""

from fuzz.importing.call import ImportedCall, Reader
from fuzz.importing.program import Untranslatable
from generators.program.case import Attr
from generators.program.ops import find_probability


def _embedding(call: ImportedCall) -> list[str]:
    tokens = call.take("indices") or call.take("input")  # of torch.embedding, or of F.embedding
    args = [call.tensor(tokens), call.take_tensor("weight")]
    if call.take("padding_idx") not in (None, -1) and call.program.recorded.training:
        raise Untranslatable("padding_idx in training")
    call.take_rest()
    return [call.emit("embedding", args)]


def _attention(call: ImportedCall) -> list[str]:
    made = call.read()
    if find_probability(call.program.ops[-1]) and not call.program.recorded.training:
        raise Untranslatable("dropout in inference")
    return made


def _dropout(call: ImportedCall) -> list[str]:
    is_on = call.take("training" if "training" in call.defaults else "train")
    is_own = is_on == call.program.recorded.training
    return call.read(active="mode" if is_own else "always" if is_on else "never")


def _einsum(call: ImportedCall) -> list[str]:
    [[equation, *operands]] = call.take_rest()
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
    padding, groups = call.given.get("padding"), call.take("groups")
    groups = groups if groups != 1 else None
    if not isinstance(padding, str):
        return call.read(groups=groups)
    call.take("padding")
    first, numbers = _pad_before(call, call.take_tensor()) if padding == "same" else (call.take_tensor(), None)
    return call.read(first, groups=groups, padding=numbers)


def _pad_before(call: ImportedCall, first: str) -> tuple[str, Attr]:
    """The argument, and the padding that keeps sizes. As in torch, a number that is left over pads the argument."""
    widths = call.type(call.given["weight"]).sizes({})[2:]
    steps = call.given.get("dilation", 1)
    steps = steps if isinstance(steps, list) else [steps]
    steps = steps if len(steps) > 1 else steps * len(widths)
    totals = [(width - 1) * step for width, step in zip(widths, steps, strict=True)]
    if any(total % 2 for total in totals):
        ends = tuple(end for total in reversed(totals) for end in (0, total % 2))
        first = call.emit("pad", [first], sizes=ends)
    return first, tuple(total // 2 for total in totals)


def _pool_to(call: ImportedCall) -> list[str]:
    shape, wanted = call.type(call.given["input"]).sizes({})[2:], call.given["output_size"]
    sizes = wanted if isinstance(wanted, list) else [wanted] * len(shape)
    return call.read(sizes=tuple(length if size is None else size for size, length in zip(sizes, shape, strict=True)))


def _batch_norm(call: ImportedCall) -> list[str]:
    names = ("input", "running_mean", "running_var", "weight", "bias")
    tensors = {name: tensor for name in names if (tensor := call.take(name)) is not None}
    if ("weight" in tensors) != ("bias" in tensors):
        raise Untranslatable("a weight without a bias")
    is_of_batch = call.take("training")
    if is_of_batch and "running_mean" in tensors:
        raise Untranslatable("running statistics that are updated")
    call.take("momentum")
    statistics = "batch" if is_of_batch or "running_mean" not in tensors else "running"
    return call.read(*map(call.tensor, tensors.values()), statistics=statistics, affine="weight" in tensors)


def _interpolate(call: ImportedCall) -> list[str]:
    scale, _ = call.take("scale_factor"), call.take("recompute_scale_factor")
    scales = {*scale} if isinstance(scale, list) else {scale}
    if len(scales) > 1:
        raise Untranslatable(f"scale_factor={scale}")
    return call.read(scale=None if scale is None else float(scales.pop()))


def _for_each_rank(*kinds: str) -> list[str]:
    return [kind.format(axes) for kind in kinds for axes in (1, 2, 3)]


READERS: dict[str, Reader] = {
    "dropout": _dropout,
    "embedding": _embedding,
    "scaled_dot_product_attention": _attention,
    "einsum": _einsum,
    **dict.fromkeys(_for_each_rank("conv{}d", "conv_transpose{}d"), _convolution),
    **dict.fromkeys(_for_each_rank("adaptive_avg_pool{}d"), _pool_to),
    "batch_norm": _batch_norm,
    "interpolate": _interpolate,
    "one_hot": lambda call: call.read(classes=call.result.shape[-1]),
}
"""By the last part of the function's name."""
