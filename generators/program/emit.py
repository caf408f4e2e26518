"""A case as the nn.Module a person would have written. This text is run, shrunk and reported."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from generators.program.case import Case, Op, Region, TensorType, free_name
from generators.program.changes import KINDS
from generators.program.emit_inputs import emit_calls, emit_input, emit_inputs
from generators.program.emit_regions import RegionFunction, emit_alike, emit_region, indent, open_autocast
from generators.program.given import READER
from generators.program.numbers import spell_numbers
from generators.program.ops import FUNCTIONS, OPS, find_probability
from generators.program.ops.spec import Line
from generators.program.references import list_dims, rename
from generators.program.regions import REGIONS, SHARED, list_alike, list_indirect, list_results, ops_of
from generators.program.type_check import attributes, types_of
from generators.program.writes import find_owners, find_target, list_written

_IMPORTS = {
    "copy.deepcopy(": "import copy",
    "pathlib.": "import pathlib",
    "F.": "import torch.nn.functional as F",
    "DTensor)": "from torch.distributed.tensor import DTensor, Replicate, Shard",
    "nn.": "from torch import nn",
    "create_block_mask(": "from torch.nn.attention.flex_attention import create_block_mask",
    "checkpoint(": "from torch.utils.checkpoint import checkpoint",
    "map_rows(": "from torch._higher_order_ops.map import map as map_rows",
    "scan(": "from torch._higher_order_ops.scan import scan",
    "associative_scan(": "from torch._higher_order_ops.associative_scan import associative_scan",
    "flex_attention(": "from torch.nn.attention.flex_attention import flex_attention",
}
"""Imports, by the words of the text that need them."""
_RNG = """

def rng(seed):
    return torch.Generator().manual_seed(seed)
"""
_SET_WEIGHTS = """

def set_weights(layer, seed):
    generator = rng(seed)
    for parameter in layer.parameters():
        nn.init.normal_(parameter, std=parameter.size(-1) ** -0.5, generator=generator)
    return layer
"""
"""Random parameters for a layer: torch initialises biases to 0, which would hide mistakes."""
_OTHER_WEIGHTS = """

def with_other_weights(layer):
    layer = copy.deepcopy(layer)
    for parameter in layer.parameters():
        parameter.data.mul_(-0.5)
    return layer
"""


def source(case: Case, *, plain: bool = False) -> str:
    """The Python text of a case: `Module`, and `inputs()` which gives equal, fresh tensors at every call.

    plain: as in generators/program/emit_regions.py
    """
    return emit_rewritten(case, case.ops, {}, plain=plain)


def emit_rewritten(case: Case, ops: Sequence[Op], instead: Mapping[str, str], *, plain: bool = False) -> str:
    """The text of a case with only these operations. `instead`: expressions that replace some of them, by name.

    All parameters and arguments stay, even if nothing reads them.
    """
    body = _Body(case, types_of(case), instead, plain=plain)
    forward, spelled = body.define_forward(ops), [op for op in ops if op.name not in instead]
    parts = _emit_attributes(case), body.define_init(spelled), forward
    module = "\n\nclass Module(nn.Module):\n" + "\n\n".join(filter(None, parts)) + "\n"
    inputs = emit_inputs(case) + emit_calls(case)
    functions = _SET_WEIGHTS if "set_weights(" in module else ""
    functions += _OTHER_WEIGHTS if "with_other_weights(" in inputs else ""
    functions += READER if "read_values(" in module + inputs else ""
    outside = "".join(body.outside)
    functions = (_RNG if "rng(" in functions + module + inputs else "") + functions + outside
    functions += "".join(f"\n{text}" for name, text in FUNCTIONS.items() if f"{name}(" in outside + module)
    text = functions + module + inputs
    imports = [line for key, line in _IMPORTS.items() if re.search(rf"\b{re.escape(key)}", text)]
    sizes = f"\n{', '.join(case.sizes)} = {', '.join(map(str, case.sizes.values()))}"
    lines = ["import torch", *imports, *_emit_switches(case, plain=plain), *([sizes] if case.dims else []), ""]
    return "\n".join(lines) + text


def _emit_switches(case: Case, *, plain: bool) -> Iterator[str]:
    if any(op.attr("fast_path") is False for op in case.ops):
        # A switch for all of torch's layers at once.
        yield "\ntorch.backends.mha.set_fastpath_enabled(False)"
    if not plain and any(kind in REGIONS and REGIONS[kind].captures for kind in list_indirect(case)):
        yield "\ntorch._dynamo.config.capture_scalar_outputs = True"
    if any(KINDS[change.kind].is_guarded for call in case.calls for change in call.changes):
        yield "\ntorch._dynamo.config.skip_nnmodule_hook_guards = False"


def list_unplain(case: Case) -> tuple[str, ...]:
    """The kinds of regions and operations, and the forms of operations, that the plain text spells in another way."""
    specs = {op.kind: OPS[op.kind] for op in case.ops}
    always = (kind for kind, spec in specs.items() if spec.plain and "form" not in spec.attributes)
    return (*list_indirect(case), *always)


def is_random(case: Case) -> bool:
    """Whether running the case draws random numbers: some dropout is on with 0 < p < 1."""
    return any(0 < find_rate(case, op) < 1 for op in case.ops)


def find_rate(case: Case, op: Op) -> float:
    """The share of elements that the operation drops; 0 if it has no dropout, or the dropout is off."""
    active = "mode" if op.attr("form") == "module" else op.attr("active") or "mode"
    return find_probability(op) if active == "always" or (active == "mode" and case.training) else 0.0


def list_shown_dropouts(case: Case) -> list[tuple[int, int, float]]:
    """The active dropouts whose argument and result the case returns as they were: the place of both, and the rate."""
    owners, written = find_owners(case), list_written(case)
    places = {name: place for place, name in enumerate(case.returns) if owners[name] not in written}
    dropped = [op for op in case.ops if op.kind == "dropout" and 0 < find_rate(case, op) < 1]
    shown = [op for op in dropped if op.name in places and op.args[0] in places]
    return [(places[op.args[0]], places[op.name], find_rate(case, op)) for op in shown]


def _emit_attributes(case: Case) -> str:
    """Attributes of the class, which tell a caller how to train and to shard the module."""
    constants = [item.name for item in case.arguments if not item.requires_grad]
    lines = [f"    without_gradient = {constants}"] if constants and case.may_train else []
    outside = "backward_autocast = False  # backward passes run outside of the autocast around calls"
    lines += [f"    {outside}"] * case.is_cast_forward
    lines += ['    loss = "sum"'] * (case.mode == "training_on_sum")
    split = [item for item in case.inputs if item.shards != (None, None)]
    shards = ", ".join(f'"{item.name}": {[*item.shards] if case.has_mesh else item.shard}' for item in split)
    return "\n".join(lines + [f"    shards = {{{shards}}}  # the axes that are split over ranks"] * bool(shards))


def read(case: Case, name: str) -> str:
    """How forward refers to a value: by its name; for a parameter, as an attribute of the module.

    The result of a write is referred to by its target.
    """
    name = find_target(case, name)
    return f"self.{name}" if any(i.parameter and i.name == name for i in case.inputs) else name


def _read_sizes(case: Case, ops: Sequence[Op], types: Mapping[str, TensorType]) -> Iterator[str]:
    """The lines that read the sizes of operations off the first argument that has them, if shapes can be dynamic."""
    if not case.varies:
        return
    shapes = [(item.name, axis, size) for item in case.arguments for axis, size in enumerate(item.shape)]
    places = {str(size): f"{name}.size({axis})" for name, axis, size in reversed(shapes) if size.is_name}
    used = dict.fromkeys(name for op in ops for _, value in op.attrs for name in sorted(list_dims(value)))
    used |= dict.fromkeys(region.over for region in case.regions)
    # A while_loop begins with zeros of its result's shape.
    filled = (value for one in case.regions if one.kind == "while_loop" for value in list_results(case, one))
    used |= dict.fromkeys(name for value in filled for name in sorted(list_dims(types[value])))
    yield from (f"{name} = {places[name]}" for name in used if name in places)


@dataclass
class _Body:
    """The methods of the module, and the text outside of it that they need."""

    case: Case
    types: Mapping[str, TensorType]
    instead: Mapping[str, str]  # expressions that replace operations, by name
    plain: bool
    outside: list[str] = field(default_factory=list)
    blocks: list[str] = field(default_factory=list)  # the names of the functions of regions
    layers: list[str] = field(default_factory=list)  # the lines of `__init__` that make functions and layers
    shared: dict[Region, str] = field(default_factory=dict)  # what makes a function or layer, by the first region

    def define_forward(self, ops: Sequence[Op]) -> str:
        case = self.case
        sizes = _read_sizes(case, [op for op in ops if op.name not in self.instead], self.types)
        lines = [*sizes, *self.emit(ops, () if self.instead else case.regions, ())]
        lines = lines[lines[:1] == [""] :]
        if case.autocast and lines:
            lines = open_autocast(f"{case.arguments[0].name}.device", case.autocast, lines)
        lines.append(f"return {', '.join(read(case, r) for r in case.returns)}")
        names = ", ".join([*(item.name for item in case.arguments), *(number.name for number in case.numbers)])
        if not case.checkpoint:
            return _define("forward", names, lines)
        again = f"return checkpoint(self.compute, {names}, use_reentrant=False)"
        return _define("forward", names, [again]) + "\n\n" + _define("compute", names, lines)

    def define_init(self, ops: Sequence[Op]) -> str:
        """The method that makes parameters and layers; "" without any. `define_forward` ran before."""
        lines = []
        for item in (item for item in self.case.inputs if item.parameter):
            made, constant = emit_input(self.case, item), ", requires_grad=False" * (not item.requires_grad)
            parameter, buffer = f"nn.Parameter({made}{constant})", f'self.register_buffer("{item.name}", {made})'
            lines.append(buffer if item.is_buffer else f"self.{item.name} = {parameter}")
        made_layers = ((op.name, OPS[op.kind].init(_line(self.case, op, self.types))) for op in ops)
        lines += [f"self.{name} = {text}" for name, text in made_layers if text is not None]
        lines += self.layers
        return _define("__init__", "", ["super().__init__()", *lines]) if lines else ""

    def emit(self, run: Sequence[Op], regions: Sequence[Region], local: Sequence[str]) -> Iterator[str]:
        """The lines of operations. `local`: the values that have their own names, as arguments of a function."""
        for op in run:
            region = next((one for one in regions if op.name in one.ops), None)
            if region is None:
                yield from self._emit_op(op, local)
            elif op.name == region.ops[0]:
                yield from self._emit_region(region, run, regions[regions.index(region) + 1 :], local)

    def _emit_op(self, op: Op, local: Sequence[str]) -> Iterator[str]:
        if op.name in self.instead:
            yield f"{op.name} = {self.instead[op.name]}"
            return
        spec, line = OPS[op.kind], _line(self.case, op, self.types)
        if local:
            targets = [find_target(self.case, arg) for arg in op.args]
            texts = [name if name in local else read(self.case, name) for name in targets]
            line = replace(line, args=texts, device=f"{local[0]}.device")
        value = spec.emit(line, plain=self.plain)
        yield from (*spec.before(line), value if spec.writes else f"{op.name} = {value}")

    def _emit_region(
        self, region: Region, run: Sequence[Op], inner: Sequence[Region], local: Sequence[str]
    ) -> Sequence[str]:
        within = [op for op in run if op.name in region.ops]
        if REGIONS[region.kind].is_block:
            device = f"{local[0] if local else self.case.arguments[0].name}.device"
            return open_autocast(device, region.option, [*self.emit(within, inner, local)])
        name = free_name("block", {*self.types, *self.blocks})
        self.blocks.append(name)
        function = RegionFunction(self.case, region, self.types, name, local)
        if region.option in SHARED:
            return self._emit_shared(function, within, inner)
        own = [*self.emit(within, inner, [*function.parameters, *local])]
        text, calls = emit_region(function, own, plain=self.plain)
        self.outside.append(text)
        return calls

    def _emit_shared(self, function: RegionFunction, within: Sequence[Op], inner: Sequence[Region]) -> list[str]:
        case, name, alike = self.case, function.name, list_alike(self.case, function.region, self.types)
        first = alike[0]
        if first not in self.shared:
            shared = replace(function, region=first)
            given = shared.parameters
            bodies = [[[*self.emit(within, inner, given)]]] if len(alike) == 1 else []
            for one in alike if len(alike) > 1 else ():
                own = replace(function, region=one).parameters
                names = dict(zip((*own, *one.ops), (*given, *first.ops), strict=True))
                bodies.append([[*self._emit_op(rename(op, names), given)] for op in ops_of(case, one)])
            text, self.shared[first] = emit_alike(shared, bodies, plain=self.plain)
            self.outside.append(text)
        self.layers.append(f"self.{name} = {self.shared[first]}({alike.index(function.region)})")
        return [replace(function, name=f"self.{name}").call]


def _define(method: str, names: str, lines: Sequence[str]) -> str:
    return "\n".join([f"    def {method}({', '.join(filter(None, ['self', names]))}):", *indent(lines, 2)])


def _line(case: Case, op: Op, types: Mapping[str, TensorType]) -> Line:
    texts, kinds = [read(case, a) for a in op.args], [types[a] for a in op.args]
    device = f"{case.arguments[0].name}.device"
    return Line(op.name, OPS[op.kind], texts, kinds, attributes(op), device, spell_numbers(case, op))
