"""What a case asks of an attention function: dtype, sizes and options of the calls that replace its attention."""

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from generators.program.case import Case, TensorType
from generators.program.contracts import as_bhsd
from generators.program.dtypes import LOW_PRECISION
from generators.program.type_check import types_of

_OPTIONS = ("softcap", "alibi", "mask", "bias", "causal", "window", "sinks", "dropout")


@dataclass(frozen=True)
class AttentionCall:
    """One call. The shapes of q, k and v are [batch, heads, length, dim]; `causal`: the corner, "" without; `memory`:
    words for how arguments lie in memory and broadcast, such as `mask:1nn`."""

    dtype: str
    q: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]
    training: bool
    options: frozenset[str]
    causal: str = ""
    scale: float = 1.0
    memory: frozenset[str] = field(default=frozenset())

    @property
    def features(self) -> frozenset[str]:
        """What a bug may need, in words such as `mode:training`, `with:causal`, `grouped`."""
        words = {
            "mode:training": self.training,
            "dtype:low": self.dtype in LOW_PRECISION,
            "scale:negative": self.scale < 0,
            "scale:zero": self.scale == 0,
            "grouped": self.q[1] != self.k[1],
            "lengths": self.q[2] != self.k[2],
            "value_dim": self.q[3] != self.v[3],
        }
        return frozenset([word for word, holds in words.items() if holds] + [f"with:{name}" for name in self.options])

    @property
    def words(self) -> frozenset[str]:
        """All that a function may refuse."""
        seq_len, head_dim, value_dim = self.q[2], self.q[3], self.v[3]
        more = {f"dtype:{self.dtype}", f"head_dim:{head_dim}", f"value_dim:{value_dim}", f"causal:{self.causal}"}
        for name, size in (("seq_len", seq_len), ("kv_len", self.k[2])):
            more.add(f"{name}:{size if size < 2 else 'of tiles' if size % 16 == 0 else 'odd'}")
        return self.features | self.memory | more


def list_calls(case: Case, types: Mapping[str, TensorType] | None = None) -> Iterator[AttentionCall]:
    """The calls of a case, one for each contract. `types`: of its values, where they are known."""
    types, dims = types or types_of(case), case.sizes
    layouts = frozenset(f"memory:{item.layout}" for item in case.inputs)
    for contract in case.contracts:
        q, k, v = (
            tuple(s.value(dims) for s in as_bhsd(contract, types[x])) for x in (contract.q, contract.k, contract.v)
        )
        memory = {f"axes:{contract.layout}", *(["fill"] if contract.fill > -math.inf else [])}
        for name in filter(None, (contract.mask, contract.bias)):
            memory |= {
                "bias:" + types[name].dtype,
                "broadcast:" + "".join("1" if s == 1 else "n" for s in types[name].sizes(dims)),
            }
        yield AttentionCall(
            types[contract.q].dtype,
            q,
            k,
            v,
            case.training,
            frozenset(name for name in _OPTIONS if getattr(contract, name)),
            contract.causal or "",
            contract.scale,
            layouts | memory,
        )
