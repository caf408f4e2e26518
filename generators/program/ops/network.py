"""Products, linear layers, softmax, norms of the last axes, embedding, dropout."""

import re
from dataclasses import replace
from functools import partial

from generators.errors import require
from generators.program.ops.rules import (
    check_weights,
    common_float,
    common_number,
    promote_all,
    second_dtype,
    with_axis,
)
from generators.program.ops.spec import Attribute, Kind, Line, Memory, Operands, OpSpec, choose_text, flag, spell, word
from generators.program.sizes import ONE, Size, show
from generators.program.values import FLOATS, category
from generators.reasons import Reason

EQUATION = re.compile(r"[a-z]{1,6}(,[a-z]{1,6}){0,2}->[a-z]{0,6}")


def _multiply(call: Operands) -> tuple[Size, ...]:
    a, b = call.args
    require(a.rank >= 2 and b.rank >= 2, "needs at least two axes on both sides")
    call.must_equal(a.shape[-1], b.shape[-2], "inner sizes of the product")
    return (*call.broadcast(a.shape[:-2], b.shape[:-2]), a.shape[-2], b.shape[-1])


def _multiply_flat(call: Operands, rank: int = 3) -> tuple[Size, ...]:
    a, b = call.args
    require(a.rank == b.rank == rank, f"needs {rank} axes on both sides")
    require(a.sizes(call.dims)[:-2] == b.sizes(call.dims)[:-2], "needs equal batches on both sides")
    return _multiply(call)


def _add_product(call: Operands, rank: int = 2) -> tuple[Size, ...]:
    shape = _multiply_flat(replace(call, args=call.args[1:]), rank)
    call.must_broadcast(call.shape, shape, "bias")
    return shape


def _sum_with_product(call: Operands) -> str:
    dtype = common_number(call)
    factors = [call.attrs[name] for name in ("beta", "alpha")]
    require(category(dtype) == 2 or all(isinstance(factor, int) for factor in factors), "integers take no fraction")
    return dtype


def _outer(call: Operands) -> tuple[Size, ...]:
    require([arg.rank for arg in call.args] == [1, 1], "needs arguments of one axis")
    return (*call.shape, *call.args[1].shape)


def _multiply_groups(call: Operands) -> tuple[Size, ...]:
    """Rows in groups, each times a matrix of its own. The third argument has the ends of the groups."""
    x, weight, ends = call.args
    require((x.rank, weight.rank, ends.rank) == (2, 3, 1), "needs a matrix, a matrix for each group, and their ends")
    require(ends.dtype == "int32", "needs int32 ends")
    call.must_equal(weight.shape[0], ends.shape[0], "groups")
    call.must_equal(x.shape[1], weight.shape[1], "inner sizes of the products")
    step = 16 // (4 if x.dtype == "float32" else 2)
    fits = all(number % step == 0 for number in call.numbers(weight.shape[1:]))
    require(fits, f"needs rows of 16 bytes, which {show(weight.shape[1:])} are not")
    return (x.shape[0], weight.shape[2])


def _groups_dtype(call: Operands) -> str:
    dtype = common_float(replace(call, autocast=None), call.args[:2])
    require(dtype != "float64", "takes no float64")
    return dtype


def _solve(call: Operands) -> tuple[Size, ...]:
    matrix, right = call.args
    require(min(matrix.rank, right.rank) >= 2, "needs two matrices")
    call.must_equal(matrix.shape[-1], matrix.shape[-2], "sides of the matrix")
    call.must_equal(matrix.shape[-1], right.shape[-2 if call.attrs["left"] else -1], "sides of both matrices")
    require(matrix.dtype in ("float32", "float64") and not call.autocast, f"takes no {matrix.dtype} or autocast")
    return (*call.broadcast(matrix.shape[:-2], right.shape[:-2]), *right.shape[-2:])


def _solve_text(line: Line) -> str:
    words = [*line.args, f"upper={line.attrs['upper']}", *line.options("left", "unitriangular")]
    return f"torch.linalg.solve_triangular({', '.join(words)})"


def _sum_products(call: Operands) -> tuple[Size, ...]:
    equation = call.attrs["equation"]
    terms, out = equation.split("->")
    require(len(terms.split(",")) == len(call.args), f"{equation!r} takes {len(terms.split(','))} arguments")
    sizes: dict[str, Size] = {}
    for letters, arg in zip(terms.split(","), call.args, strict=True):
        fits = len(set(letters)) == len(letters) == arg.rank
        require(fits, f"{letters!r} of {equation!r} does not fit {show(arg.shape)}")
        for letter, size in zip(letters, arg.shape, strict=True):
            call.must_equal(sizes.setdefault(letter, size), size, f"axis {letter!r} of {equation!r}")
    fits = len(set(out)) == len(out) and sizes.keys() >= set(out)
    require(fits, f"{equation!r} has an output axis that no input has, or has it twice")
    require(
        len(call.args) > 1 or len(out) < len(terms),
        f"{equation!r} only permutes axes, as permute does",
        Reason.SPELLING,
    )
    return tuple(sizes[letter] for letter in out)


def _einsum_dtype(call: Operands) -> str:
    require(not call.autocast or len(call.args) < 3, "under autocast einsum takes at most two arguments")
    if len(call.args) == 1:  # a sum
        own = call.args[0].dtype
        return own if category(own) == 2 else "int64"
    if call.autocast and any(arg.dtype != call.autocast for arg in call.args):
        terms, out = call.attrs["equation"].split("->")
        first, second = terms.split(",")
        summed = [size for letter, size in zip(first, call.args[0].shape, strict=True) if letter in {*second} - {*out}]
        # Without a sum of two or more, torch multiplies elements, which autocast leaves alone.
        require(max(call.numbers(summed), default=1) != 1, "autocast casts no einsum without a sum")
    return common_number(call)


def _linear(call: Operands) -> tuple[Size, ...]:
    x, weight, *bias = call.args
    require(weight.rank == 2 and x.rank >= 1, "needs a weight of two axes")
    call.must_equal(x.shape[-1], weight.shape[1], "in_features of linear")
    for item in bias:
        require(item.rank == 1, "needs a bias of one axis")
        call.must_equal(item.shape[0], weight.shape[0], "bias of linear")
    return (*x.shape[:-1], weight.shape[0])


def _softmax_dtype(call: Operands) -> str:
    dtype, own = call.attrs["dtype"], call.args[0].dtype
    require(category(own) == 2 or dtype, f"needs a floating-point argument or a dtype, got {own}")
    return dtype or own


def _softmax_text(line: Line) -> str:
    return spell(line.attrs["form"], line.kind, line.args[0], *line.options("dim", "dtype"))


def _norm(call: Operands) -> tuple[Size, ...]:
    last, shape = call.attrs["last"], call.shape
    require(1 <= last <= len(shape), f"normalises the last {last} of {len(shape)} axes")
    check_weights(call, call.args[1:], shape[-last:])
    return shape


def _norm_text(line: Line) -> str:
    x, *affine = line.args
    sizes = ", ".join(map(str, line.types[0].shape[-line.attrs["last"] :]))
    words = [x, f"({sizes}{',' * (line.attrs['last'] == 1)})", *affine, *line.options("eps")]
    return f"F.{line.kind}({', '.join(words)})"


def _weight_norm(call: Operands) -> tuple[Size, ...]:
    weight, scale = call.args
    axis = call.axis()
    require(scale.rank == weight.rank, "needs a scale with the weight's axes")
    for at, (size, whole) in enumerate(zip(scale.shape, weight.shape, strict=True)):
        call.must_equal(size, whole if at == axis else ONE, f"axis {at} of the scale")
    return weight.shape


def _embedding(call: Operands) -> tuple[Size, ...]:
    tokens, table = call.args
    fits = tokens.dtype in ("int64", "int32") and table.rank == 2
    require(fits, "needs int64 or int32 tokens and a table of two axes")
    return (*tokens.shape, table.shape[1])


def _one_hot(call: Operands) -> tuple[Size, ...]:
    require(call.args[0].dtype == "int64" and call.value("classes") >= 1, "needs int64 indices and a positive number")
    return (*call.shape, call.attrs["classes"])


def _drop(call: Operands) -> tuple[Size, ...]:
    call.check_probability("p")
    return call.shape


def _dropout_text(line: Line) -> str:
    if line.attrs["form"] == "module":
        return f"self.{line.name}({line.args[0]})"
    when = {"mode": "self.training", "always": "True", "never": "False"}[line.attrs["active"]]
    return spell(line.attrs["form"], "dropout", line.args[0], line.text("p"), when)


def _layer(call: Operands) -> tuple[Size, ...]:
    own, (x,), out = call.attrs["dtype"], call.args, call.attrs["out"]
    require(x.rank >= 1 and x.dtype == own and not call.autocast, f"needs an argument of {own}, without autocast")
    require((out is not None) == (call.attrs["of"] == "Linear"), "Linear alone has a size `out`")
    return (*x.shape[:-1], x.shape[-1] if out is None else out)


def _construct(line: Line) -> str:
    attrs = line.attrs
    words = [str(line.types[0].shape[-1]), "eps=1e-05" if attrs["out"] is None else str(attrs["out"])]
    words += line.options(*["bias"] * (attrs["of"] != "RMSNorm"), "dtype")
    return f"set_weights(nn.{attrs['of']}({', '.join(words)}), {attrs['seed']})"


_MATMUL = {"operator": "{0} @ {1}", "function": "torch.matmul({0}, {1})", "method": "{0}.matmul({1})"}
_FORM = {"form": word(*_MATMUL)}
_EQUATION = {"equation": Attribute(Kind.EQUATION, required=True)}
_DIM = {"dim": Attribute(Kind.AXIS, -1)}
_FACTORS = dict.fromkeys(("beta", "alpha"), Attribute(Kind.NUMBER, 1))
_SOFTMAX = {**_DIM, "dtype": Attribute(Kind.WORD, None, FLOATS), "form": word("method", "functional", "torch")}
_NORM = {"eps": Attribute(Kind.NUMBER), "last": Attribute(Kind.INT, 1)}
_BY_GROUP = "torch.cat([x @ y for x, y in zip({0}.tensor_split({2}[:-1].tolist()), {1})])"
_SOLVE = {"upper": flag(), "left": flag(default=True), "unitriangular": flag()}
_CLASSES = {"classes": Attribute(Kind.SIZE, required=True)}
_DROPOUT = {
    "p": Attribute(Kind.NUMBER, 0.0),
    "active": word("mode", "always", "never"),
    "form": word("functional", "torch", "module"),
}
_CALLS = {"called": "self.{name}({0})", "ensemble": "call_in_ensemble(self.{name}, {0})"}
_LAYER = {
    "form": word(*_CALLS),
    "of": word("Linear", "LayerNorm", "RMSNorm"),
    "out": Attribute(Kind.SIZE),
    "bias": flag(default=True),
    "dtype": word(*FLOATS[:3]),
    "seed": Attribute(Kind.INT, 0),
}
_EINSUM = 'torch.einsum("{equation}", {args})'

OPS = [
    OpSpec("matmul", _multiply, common_number, text=choose_text("form", _MATMUL), attributes=_FORM, arity=(2, 2)),
    OpSpec("bmm", _multiply_flat, common_number, text="torch.bmm({args})", arity=(2, 2), cost=2),
    OpSpec("mm", partial(_multiply_flat, rank=2), common_number, text="torch.mm({args})", arity=(2, 2), cost=2),
    *(
        OpSpec(kind, rule, _sum_with_product, text="torch", attributes=_FACTORS, arity=(3, 3), cost=3)
        for kind, rule in (("addmm", _add_product), ("baddbmm", partial(_add_product, rank=3)))
    ),
    OpSpec(
        "grouped_mm",
        _multiply_groups,
        _groups_dtype,
        text="F.grouped_mm({0}, {1}, offs={2})",
        plain=_BY_GROUP,
        arity=(3, 3),
        cost=3,
    ),
    OpSpec("solve_triangular", _solve, common_float, text=_solve_text, attributes=_SOLVE, arity=(2, 2), cost=2),
    OpSpec("outer", _outer, promote_all, text="torch.outer({args})", arity=(2, 2), cost=2),
    OpSpec("einsum", _sum_products, _einsum_dtype, text=_EINSUM, attributes=_EQUATION, arity=(1, 3), cost=3),
    OpSpec("linear", _linear, common_number, text="F.linear({args})", arity=(2, 3), cost=2),
    *(
        OpSpec(kind, with_axis, _softmax_dtype, "any", _softmax_text, _SOFTMAX, cost=cost)
        for kind, cost in (("softmax", 1), ("log_softmax", 2))
    ),
    *(
        OpSpec(kind, _norm, takes="float", text=_norm_text, attributes=_NORM, arity=(1, most), cost=2)
        for kind, most in (("layer_norm", 3), ("rms_norm", 2))
    ),
    OpSpec(
        "layer",
        _layer,
        takes="float",
        text=choose_text("form", _CALLS),
        plain=_CALLS["called"],
        attributes=_LAYER,
        init=_construct,
        cost=3,
    ),
    OpSpec("normalize", with_axis, takes="float", text="F.normalize({0}, dim={dim})", attributes=_DIM, cost=2),
    OpSpec(
        "_weight_norm",
        _weight_norm,
        lambda call: common_float(replace(call, autocast=None)),
        text="torch._weight_norm({args}, {dim})",
        attributes=_DIM,
        arity=(2, 2),
    ),
    OpSpec("one_hot", _one_hot, text="F.one_hot({0}, {classes})", attributes=_CLASSES),
    OpSpec("embedding", _embedding, second_dtype, text="F.embedding({args})", arity=(2, 2)),
    OpSpec(
        "dropout",
        _drop,
        takes="float",
        text=_dropout_text,
        attributes=_DROPOUT,
        memory=Memory.UNKNOWN,
        init=lambda line: f"nn.Dropout({line.attrs['p']})" if line.attrs["form"] == "module" else None,
        random=True,
    ),
]
