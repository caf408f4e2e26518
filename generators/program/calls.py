"""What a case asks of an attention function: dtype, sizes and options of the calls that replace its attention."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from generators.program.case import Case
from generators.program.contracts import as_bhsd
from generators.program.dtypes import LOW_PRECISION
from generators.program.type_check import types_of

_OPTIONS = ("softcap", "alibi", "mask", "bias", "causal", "window", "sinks", "dropout")


@dataclass(frozen=True)
class AttentionCall:
    """One call. `shapes`: of q, k and v, [batch, heads, length, dim]; `options`: the keywords, with what the contract
    says of them; `forms`: words for how arguments lie in memory and broadcast, none before a program is written."""

    dtype: str
    shapes: tuple[tuple[int, ...], ...]
    options: Mapping[str, Any]
    training: bool
    scale: float = 1.0
    forms: frozenset[str] = frozenset()

    @property
    def features(self) -> frozenset[str]:
        """What a bug may need, in words such as `mode:training`, `with:causal`, `grouped`."""
        q, k, v = self.shapes
        words = {
            "mode:training": self.training,
            "dtype:low": self.dtype in LOW_PRECISION,
            "scale:negative": self.scale < 0,
            "scale:zero": self.scale == 0,
            "grouped": q[1] != k[1],
            "lengths": q[2] != k[2],
            "value_dim": q[3] != v[3],
        }
        return frozenset([word for word, holds in words.items() if holds] + [f"with:{name}" for name in self.options])

    @property
    def sizes(self) -> dict[str, int]:
        """Its lengths and dims."""
        q, k, v = self.shapes
        return {"seq_len": q[2], "kv_len": k[2], "head_dim": q[3], "value_dim": v[3]}

    @property
    def words(self) -> frozenset[str]:
        """What a function may refuse."""
        more = {f"dtype:{self.dtype}", f"causal:{self.options.get('causal')}"}
        for name, size in self.sizes.items():
            kind = "power of 2" if size & (size - 1) == 0 else f"multiple of {min(size & -size, 16)}"
            more |= {f"{name}:{kind}", f"{name}:{size if name.endswith('dim') else min(size, 2)}"}
        return self.features | self.forms | more


def list_calls(case: Case) -> Iterator[AttentionCall]:
    """The calls of a case, one for each contract."""
    types, dims = types_of(case), case.sizes
    for contract in case.contracts:
        named = (types[name] for name in (contract.q, contract.k, contract.v))
        shapes = tuple(tuple(size.value(dims) for size in as_bhsd(contract, one)) for one in named)
        options = {name: value for name in _OPTIONS if (value := getattr(contract, name))}
        forms = {f"axes:{contract.layout}", f"fill:{contract.fill > -math.inf}", *(i.layout for i in case.inputs)}
        for kind in (types[name] for name in (contract.mask, contract.bias) if name is not None):
            forms |= {f"scores:{kind.dtype}", "scores:" + "".join("1n"[size > 1] for size in kind.sizes(dims))}
        yield AttentionCall(types[contract.q].dtype, shapes, options, case.training, contract.scale, frozenset(forms))
