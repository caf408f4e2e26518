"""The source text of regions.

A case with regions has two texts. In the *plain* text a region is a Python call or a Python loop. The float64 reference
and runs with noise take the plain text; eager and all subjects take the other.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from generators.program.autograd_functions import emit_function, writes_argument
from generators.program.case import Case, Region, TensorType, free_name
from generators.program.emit_layers import choose_lines, emit_class, emit_class_around, emit_maker, indent
from generators.program.regions import (
    FUNCTION,
    REGIONS,
    list_arguments,
    list_around,
    list_results,
    list_written_operands,
)
from generators.program.values import category
from generators.program.writes import find_owners

_REVERSE = ", reverse=True"


@dataclass(frozen=True, slots=True)
class _Function:
    """The function of a region. All fields are source text."""

    name: str
    parameters: tuple[str, ...]
    floating: tuple[str, ...]  # the parameters that may have gradients
    passed: tuple[str, ...]  # the arguments of its call
    results: tuple[str, ...]
    zeros: tuple[str, ...]  # for each result, zeros of its type
    over: str
    carried: tuple[str, ...]  # what a step hands on, for the first parameters
    free: Callable[[str], str]  # a name that the program does not use, like the given name

    @property
    def arguments(self) -> str:
        return ", ".join(self.passed)

    @property
    def packed(self) -> str:
        """The arguments as a tuple."""
        return f"({_pack(self.passed)})"

    @property
    def call(self) -> str:
        return f"{self.name}({self.arguments})"

    @property
    def rows(self) -> tuple[str, ...]:
        """The results of which each call gives a row, if it gives rows."""
        return tuple(value for value in self.results if value not in self.carried)

    def assign(self, value: str) -> str:
        return f"{', '.join(self.results)} = {value}" if self.results else value


def _has_transform(case: Case, region: Region) -> bool:
    """Whether a transform lies within a region."""
    inner = case.regions[case.regions.index(region) + 1 :]
    return any(REGIONS[one.kind].is_transform and {*one.ops} <= {*region.ops} for one in inner)


def emit_region(
    case: Case,
    region: Region,
    types: Mapping[str, TensorType],
    name: str,
    lines: Sequence[str],
    local: Sequence[str],
    *,
    plain: bool,
) -> tuple[str, list[str]]:
    """The text of a function outside of the module, or "", and the lines that call it.

    name: of the region's function
    lines: of its operations
    local: values that have their own names where it is called: arguments of a region around it
    """
    row, function = REGIONS[region.kind], _make_function(case, region, types, name, local)
    results = function.results
    body = [*_open_rows(function, lines)] if row.loops else []
    # torch.cond wants branches of equal strides, and a gradient may be an expanded tensor.
    returned = ".contiguous()" if region.kind == "cond" and _has_transform(case, region) else "[0]" * row.loops
    found = [value + returned for value in function.rows]
    if region.carries:
        body += [*lines, f"return ({_pack([*_hand_on(case, region, function)])}), ({_pack(found)})"]
    else:
        body += [*lines, *([f"return {', '.join(found)}"] if results else [])]
    if row.is_custom:
        body = [*_read_rows(case, region, lines), *body]
        if region.kind == FUNCTION:
            return _emit_autograd_function(case, region, function, types, body[:-1])
        call = f"{name}_function({function.arguments})" if plain else function.call
        return _emit_custom(case, region, function, body, plain=plain), [function.assign(call)]
    head = ["", f"def {name}({', '.join(function.parameters)}):", *indent(body), ""]
    is_plain = row.is_python or (plain and not row.is_transform)
    if region.carries:
        return "", [*head, _spell_steps("loop_rows" if is_plain else "scan", region, function)]
    return "", [*head, *(_spell_plain(function, row.loops) if is_plain else _spell(region, function))]


def _hand_on(case: Case, region: Region, function: _Function) -> Iterator[str]:
    """The value that a step hands on, or a copy, if its memory is not of this step or is returned twice."""
    owners = find_owners(case)
    returned = [owners[value] for value in (*function.carried, *function.rows)]
    for value in function.carried:
        is_own = owners[value] in region.ops and returned.count(owners[value]) == 1
        yield f"{value}.contiguous()" if is_own else f"fresh_copy({value})"


def _spell_steps(loop: str, region: Region, function: _Function) -> str:
    """The line that runs a function on what the step before hands on and on each row."""
    passed, carried, rows = function.passed, function.carried, function.rows
    starts, given = [f"fresh_copy({value})" for value in passed[: len(carried)]], passed[len(carried) :]
    kept = [value if value in function.results else "_" for value in carried]
    targets = f"({_pack(kept)})", f"({_pack(rows)})" if rows else "_"
    call = f"{loop}(lambda state, rows: {function.name}(*state, *rows), ({_pack(starts)}), ({_pack(given)})"
    return f"{', '.join(targets)} = {call}{_REVERSE * region.reverse})"


def _read_rows(case: Case, region: Region, lines: Sequence[str]) -> Iterator[str]:
    """The lines that give a function outside of the module the sizes that loops around it have."""
    rows = {outer.over for outer in list_around(case.regions, region) if REGIONS[outer.kind].loops}
    yield from (f"{size} = 1" for size in sorted(rows) if any(size in line for line in lines))


def emit_alike(
    case: Case,
    alike: Sequence[Region],
    types: Mapping[str, TensorType],
    name: str,
    bodies: Sequence[Sequence[Sequence[str]]],
    *,
    plain: bool,
) -> tuple[str, str]:
    """The text of the function or class that regions share, and the expression that makes it with a number.

    bodies: for each region, for each of its operations, its lines
    """
    first, option = alike[0], alike[0].option
    function = _make_function(case, first, types, name, ())
    number = function.free("number") if option == "closure" else "self.number"
    lines = choose_lines(bodies, number)
    body = [*_read_rows(case, first, lines), *lines, f"return {', '.join(function.results)}"]
    if option == "closure":
        maker = function.free(f"make_{name}")
        return emit_maker(maker, name, number, function.parameters, body, plain=plain), maker
    kind = function.free(name.capitalize())
    text = emit_class(kind, function.parameters, body, plain=plain)
    if option == "layer":
        return text, kind
    outer = function.free(f"{kind}Around")
    return text + emit_class_around(outer, kind, function.parameters, plain=plain), outer


def emit_call(case: Case, region: Region, types: Mapping[str, TensorType], name: str, local: Sequence[str]) -> str:
    """The line that calls the function `name` of a region."""
    function = _make_function(case, region, types, name, local)
    return function.assign(function.call)


def _make_function(
    case: Case, region: Region, types: Mapping[str, TensorType], name: str, local: Sequence[str]
) -> _Function:
    parameters, results = list_arguments(case, region, types), list_results(case, region)
    own = {item.name for item in case.inputs if item.parameter and item.name not in local}
    passed = tuple(f"self.{value}" if value in own else value for value in parameters)
    shapes = [", ".join(map(str, types[value].shape)) + "," * (types[value].rank == 1) for value in results]
    like = [f"dtype=torch.{types[value].dtype}, device={passed[0]}.device" for value in results]
    zeros = tuple(f"torch.zeros(({shape}), {form})" for shape, form in zip(shapes, like, strict=True))
    floating = tuple(value for value in parameters if category(types[value].dtype) == 2)
    free = partial(free_name, taken={name, *types, *case.sizes})
    carried = tuple(carry.next for carry in region.carries)
    return _Function(name, tuple(parameters), floating, passed, tuple(results), zeros, region.over, carried, free)


def _open_rows(function: _Function, lines: Sequence[str]) -> Iterator[str]:
    names = function.parameters[len(function.carried) :]
    yield f"{', '.join(names)} = {', '.join(f'{name}[None]' for name in names)}"
    if any(function.over in line for line in lines):
        yield f"{function.over} = 1"


def open_autocast(device: str, dtype: str, lines: Sequence[str]) -> list[str]:
    """The lines under torch.autocast. `dtype`: its name, or `off`."""
    option = "enabled=False" if dtype == "off" else f"dtype=torch.{dtype}"
    return [f"with torch.autocast({device}.type, {option}):", *indent(lines)]


def _spell_plain(function: _Function, loops: bool) -> list[str]:
    if not loops:
        return [function.assign(function.call)]
    rows = f"{function.name}(*rows) for rows in zip({function.arguments})"
    is_single = len(function.results) == 1
    return [function.assign(f"torch.stack([{rows}])" if is_single else f"map(torch.stack, zip(*({rows})))")]


def _spell(region: Region, function: _Function) -> list[str]:
    """The lines that call the function."""
    name, packed, results = function.name, function.packed, function.results
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


def _spell_while_loop(function: _Function) -> list[str]:
    """Each step takes a row of the arguments and writes a row of the result."""
    step, row, at, zeros = (function.free(name) for name in ("step", "row", "at", "zeros"))
    result = function.results[0]
    rows = ", ".join(f"{value}.index_select(0, {at})[0]" for value in function.passed)
    start = f"torch.zeros((), dtype=torch.int64, device={function.passed[0]}.device)"
    return [
        f"def {step}({row}, {result}):",
        f"    {at} = {row}.reshape(1)",
        f"    return {row} + 1, {result}.index_copy(0, {at}, {function.name}({rows})[None])",
        "",
        f"{zeros} = {function.zeros[0]}",
        f"_, {result} = torch.while_loop(lambda {row}, _: {row} < {function.over}, {step}, ({start}, {zeros}))",
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


def _emit_autograd_function(
    case: Case, region: Region, function: _Function, types: Mapping[str, TensorType], body: Sequence[str]
) -> tuple[str, list[str]]:
    """The class, and the lines that apply it."""
    name, result = function.free(function.name.capitalize()), function.results[0]
    forms = {value: (types[value].sizes(case.sizes), types[value].dtype) for value in (*function.parameters, result)}
    alike = [value for value in function.parameters if forms[value] == forms[result]]
    lines = emit_function(region.option, name, function.parameters, alike, body, result, function.free)
    text = "\n\n" + "\n".join(lines) + "\n"
    if not writes_argument(region.option):
        return text, [function.assign(f"{name}.apply({function.arguments})")]
    first, *others = function.passed
    return text, [f"{result} = {first}.clone()", f"{name}.apply({', '.join((result, *others))})"]


def _emit_custom(case: Case, region: Region, function: _Function, body: Sequence[str], *, plain: bool) -> str:
    name, count = function.name, len(function.results)
    kind = {0: "None", 1: "torch.Tensor"}.get(count, f"tuple[{', '.join(['torch.Tensor'] * count)}]")
    tensors = ", ".join(f"{value}: torch.Tensor" for value in function.parameters)
    text = "\n".join([f"def {name}_function({tensors}) -> {kind}:", *indent(body)])
    if plain:
        return f"\n\n{text}\n"
    written = tuple(list_written_operands(case, region))
    fake = f"{name}_function" if count else "lambda *given: None"
    lines = [
        f"{text}\n\n",
        f'{name} = torch.library.custom_op("case_{case.id[:6]}::{name}", {name}_function, mutates_args={written!r})',
        f"{name}.register_fake({fake})",
    ]
    text = "\n\n" + "\n".join(lines) + "\n"
    names, floating = function.parameters, function.floating
    if not (case.may_train and floating):
        return text
    found = {value: f"found[{number}]" for number, value in enumerate(floating)}
    return text + _GRADIENT.format(
        name=name,
        parameters=_pack(names),
        results=f"{name}_function({', '.join(names)})" if count > 1 else f"({name}_function({', '.join(names)}),)",
        gradients=", ".join(f"gradient{number}" for number in range(count)),
        wanted=_pack(floating),
        slots=_pack([str(found.get(value)) for value in names]),
    )
