"""What a case asks of an attention function, in a few words: the rest of the case is no concern of the function's."""

from collections.abc import Iterator, Mapping

from generators.program.case import Case, Contract, TensorType
from generators.program.dtypes import LOW_PRECISION
from generators.program.type_check import types_of

_OPTIONS = ("softcap", "alibi", "mask", "bias", "causal", "window", "sinks", "dropout")


def asked(case: Case) -> frozenset[str]:
    """The words for a case's contracts, among them `mode:training`, `with:causal`, `grouped`, `scale:negative`."""
    types = types_of(case)
    words = {"mode:training"} if case.training else set()
    if any(op.kind == "unfold" for op in case.ops):
        words.add("layout:overlapping")
    for contract in case.contracts:
        words.update(_of_contract(contract, types, case.sizes))
    return frozenset(words)


def _of_contract(contract: Contract, types: Mapping[str, TensorType], dims: Mapping[str, int]) -> Iterator[str]:
    for option in _OPTIONS:
        if getattr(contract, option):
            yield f"with:{option}"
    if contract.scale <= 0:
        yield "scale:negative" if contract.scale < 0 else "scale:zero"
    if any(types[name].dtype in LOW_PRECISION for name in (contract.q, contract.k, contract.v)):
        yield "dtype:low"
    q, k, v = (types[name].sizes(dims) for name in (contract.q, contract.k, contract.v))
    heads, rows = {"bhsd": (1, 2), "bshd": (2, 1)}.get(contract.layout, (0, 1))
    if len(q) == 4 and q[heads] != k[heads]:
        yield "grouped"
    if q[rows] != k[rows]:
        yield "lengths"
    if q[-1] != v[-1]:
        yield "value_dim"
