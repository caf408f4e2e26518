"""Asks torch about calls that our rules of types refuse: eager refuses them too, or a rule is too narrow."""

import contextlib
import io
import math
import multiprocessing
import re
import warnings
from collections import defaultdict
from collections.abc import Iterator, Mapping
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.refusals.draws import find_place
from benchmarks.refusals.places import Place
from generators.errors import CaseError
from generators.program.case import Attr, Op, TensorType
from generators.program.ops import OPS, make_op
from generators.program.ops.spec import Attribute, Kind, Line, OpSpec
from generators.program.sizes import Size
from generators.program.type_check import attributes, infer
from generators.program.values import category
from generators.sampling.choices import Choices

_DTYPES = {"float32": 8.0, "int64": 3.0, "bool": 2.0, "bfloat16": 1.0, "uint8": 1.0, "int32": 1.0, "complex64": 1.0}
_RANKS = {0: 1.0, 1: 2.0, 2: 4.0, 3: 4.0, 4: 4.0, 5: 1.0}
_LENGTHS = {1: 2.0, 2: 4.0, 3: 3.0, 4: 3.0}  # torch takes much of empty tensors
_NUMBERS: tuple[Attr, ...] = (0.5, 1.0, 2.0, -1.0, 0.0, 1, 2, 0, -1, 3)
_CHUNK = 150
_MOST_ASKED = 10
"""How many calls of a chunk that one place refuses are asked."""
UNASKED = ("grouped_mm", "as_strided")
"""Operations that read memory which is not theirs if their numbers are wrong."""


@dataclass
class Answers:
    """The answers of torch to calls that a place refuses."""

    refused: int = 0
    taken: dict[str, str] = field(default_factory=dict)  # the first call that torch takes, by operation
    dtypes: dict[str, set[str]] = field(default_factory=dict)  # by operation, of the calls with a single dtype

    def add(self, kind: str, call: str, told: str) -> None:
        """`told`: torch's error, "" if it takes the call."""
        if told:
            self.refused += 1
            return
        self.taken.setdefault(kind, call)
        dtypes = {*re.findall(r"(\w+)\[", call.partition(":")[0])}
        self.dtypes.setdefault(kind, set()).update(dtypes if len(dtypes) == 1 else ())

    def as_data(self) -> dict[str, Any]:
        dtypes = {kind: sorted(names) for kind, names in sorted(self.dtypes.items())}
        return {"refused": self.refused, "taken": dict(sorted(self.taken.items())), "dtypes": dtypes}


def ask_torch(chunks: int, seed: int = 1) -> Mapping[Place, Answers]:
    """By place in the rules of operations: the answers, of this many times `_CHUNK` draws for each operation.

    Some calls end the process that makes them, so other processes make them. A chunk with such a call is left out.
    """
    answers: dict[Place, Answers] = defaultdict(Answers)
    asked = [(kind, f"{seed}:{chunk}") for kind in OPS if kind not in UNASKED for chunk in range(chunks)]
    context = multiprocessing.get_context("spawn")
    while asked:
        with ProcessPoolExecutor(1, mp_context=context) as pool, suppress(BrokenProcessPool):
            while asked:
                kind, drawn = asked.pop()
                for place, text, told in pool.submit(_ask, kind, drawn).result():
                    answers[place].add(kind, text, told)
    return answers


def _ask(kind: str, seed: str) -> list[tuple[Place, str, str]]:
    """For each refused call of some draws: the place that refuses it, the call, and torch's error or ""."""
    c, made, spec = Choices(f"{seed}:{kind}"), list[tuple[Place, str, str]](), OPS[kind]
    for _ in range(_CHUNK):
        types, op = _draw_call(c, spec)
        place = _refuse(types, op)
        if place is not None and sum(one is place for one, _, _ in made) < _MOST_ASKED:
            try:
                call = f"{', '.join(map(_show, types.values()))}: {'; '.join(_lines(types, op))}"
            except Exception as error:  # noqa: BLE001 - there is no text for such a call
                made.append((place, "", f"no text: {type(error).__name__}"))
            else:
                made.append((place, call, _run(types, op)))
    return made


def _refuse(types: Mapping[str, TensorType], op: Op) -> Place | None:
    """The rule of an operation that refuses the call, if one does."""
    try:
        infer(op, types, {})
    except CaseError as error:
        place = find_place(error)
        return place if place and place.path.startswith("program/ops/") else None
    return None


def _draw_call(c: Choices, spec: OpSpec) -> tuple[dict[str, TensorType], Op]:
    shape = tuple(c.draw(_LENGTHS) for _ in range(c.draw(_RANKS)))
    attrs = {name: _draw_attribute(c, one, shape) for name, one in spec.attributes.items()}
    least, most = spec.arity
    extra = len(spec.optional(attrs)) if spec.optional else c.below(min(most, least + 2) - least + 1)
    dtype, types = c.draw(_DTYPES), dict[str, TensorType]()
    for at in range(least + extra):
        if at and c.chance(0.5):
            shape = c.pick((shape, shape[::-1], shape[1:], tuple(c.draw(_LENGTHS) for _ in range(c.draw(_RANKS)))))
        dtype = dtype if not at or c.chance(0.7) else c.draw(_DTYPES)
        types[f"x{at}"] = TensorType(tuple(map(Size.of, shape)), dtype)
    return types, make_op("made", spec.kind, tuple(types), attrs)


def _draw_attribute(c: Choices, one: Attribute, shape: tuple[int, ...]) -> Attr:
    if not one.required and c.chance(0.6):
        return one.default
    few = c.pick((1, 2, 3, 0, -1, *shape))
    match one.kind:
        case Kind.AXIS | Kind.INT:
            return c.pick((0, 1, -1, 2, -2, 3, few))
        case Kind.AXES:
            return tuple(c.pick((0, 1, -1, 2)) for _ in range(c.pick((1, 2, len(shape)))))
        case Kind.NUMBER:
            return c.pick([*_NUMBERS, *one.words])
        case Kind.SIZE | Kind.BOUND:
            return Size.of(few)
        case Kind.FLAG:
            return c.chance(0.5)
        case Kind.WORD:
            return c.pick(one.words)
        case Kind.EQUATION:
            return c.pick(("ij,jk->ik", "ij->ji", "ij,ij->", "bi,bj->bij", "ii->i"))
    numbers = tuple(c.pick((1, 2, 0, -1, *shape)) for _ in range(c.pick((1, 2, 4, len(shape)))))
    return tuple(map(Size.of, c.pick((numbers, shape, (math.prod(shape),)))))


def _lines(types: Mapping[str, TensorType], op: Op) -> Iterator[str]:
    spec = OPS[op.kind]
    line = Line("made", spec, [*op.args], [*types.values()], attributes(op), "'cpu'")
    if (module := spec.init(line)) is not None:
        yield f"self.made = {module}"
    yield from spec.before(line)
    yield spec.emit(line) if spec.writes else f"made = {spec.emit(line)}"


def _run(types: Mapping[str, TensorType], op: Op) -> str:
    """Torch's error, in one line; "" if it takes the call."""
    lines = [*_lines(types, op)]
    values = {name: _make(one) for name, one in types.items()}
    scope: dict[str, Any] = {"torch": torch, "nn": nn, "F": nn.functional, "math": math, "self": nn.Module(), **values}
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()), torch.no_grad():
        warnings.simplefilter("ignore")
        try:
            exec("\n".join(lines), scope)
        except Exception as error:  # noqa: BLE001 - whatever torch raises is its answer
            return f"{type(error).__name__}: {(str(error).strip().splitlines() or [''])[0][:160]}"
    return ""


def _make(kind: TensorType) -> torch.Tensor:
    sizes, dtype = kind.sizes({}), getattr(torch, kind.dtype)
    if category(kind.dtype) == 2:
        return torch.rand(sizes).to(dtype)
    return torch.randint(0, 2, sizes).to(dtype) if category(kind.dtype) < 2 else torch.rand(sizes).to(dtype)


def _show(kind: TensorType) -> str:
    return f"{kind.dtype}{[*kind.sizes({})]}"
