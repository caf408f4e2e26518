"""Checks that a contract fits its program, and lists the operations that it describes."""

import math
from collections.abc import Mapping

from generators.errors import add_place, require
from generators.program.attention_options import OPTIONS, OVER_SCORES, PER_HEAD, Contract, Form
from generators.program.case import Case, TensorType
from generators.program.sizes import Size, show
from generators.program.values import category

_AXES = ("bhsd", "bshd", "bsd")
_CORNERS = ("top_left", "bottom_right")


def check_contract(contract: Contract, case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError if names, words, numbers, types or shapes of a contract do not fit."""
    with add_place("contracts", said="contract"):
        _check_names(contract, case, types)
        _check_values(contract)
        _check_shapes(contract, case.sizes, types)


def list_described_ops(case: Case, contract: Contract) -> frozenset[str]:
    """The operations that a contract describes, which lie between the values that it reads and its output.

    Special case: one of these operations also reads an input that the contract does not name, such as k if the contract
    names the transpose of k. Then the contract describes all operations that its output depends on.
    """
    made, reads = {op.name for op in case.ops}, set(contract.reads.values())
    found = case.dependencies([contract.output], reads)
    return frozenset(found if found <= made else case.dependencies([contract.output, *reads]) & made)


def _check_names(contract: Contract, case: Case, types: Mapping[str, TensorType]) -> None:
    for field, name in {**contract.reads, "output": contract.output}.items():
        require(name in types, f"{field} names {name!r}, which is not defined")
    places = {op.name: place for place, op in enumerate(case.ops)}
    require(contract.output in places, f"output names {contract.output!r}, which no operation computes")
    for field, name in contract.reads.items():
        before = places.get(name, -1) < places[contract.output]
        require(before, f"{field} names {name!r}, which is not defined before the output")


def _check_values(contract: Contract) -> None:
    require(contract.layout in _AXES, f"layout {contract.layout!r}, expected {', '.join(_AXES)}")
    means = contract.mask_means
    require(means in ("keep", "drop"), f"mask_means {means!r}, expected keep or drop; an added mask is a bias")
    require(contract.causal in (None, *_CORNERS), f"causal {contract.causal!r}, expected {' or '.join(_CORNERS)}")
    plain = means == "keep" and contract.fill == -math.inf
    require(contract.mask is not None or plain, "mask_means and fill need a mask")
    dropout, window = contract.dropout, contract.window
    require(math.isfinite(contract.scale), f"scale {contract.scale} is not finite")
    for name in (name for name, option in OPTIONS.items() if option.form is Form.NUMBER):
        value = getattr(contract, name)
        require(value is None or 0 < value < math.inf, f"{name} {value}, expected a positive number")
    require(not math.isnan(contract.fill), "fill is NaN")
    require(0 <= dropout <= 1, f"dropout {dropout}, expected a probability")
    if window is not None:
        require(min(window) >= -1, f"window {list(window)}, expected counts of keys, or -1 for no bound")
        ahead = contract.causal and window[1] > 0
        require(not ahead, f"causal keeps no key to the right, window {list(window)} does")


def _check_shapes(contract: Contract, dims: Mapping[str, int], types: Mapping[str, TensorType]) -> None:
    rank = 3 if contract.layout == "bsd" else 4
    names = (contract.q, contract.k, contract.v, contract.output)
    for name in names:
        floating = types[name].rank == rank and category(types[name].dtype) == 2
        require(floating, f"{name!r} is not a floating tensor of {rank} axes")
    shapes = [tuple(s.value(dims) for s in as_bhsd(contract, types[name])) for name in names]
    (batch, heads, seq_len, head_dim), (_, kv_heads, kv_len, _), (*_, value_dim), _ = shapes
    wanted = [
        (batch, kv_heads, kv_len, head_dim),
        (batch, kv_heads, kv_len, value_dim),
        (batch, heads, seq_len, value_dim),
    ]
    for name, found, expected in zip(names[1:], shapes[1:], wanted, strict=True):
        require(found == expected, f"{name!r} has [batch, heads, length, dim] {list(found)}, expected {list(expected)}")
    grouped = heads % kv_heads == 0 if kv_heads else heads == 0
    require(grouped, f"{heads} heads are not a multiple of {kv_heads} key heads")
    scores = [batch, heads, seq_len, kv_len]
    if contract.layout == "bsd":
        del scores[1]
    for field, name in contract.reads.items():
        kind = types[name]
        if field in OVER_SCORES:
            right = category(kind.dtype) == (0 if field == "mask" else 2)
            require(right, f"{name!r} is {kind.dtype}; a mask is boolean and a bias floating")
            sizes = kind.sizes(dims)[::-1]
            fits = len(sizes) <= len(scores) and all(s in (1, n) for s, n in zip(sizes, scores[::-1], strict=False))
            require(fits, f"{name!r} of {show(kind.shape)} does not broadcast to {scores}")
        elif field in PER_HEAD:
            fits = kind.sizes(dims) == (heads,) and category(kind.dtype) == 2
            require(fits, f"{field} {name!r} is not a floating tensor of shape [{heads}]")


def as_bhsd(contract: Contract, kind: TensorType) -> tuple[Size, ...]:
    """The shape of q, k, v or the output as [batch, heads, length, dim]."""
    shape = kind.shape
    if contract.layout == "bsd":
        return (shape[0], Size.of(1), *shape[1:])
    return (shape[0], shape[2], shape[1], shape[3]) if contract.layout == "bshd" else shape
