"""What a contract says, read off a case: over inputs like the values it names, in whatever way they were computed."""

from collections.abc import Mapping
from dataclasses import replace

from corpus.passes.plain import Plain
from generators.program.case import Case, Contract, Input, TensorType
from generators.program.contracts import as_bhsd
from generators.program.edits import input_like
from generators.program.ops import OPS
from generators.program.sizes import Size
from generators.program.values import DISTRIBUTIONS


def plain_of(case: Case, contract: Contract, types: Mapping[str, TensorType]) -> Plain:
    """What the contract says, over inputs like the values it reads, lying in memory as these do."""
    q, k, v = (_head(case, contract, name, types) for name in (contract.q, contract.k, contract.v))
    alibi, bias, sinks = (
        None if name is None else _like(case, name, types[name])
        for name in (contract.alibi, contract.bias, contract.sinks)
    )
    mask, keeps = None, contract.mask_means == "keep"
    if contract.mask is not None:
        mask, keeps = _mask(case, contract.mask, types, keeps=keeps)
    if contract.layout == "bsd":
        bias, mask = (_with_head_axis(item) for item in (bias, mask))
    fused = any(op.name == contract.output and op.kind == "sdpa" for op in case.ops)
    # Kernels know no finite fill: one stands in for -inf, in rows that keep a key.
    return Plain(
        case.dims,
        q,
        k,
        v,
        contract.scale,
        contract.softcap,
        alibi,
        mask,
        keeps,
        bias,
        contract.causal,
        contract.window,
        sinks,
        contract.dropout,
        case.mode,
        case.dynamic,
        fused,
    )


def _head(case: Case, contract: Contract, name: str, types: Mapping[str, TensorType]) -> Input:
    kind = types[name]
    item = _like(case, name, TensorType(as_bhsd(contract, kind), kind.dtype))
    given = any(i.name == name for i in case.inputs)
    if not given or contract.layout == "bshd":
        # Mostly a transposition has made it from [batch, length, heads, dim].
        item = replace(item, layout="heads_inner")
    return item


def _like(case: Case, name: str, kind: TensorType) -> Input:
    """An input in place of a value: with the numbers of the input it is or is a view of, else plain ones."""
    origin = _origin(case, name)
    if origin is not None:
        numbers = DISTRIBUTIONS[origin.values.kind]
        if kind.dtype in numbers.dtypes and kind.rank >= numbers.min_rank:
            layout = origin.layout if origin.name == name else "contiguous"
            return Input(name, kind.shape, kind.dtype, origin.values, layout)
    return input_like(name, kind, 0)


def _origin(case: Case, name: str) -> Input | None:
    """The input that a value is a view or a cast of."""
    made = {op.name: op for op in case.ops}
    while name in made and len(made[name].args) == 1 and not OPS[made[name].kind].owns_memory:
        name = made[name].args[0]
    return next((i for i in case.inputs if i.name == name), None)


def _mask(case: Case, name: str, types: Mapping[str, TensorType], *, keeps: bool) -> tuple[Input, bool]:
    """The mask before it was negated and expanded, and whether True in it keeps a key."""
    made = {op.name: op for op in case.ops}
    while name in made and made[name].kind in ("logical_not", "expand", "expand_as"):
        keeps = keeps != (made[name].kind == "logical_not")
        name = made[name].args[0]
    if _origin(case, name) is None:
        keeps = False
    return _like(case, name, types[name]), keeps


def _with_head_axis(item: Input | None) -> Input | None:
    if item is None or len(item.shape) < 3:
        return item
    return replace(item, shape=(item.shape[0], Size.of(1), *item.shape[1:]))
