"""The source text of regions.

A case with regions has two texts. In the *plain* text a region is a Python call or a Python loop. The float64 reference
and runs with noise take the plain text; eager and all subjects take the other.

Regions may share a function or a class, as the layers of a model do: torch.compile traces the body of a
`nested_compile_region` once for all calls that it takes to be alike.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from generators.program.autograd_functions import emit_function, writes_argument
from generators.program.case import Case, Region, TensorType, free_name
from generators.program.regions import (
    FUNCTION,
    REGIONS,
    list_arguments,
    list_around,
    list_results,
    list_within,
    list_written_operands,
)
from generators.program.values import category
from generators.program.writes import find_owners

_REVERSE = ", reverse=True"
_DECORATOR = "@torch.compiler.nested_compile_region"


@dataclass(frozen=True)
class RegionFunction:
    """The function of a region, and its call. `local`: values that have their own names where it is called, which are
    arguments of a region around it."""

    case: Case
    region: Region
    types: Mapping[str, TensorType]
    name: str
    local: Sequence[str] = ()

    @cached_property
    def parameters(self) -> list[str]:
        return list_arguments(self.case, self.region, self.types)

    @cached_property
    def results(self) -> list[str]:
        return list_results(self.case, self.region)

    @cached_property
    def passed(self) -> list[str]:
        """The arguments of its call."""
        own = {item.name for item in self.case.inputs if item.parameter and item.name not in self.local}
        return [f"self.{value}" if value in own else value for value in self.parameters]

    @property
    def arguments(self) -> str:
        return ", ".join(self.passed)

    @property
    def packed(self) -> str:
        """The arguments as a tuple."""
        return f"({_pack(self.passed)})"

    @property
    def call(self) -> str:
        """The line that calls it."""
        return self.assign(f"{self.name}({self.arguments})")

    @property
    def carried(self) -> list[str]:
        """What a step hands on, for the first parameters."""
        return [carry.next for carry in self.region.carries]

    @property
    def rows(self) -> list[str]:
        """The results of which each call gives a row, if it gives rows."""
        return [value for value in self.results if value not in self.carried]

    def free(self, name: str) -> str:
        """A name that the program does not use, like the given name."""
        return free_name(name, {self.name, *self.types, *self.case.sizes})

    def assign(self, value: str) -> str:
        return f"{', '.join(self.results)} = {value}" if self.results else value


def indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" if line else "" for line in lines]


def emit_region(function: RegionFunction, lines: Sequence[str], *, plain: bool) -> tuple[str, list[str]]:
    """The text of a function outside of the module, or "", and the lines that call it. `lines`: of its operations."""
    case, region, row = function.case, function.region, REGIONS[function.region.kind]
    body = [*_open_rows(function, lines)] if row.loops else []
    # torch.cond wants branches of equal strides, and a gradient may be an expanded tensor.
    differentiates = any(REGIONS[one.kind].is_transform for one in list_within(case.regions, region))
    returned = ".contiguous()" if region.kind == "cond" and differentiates else "[0]" * row.loops
    found = [value + returned for value in function.rows]
    if region.carries:
        body += [*lines, f"return ({_pack([*_hand_on(function)])}), ({_pack(found)})"]
    else:
        body += [*lines, *([f"return {', '.join(found)}"] if function.results else [])]
    if row.is_custom:
        body = [*_read_rows(function, lines), *body]
        if region.kind == FUNCTION:
            return _emit_autograd_function(function, body[:-1])
        return _emit_custom(function, body, plain=plain)
    head = ["", f"def {function.name}({', '.join(function.parameters)}):", *indent(body), ""]
    is_plain = row.is_python or (plain and not row.is_transform)
    if region.carries:
        return "", [*head, _spell_steps("loop_rows" if is_plain else "scan", function)]
    return "", [*head, *(_spell_plain(function) if is_plain else _spell(function))]


def _hand_on(function: RegionFunction) -> Iterator[str]:
    """The value that a step hands on, or a copy, if its memory is not of this step or is returned twice."""
    owners = find_owners(function.case)
    returned = [owners[value] for value in (*function.carried, *function.rows)]
    for value in function.carried:
        is_own = owners[value] in function.region.ops and returned.count(owners[value]) == 1
        yield f"{value}.contiguous()" if is_own else f"fresh_copy({value})"


def _spell_steps(loop: str, function: RegionFunction) -> str:
    """The line that runs a function on what the step before hands on and on each row."""
    passed, carried, rows = function.passed, function.carried, function.rows
    starts, given = [f"fresh_copy({value})" for value in passed[: len(carried)]], passed[len(carried) :]
    kept = [value if value in function.results else "_" for value in carried]
    targets = f"({_pack(kept)})", f"({_pack(rows)})" if rows else "_"
    call = f"{loop}(lambda state, rows: {function.name}(*state, *rows), ({_pack(starts)}), ({_pack(given)})"
    return f"{', '.join(targets)} = {call}{_REVERSE * function.region.reverse})"


def _read_rows(function: RegionFunction, lines: Sequence[str]) -> Iterator[str]:
    """The lines that give a function outside of the module the sizes that loops around it have."""
    rows = {outer.over for outer in list_around(function.case.regions, function.region) if outer.over}
    yield from (f"{size} = 1" for size in sorted(rows) if any(size in line for line in lines))


def emit_alike(function: RegionFunction, bodies: Sequence[Sequence[Sequence[str]]], *, plain: bool) -> tuple[str, str]:
    """The text of the function or class that regions share, and the expression that makes it with a number.

    function: of the first region
    bodies: for each region, for each of its operations, its lines
    """
    name, option = function.name, function.region.option
    number = function.free("number") if option == "closure" else "self.number"
    lines, parameters = _choose_lines(bodies, number), function.parameters
    body = [*_read_rows(function, lines), *lines, f"return {', '.join(function.results)}"]
    if option == "closure":
        maker = function.free(f"make_{name}")
        return _emit_maker(maker, number, name, _define_region(name, parameters, body, plain=plain)), maker
    kind, passed = function.free(name.capitalize()), ("self", *parameters)
    text = _emit_class(kind, "self.number = number", _define_region("forward", passed, body, plain=plain))
    if option == "layer":
        return text, kind
    outer, call = function.free(f"{kind}Around"), f"return self.layer({', '.join(parameters)})"
    around = _define_region("forward", passed, [call], plain=plain)
    return text + _emit_class(outer, f"self.layer = {kind}(number)", around), outer


def _choose_lines(bodies: Sequence[Sequence[Sequence[str]]], number: str) -> list[str]:
    """The lines of one body for all.

    bodies: for each region, for each of its operations, the lines
    number: the text that gives the number of the region
    """
    lines: list[str] = []
    for of_one in zip(*bodies, strict=True):
        forms = [*dict.fromkeys(map(tuple, of_one))]
        if len(forms) == 1:
            lines += forms[0]
            continue
        for form in forms:
            numbers = [place for place, text in enumerate(of_one) if tuple(text) == form]
            is_one = f"== {numbers[0]}" if len(numbers) == 1 else f"in {tuple(numbers)}"
            word = "if" if form == forms[0] else "elif"
            lines += ["else:" if form == forms[-1] else f"{word} {number} {is_one}:", *indent(form)]
    return lines


def _emit_maker(maker: str, number: str, name: str, function: Sequence[str]) -> str:
    """A function whose results, functions named `name`, differ in the number that they close over."""
    return _join([f"def {maker}({number}):", *indent([*function, "", f"return {name}"])])


def _emit_class(name: str, line: str, forward: Sequence[str]) -> str:
    """A class of layers that differ in the number that the line of `__init__` reads."""
    start = ["def __init__(self, number):", *indent(["super().__init__()", line]), ""]
    return _join([f"class {name}(nn.Module):", *indent([*start, *forward])])


def _define_region(name: str, parameters: Sequence[str], body: Sequence[str], *, plain: bool) -> list[str]:
    """The lines of a function that is a region."""
    return [*[_DECORATOR] * (not plain), f"def {name}({', '.join(parameters)}):", *indent(body)]


def _join(lines: Sequence[str]) -> str:
    return "\n\n" + "\n".join(lines) + "\n"


def _open_rows(function: RegionFunction, lines: Sequence[str]) -> Iterator[str]:
    names = function.parameters[len(function.carried) :]
    yield f"{', '.join(names)} = {', '.join(f'{name}[None]' for name in names)}"
    if any(function.region.over in line for line in lines):
        yield f"{function.region.over} = 1"


def open_autocast(device: str, dtype: str, lines: Sequence[str]) -> list[str]:
    """The lines under torch.autocast. `dtype`: its name, or `off`."""
    option = "enabled=False" if dtype == "off" else f"dtype=torch.{dtype}"
    return [f"with torch.autocast({device}.type, {option}):", *indent(lines)]


def _spell_plain(function: RegionFunction) -> list[str]:
    if not REGIONS[function.region.kind].loops:
        return [function.call]
    rows = f"{function.name}(*rows) for rows in zip({function.arguments})"
    is_single = len(function.results) == 1
    return [function.assign(f"torch.stack([{rows}])" if is_single else f"map(torch.stack, zip(*({rows})))")]


def _spell(function: RegionFunction) -> list[str]:
    """The lines that call the function."""
    region, name, packed, results = function.region, function.name, function.packed, function.results
    match region.kind:
        case "cond":
            other, first = function.free("otherwise"), function.passed[0]
            value = f"-{name}(*given)" if len(results) == 1 else f"tuple(-value for value in {name}(*given))"
            call = f"torch.cond(({first} == {first}).any(), {name}, {other}, {packed})"
            return [f"def {other}(*given):", f"    return {value}", "", function.assign(call)]
        case "map" | "map_uncaptured":
            return [function.assign(f"map_rows(lambda rows: {name}(*rows), {packed})")]
        case "scan":
            target = results[0] if len(results) == 1 else f"({', '.join(results)})"
            start = f"torch.zeros((), device={function.passed[0]}.device)"
            call = f"scan(lambda count, rows: (count + 1, {name}(*rows)), {start}, {packed}"
            return [f"_, {target} = {call}{_REVERSE * region.reverse})"]
        case "while_loop":
            return _spell_while_loop(function)
        case "vmap":
            return [function.assign(f"torch.vmap({name})({function.arguments})")]
        case "grad" | "jacrev":
            made = f"torch.func.{region.kind}(lambda *given: {name}(*given).sum())"
            return [function.assign(f"{made}({function.arguments})")]
        case "grad_of_grad":
            slope = function.free("slope")
            first = f"{slope} = torch.func.grad(lambda *given: {name}(*given).square().sum())"
            made = f"torch.func.grad(lambda *given: {slope}(*given).square().sum())"
            return [first, function.assign(f"{made}({function.arguments})")]
        case "vjp":
            made, pull = function.free("made"), function.free("pull")
            first = f"{made}, {pull} = torch.func.vjp({name}, {function.arguments})"
            return [first, f"{results[0]} = {pull}({made})[0]"]
        case "jvp":
            tangents = _pack([f"{value}.cos()" for value in function.passed])
            return [f"_, {results[0]} = torch.func.jvp({name}, {packed}, ({tangents}))"]
        case "functionalize":
            removed = ', remove="mutations_and_views"' if region.option else ""
            return [function.assign(f"torch.func.functionalize({name}{removed})({function.arguments})")]
        case "compile_region":
            return [function.assign(f"torch.compiler.nested_compile_region({name})({function.arguments})")]
    return [function.assign(f"checkpoint({name}, {function.arguments}, use_reentrant=False)")]


def _spell_while_loop(function: RegionFunction) -> list[str]:
    """Each step takes a row of the arguments and writes a row of the result."""
    step, row, at, zeros = (function.free(name) for name in ("step", "row", "at", "zeros"))
    result, device = function.results[0], f"{function.passed[0]}.device"
    kind = function.types[result]
    shape = ", ".join(map(str, kind.shape)) + "," * (kind.rank == 1)
    rows = ", ".join(f"{value}.index_select(0, {at})[0]" for value in function.passed)
    start = f"torch.zeros((), dtype=torch.int64, device={device})"
    return [
        f"def {step}({row}, {result}):",
        f"    {at} = {row}.reshape(1)",
        f"    return {row} + 1, {result}.index_copy(0, {at}, {function.name}({rows})[None])",
        "",
        f"{zeros} = torch.zeros(({shape}), dtype=torch.{kind.dtype}, device={device})",
        f"_, {result} = torch.while_loop(lambda {row}, _: {row} < {function.region.over}, {step}, ({start}, {zeros}))",
    ]


_GRADIENT = """

def {name}_gradient(ctx, {gradients}):
    {parameters} = ctx.saved_tensors
    with torch.enable_grad():
        {wanted} = [value.detach().requires_grad_() for value in ({wanted})]
        results = {results}
    pairs = [pair for pair in zip(results, ({gradients},)) if pair[0].requires_grad]
    outputs, gradients = zip(*pairs)
    found = torch.autograd.grad(outputs, ({wanted}), gradients, allow_unused=True)
    return {slots}


def {name}_save(ctx, inputs, output):
    ctx.save_for_backward(*inputs)


{name}.register_autograd({name}_gradient, setup_context={name}_save)
"""
"""The gradient of a custom operation, which computes the function again."""


def _pack(names: Sequence[str]) -> str:
    """The names as a tuple without parentheses."""
    return ", ".join(names) + "," * (len(names) == 1)


def _emit_autograd_function(function: RegionFunction, body: Sequence[str]) -> tuple[str, list[str]]:
    """The class, and the lines that apply it."""
    name, result, option = function.free(function.name.capitalize()), function.results[0], function.region.option
    kinds = {value: function.types[value] for value in (*function.parameters, result)}
    forms = {value: (kind.sizes(function.case.sizes), kind.dtype) for value, kind in kinds.items()}
    alike = [value for value in function.parameters if forms[value] == forms[result]]
    lines = emit_function(option, name, function.parameters, alike, body, result, function.free)
    text = "\n\n" + "\n".join(lines) + "\n"
    if not writes_argument(option):
        return text, [function.assign(f"{name}.apply({function.arguments})")]
    first, *others = function.passed
    return text, [f"{result} = {first}.clone()", f"{name}.apply({', '.join((result, *others))})"]


def _emit_custom(function: RegionFunction, body: Sequence[str], *, plain: bool) -> tuple[str, list[str]]:
    """The operation, and the line that calls it."""
    case, name, count = function.case, function.name, len(function.results)
    kind = {0: "None", 1: "torch.Tensor"}.get(count, f"tuple[{', '.join(['torch.Tensor'] * count)}]")
    tensors = ", ".join(f"{value}: torch.Tensor" for value in function.parameters)
    text = "\n".join([f"def {name}_function({tensors}) -> {kind}:", *indent(body)])
    if plain:
        return f"\n\n{text}\n", [function.assign(f"{name}_function({function.arguments})")]
    written = tuple(list_written_operands(case, function.region))
    fake = f"{name}_function" if count else "lambda *given: None"
    lines = [
        f"{text}\n\n",
        f'{name} = torch.library.custom_op("case_{case.id[:6]}::{name}", {name}_function, mutates_args={written!r})',
        f"{name}.register_fake({fake})",
    ]
    text = "\n\n" + "\n".join(lines) + "\n"
    names = function.parameters
    floating = [value for value in names if category(function.types[value].dtype) == 2]
    if not (case.may_train and floating):
        return text, [function.call]
    found = {value: f"found[{number}]" for number, value in enumerate(floating)}
    gradient = _GRADIENT.format(
        name=name,
        parameters=_pack(names),
        results=f"{name}_function({', '.join(names)})" if count > 1 else f"({name}_function({', '.join(names)}),)",
        gradients=", ".join(f"gradient{number}" for number in range(count)),
        wanted=_pack(floating),
        slots=_pack([str(found.get(value)) for value in names]),
    )
    return text + gradient, [function.call]
