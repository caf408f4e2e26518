"""Whether a contract fits the program it stands beside, and which operations it speaks for."""

import math
from collections.abc import Mapping, Sequence

from generators.errors import CaseError
from generators.program.case import Case, Contract, TensorType
from generators.program.dtypes import category
from generators.program.ops.spec import broadcast, show
from generators.program.sizes import Size

LAYOUTS = ("bhsd", "bshd", "bsd")
CORNERS = ("top_left", "bottom_right")


def check_contract(contract: Contract, case: Case, types: Mapping[str, TensorType]) -> None:
    """Raises CaseError, one line, where a contract's words, numbers, types or shapes don't go together."""
    _check_names(contract, case, types)
    _check_words(contract)
    _check_numbers(contract)
    _check_shapes(contract, case.sizes, types)


def inside(case: Case, contract: Contract) -> frozenset[str]:
    """The operations a contract describes: those its output depends on, back to the values it reads.

    Where they also read an input behind these values (k, say, where the contract names its transpose), it is all
    operations that the output depends on.
    """
    found, leaves = _behind(case, contract, frozenset(contract.reads.values()))
    return found if not leaves else _behind(case, contract, frozenset())[0]


def _behind(case: Case, contract: Contract, given: frozenset[str]) -> tuple[frozenset[str], frozenset[str]]:
    """The operations, and the inputs, that the output and what is read depend on, no further back than `given`."""
    made = {op.name: op for op in case.ops}
    found: set[str] = set()
    leaves: set[str] = set()
    waiting = [contract.output, *(() if given else contract.reads.values())]
    while waiting:
        name = waiting.pop()
        if name in given or name in found:
            continue
        if name in made:
            found.add(name)
            waiting += made[name].args
        else:
            leaves.add(name)
    return frozenset(found), frozenset(leaves)


def _check_names(contract: Contract, case: Case, types: Mapping[str, TensorType]) -> None:
    for field, name in {**contract.reads, "output": contract.output}.items():
        if name not in types:
            raise CaseError(f"contract: {field} names {name!r}, which is not defined")
    places = {op.name: place for place, op in enumerate(case.ops)}
    if contract.output not in places:
        raise CaseError(f"contract: output names {contract.output!r}, which no operation computes")
    for field, name in contract.reads.items():
        if places.get(name, -1) >= places[contract.output]:
            raise CaseError(f"contract: {field} names {name!r}, which is not defined before the output")


def _check_words(contract: Contract) -> None:
    if contract.layout not in LAYOUTS:
        raise CaseError(f"contract: layout {contract.layout!r}, expected {', '.join(LAYOUTS)}")
    if contract.mask_means not in ("keep", "drop"):
        raise CaseError(f"contract: mask_means {contract.mask_means!r}, expected keep or drop; what is added is a bias")
    if contract.causal is not None and contract.causal not in CORNERS:
        raise CaseError(f"contract: causal {contract.causal!r}, expected {' or '.join(CORNERS)}")
    if contract.mask is None and (contract.mask_means != "keep" or contract.fill != -math.inf):
        raise CaseError("contract: mask_means and fill need a mask")


def _check_numbers(contract: Contract) -> None:
    if not math.isfinite(contract.scale):
        raise CaseError(f"contract: scale {contract.scale} is not finite")
    if contract.softcap is not None and not 0 < contract.softcap < math.inf:
        raise CaseError(f"contract: softcap {contract.softcap}, expected a positive number")
    if math.isnan(contract.fill):
        raise CaseError("contract: fill is NaN")
    if not 0 <= contract.dropout <= 1:
        raise CaseError(f"contract: dropout {contract.dropout}, expected a probability")
    if contract.window is not None:
        if any(side < -1 for side in contract.window):
            raise CaseError(f"contract: window {list(contract.window)}, expected counts of keys, or -1 for no bound")
        if contract.causal and contract.window[1] > 0:
            raise CaseError(f"contract: causal keeps no key to the right, window {list(contract.window)} does")


def _check_shapes(contract: Contract, dims: Mapping[str, int], types: Mapping[str, TensorType]) -> None:
    rank = 3 if contract.layout == "bsd" else 4
    for name in (contract.q, contract.k, contract.v, contract.output):
        if types[name].rank != rank or category(types[name].dtype) != 2:
            raise CaseError(f"contract: {name!r} is not a floating tensor of {rank} axes")
    q, k, v, out = (as_bhsd(contract, types[n]) for n in (contract.q, contract.k, contract.v, contract.output))
    batch, heads, seq_len, head_dim = (s.value(dims) for s in q)
    kv_heads, kv_len, value_dim = k[1].value(dims), k[2].value(dims), v[3].value(dims)
    _must_be(contract.k, k, (batch, kv_heads, kv_len, head_dim), dims)
    _must_be(contract.v, v, (batch, kv_heads, kv_len, value_dim), dims)
    _must_be(contract.output, out, (batch, heads, seq_len, value_dim), dims)
    if heads % kv_heads if kv_heads else heads:
        raise CaseError(f"contract: {heads} heads are not a multiple of {kv_heads} key heads")
    scores = [Size.of(s) for s in (batch, heads, seq_len, kv_len)]
    if contract.layout == "bsd":
        del scores[1]
    for field, name in contract.reads.items():
        if field in ("mask", "bias"):
            _must_broadcast(name, types[name], scores, 0 if field == "mask" else 2, dims)
        elif field in ("alibi", "sinks") and (types[name].sizes(dims) != (heads,) or category(types[name].dtype) != 2):
            raise CaseError(f"contract: {field} {name!r} is not a floating tensor of shape [{heads}]")


def as_bhsd(contract: Contract, kind: TensorType) -> tuple[Size, ...]:
    """The shape of q, k, v or the output with its axes in the order [batch, heads, length, dim]."""
    shape = kind.shape
    if contract.layout == "bsd":
        return (shape[0], Size.of(1), *shape[1:])
    return (shape[0], shape[2], shape[1], shape[3]) if contract.layout == "bshd" else shape


def _must_be(name: str, shape: Sequence[Size], wanted: tuple[int, ...], dims: Mapping[str, int]) -> None:
    found = tuple(s.value(dims) for s in shape)
    if found != wanted:
        raise CaseError(f"contract: {name!r} has [batch, heads, length, dim] {list(found)}, expected {list(wanted)}")


def _must_broadcast(name: str, kind: TensorType, scores: Sequence[Size], wanted: int, dims: Mapping[str, int]) -> None:
    if category(kind.dtype) != wanted:
        raise CaseError(f"contract: {name!r} is {kind.dtype}; a mask is boolean and a bias floating")
    try:
        fits = kind.rank <= len(scores) and [s.value(dims) for s in broadcast(scores, kind.shape, dims)] == [
            s.value(dims) for s in scores
        ]
    except CaseError:
        fits = False
    if not fits:
        raise CaseError(f"contract: {name!r} of {show(kind.shape)} does not broadcast to {show(scores)}")
