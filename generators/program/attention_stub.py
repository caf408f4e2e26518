"""The attention stub of a case: its text with a call of an attention function for each contract.

`list_calls` gives the same calls as data: dtype, sizes and options.
"""

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from generators.program.attention_options import KEYWORDS, OPTIONS, Contract, Form
from generators.program.case import Case, TensorType
from generators.program.contracts import as_bhsd
from generators.program.emit import emit_rewritten, read, source
from generators.program.features import CALL_STATES, features
from generators.program.type_check import types_of
from generators.program.values import LOW_PRECISION, category, number
from generators.program.writes import is_in_place


def emit_attention_stub(case: Case, *, as_sdpa: bool = False) -> str | None:
    """The text of the case, with the operations of each contract replaced by a call of `attend`.

    The caller of the text defines the global `attend`. `as_sdpa`: scaled_dot_product_attention in its place.

        out = attend(q, k, v, scale=0.25, causal="top_left", mask=keep)

    q is [batch, heads, seq_len, head_dim], k [batch, kv_heads, kv_len, head_dim], v [batch, kv_heads, kv_len,
    value_dim], and the result [batch, heads, seq_len, value_dim]; the text converts other layouts. All
    arguments and parameters stay, if unread too. A finite `fill` is passed as `fill=`.

    None without a contract, or if a call can't express the case because of

    * q, k and v of several dtypes
    * a bias on top of a finite fill
    * in-place steps on values that the call reads or returns
    * slopes or sinks with a gradient, which attention functions need not provide
    """
    types = types_of(case)
    if not case.contracts:
        return None
    for c in case.contracts:
        if len({types[name].dtype for name in (c.q, c.k, c.v)}) > 1 or (c.bias is not None and c.fill > -math.inf):
            return None
    contracts = {c.output: c for c in case.contracts}
    needed = set(case.returns)
    for op in reversed(case.ops):
        if op.name in needed:
            needed.update(contracts[op.name].reads.values() if op.name in contracts else op.args)
    kept = [op for op in case.ops if op.name in needed]
    overwritten = {op.args[0] for op in kept if is_in_place(op) and op.name not in contracts}
    if any(overwritten & {*c.reads.values(), c.output} for c in case.contracts):
        return None
    if case.training and _differentiates_heads(case, types):
        return None
    return emit_rewritten(case, kept, {n: _call(case, c, types, as_sdpa=as_sdpa) for n, c in contracts.items()})


def emit_call(case: Case, function: str) -> str:
    """The text of the case with calls of `function`, "package.module:function"; "": of scaled_dot_product_attention.

    The plain text if the case has no stub.
    """
    stub = emit_attention_stub(case, as_sdpa=not function)
    name = function.rpartition(":")[2]
    return source(case) if stub is None else drop_fills(stub).replace(" = attend(", f" = {name}(")


def drop_fills(text: str) -> str:
    """The text of a stub without finite fills, which no attention function takes: -inf replaces them."""
    return re.sub(r", fill=[^,)]+", "", text)


def _differentiates_heads(case: Case, types: Mapping[str, TensorType]) -> bool:
    reached = {i.name for i in case.inputs if i.is_differentiated}
    for op in case.ops:
        if op.kind != "detach" and category(types[op.name].dtype) == 2 and reached.intersection(op.args):
            reached.add(op.name)
    return any(name in reached for contract in case.contracts for name in (contract.alibi, contract.sinks))


def _call(case: Case, contract: Contract, types: Mapping[str, TensorType], *, as_sdpa: bool) -> str:
    """The call for one contract, its arguments and its result converted."""
    into, back = {
        "bhsd": ("", ""),
        "bshd": (".transpose(1, 2)", ".transpose(1, 2)"),
        "bsd": (".unsqueeze(1)", ".squeeze(1)"),
    }[contract.layout]
    words = [f"{read(case, name)}{into}" for name in (contract.q, contract.k, contract.v)]
    words.append(f"scale={number(float(contract.scale))}")
    given = (name for name in KEYWORDS if getattr(contract, name) != OPTIONS[name].absent)
    options = {name: _spell_option(case, contract, name, types, as_sdpa=as_sdpa) for name in given}
    if as_sdpa:
        added = options.get("mask") or options.get("bias")
        heads = {as_bhsd(contract, types[name])[1] for name in (contract.q, contract.k)}
        words += [f"attn_mask={added}"] if added else []
        words += ["is_causal=True"] if contract.causal else []
        words += ["enable_gqa=True"] if len(heads) > 1 else []
    else:
        words += [f"{name}={text}" for name, text in options.items()]
    own, wanted = types[contract.q].dtype, types[contract.output].dtype
    cast = "" if own == wanted else f".to(torch.{wanted})"
    return f"{'nn.functional.scaled_dot_product_attention' if as_sdpa else 'attend'}({', '.join(words)}){back}{cast}"


def _spell_option(case: Case, contract: Contract, name: str, types: Mapping[str, TensorType], *, as_sdpa: bool) -> str:
    """The value of an option as a call gives it."""
    value = getattr(contract, name)

    def over_scores() -> str:
        # Without a head axis, the batch axis of [batch, seq_len, kv_len] has to move out of its place.
        moved = ".unsqueeze(1)" if contract.layout == "bsd" and types[value].rank == 3 else ""
        missing = 4 - types[value].rank - bool(moved)
        # Backends of scaled_dot_product_attention want all four axes.
        return read(case, value) + moved + (f"[{', '.join(['None'] * missing)}]" if as_sdpa and missing else "")

    match OPTIONS[name].form:
        case Form.MASK:
            fill = "" if as_sdpa or contract.fill == -math.inf else f", fill={number(float(contract.fill))}"
            return f"{'~' if contract.mask_means == 'drop' else ''}{over_scores()}{fill}"
        case Form.BIAS:
            return over_scores()
        case Form.CORNER:
            return f'"{value}"'
        case Form.NUMBER:
            return number(float(value))
        case Form.PER_HEAD:
            return read(case, value) + (".float()" if name == "alibi" and types[value].dtype != "float32" else "")
        case Form.PROBABILITY:
            return f"({number(float(value))}, 0)"
        case Form.WINDOW:
            return str(value)


@dataclass(frozen=True)
class AttentionCall:
    """A call of an attention function."""

    dtype: str
    shapes: tuple[tuple[int, ...], ...]  # of q, k and v, [batch, heads, length, dim]
    options: Mapping[str, Any]  # fields of the contract, by name
    training: bool
    scale: float = 1.0
    forms: frozenset[str] = frozenset()  # strides and broadcasts of arguments; empty if drawn without a program

    @property
    def features(self) -> frozenset[str]:
        """Properties that a bug may need, in words such as `mode:training`, `with:causal`, `grouped`."""
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
        q, k, v = self.shapes
        return {"seq_len": q[2], "kv_len": k[2], "head_dim": q[3], "value_dim": v[3]}

    @property
    def words(self) -> frozenset[str]:
        """Properties that a function may refuse."""
        more = {f"dtype:{self.dtype}", f"causal:{self.options.get('causal')}"}
        for name, size in self.sizes.items():
            kind = "power of 2" if size & (size - 1) == 0 else f"multiple of {min(size & -size, 16)}"
            more |= {f"{name}:{kind}", f"{name}:{size if name.endswith('dim') else min(size, 2)}"}
        return self.features | self.forms | more


def list_calls(case: Case) -> Iterator[AttentionCall]:
    types, dims = types_of(case), case.sizes
    for contract in case.contracts:
        named = (types[name] for name in (contract.q, contract.k, contract.v))
        shapes = tuple(tuple(size.value(dims) for size in as_bhsd(contract, one)) for one in named)
        options = {name: value for name in OPTIONS if (value := getattr(contract, name))}
        forms = {f"axes:{contract.layout}", f"fill:{contract.fill > -math.inf}", *(i.layout for i in case.inputs)}
        forms |= features(case) & CALL_STATES
        for kind in (types[name] for name in (contract.mask, contract.bias) if name is not None):
            forms |= {f"scores:{kind.dtype}", "scores:" + "".join("1n"[size > 1] for size in kind.sizes(dims))}
        yield AttentionCall(types[contract.q].dtype, shapes, options, case.training, contract.scale, frozenset(forms))
