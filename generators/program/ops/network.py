"""Layers: norms, embedding, dropout."""

from collections.abc import Callable

from generators.errors import CaseError
from generators.program.case import TensorType
from generators.program.ops.spec import (
    Attribute,
    Call,
    Kind,
    Line,
    OpSpec,
    function,
    must_equal,
    must_float,
    spell,
    word,
)


def _norm(call: Call) -> TensorType:
    x, *affine = call.args
    must_float(call)
    if x.rank < 1:
        raise CaseError("needs an axis to normalise over")
    for weight in affine:
        # What autocast makes of a product is normalised with weights that stay in float32.
        if weight.rank != 1 or weight.dtype not in (x.dtype, "float32" if call.autocast else x.dtype):
            raise CaseError(f"needs weights of one axis and dtype {x.dtype}")
        must_equal(weight.shape[0], x.shape[-1], call.dims, "normalised size")
    return x


def _norm_text(name: str) -> Callable[[Line], str]:
    def text(line: Line) -> str:
        x, *affine = line.args
        eps = "" if line.attrs["eps"] is None else f", eps={line.number('eps')}"
        return f"F.{name}({', '.join([x, f'({line.types[0].shape[-1]},)', *affine])}{eps})"

    return text


def _embedding(call: Call) -> TensorType:
    tokens, table = call.args
    if tokens.dtype not in ("int64", "int32") or table.rank != 2:
        raise CaseError("needs int64 or int32 tokens and a table of two axes")
    return TensorType((*tokens.shape, table.shape[1]), table.dtype)


def _dropout(call: Call) -> TensorType:
    must_float(call)
    call.probability("p")
    return call.args[0]


def _dropout_text(line: Line) -> str:
    form = str(line.attrs["form"])
    if form == "module":
        return f"self.{line.name}({line.args[0]})"
    when = {"mode": "self.training", "always": "True", "never": "False"}[str(line.attrs["active"])]
    return spell(form, "dropout", line.args[0], line.number("p"), when)


def _dropout_module(line: Line) -> str | None:
    return f"nn.Dropout({line.attrs['p']})" if line.attrs["form"] == "module" else None


_EPS = {"eps": Attribute(Kind.NUMBER)}

OPS = [
    OpSpec("layer_norm", (1, 3), _norm, _norm_text("layer_norm"), _EPS, cost=2),
    OpSpec("rms_norm", (1, 2), _norm, _norm_text("rms_norm"), _EPS, cost=2),
    function("F.embedding", (2, 2), _embedding),
    OpSpec(
        "dropout",
        (1, 1),
        _dropout,
        _dropout_text,
        {
            "p": Attribute(Kind.NUMBER, 0.0),
            "active": word("mode", "always", "never"),
            "form": word("functional", "torch", "module"),
        },
        owns_memory=False,
        init=_dropout_module,
        random=True,
    ),
]
