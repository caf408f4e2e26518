"""A region as a torch.autograd.Function whose rule is not the derivative of its forward.

People write such rules: straight-through estimators, clipped and scaled gradients, surrogates. Rules are elementwise,
so each means the same for a row of the arguments. Programs that torch documents as wrong are left out: backward reads
saved arguments and results alone, and a written argument is marked and returned
(https://docs.pytorch.org/docs/stable/notes/extending.html).
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class _Rule:
    gradient: str  # of an argument, in words of `gradient`, the saved `argument` and the saved `result`
    shared: bool = False  # whether each argument of the result's type has a gradient; else the first argument alone


@dataclass(frozen=True, slots=True)
class _Style:
    setup: bool = False  # it has `setup_context`
    once: bool = False  # its backward is `once_differentiable`
    vmap: bool = False  # it has `generate_vmap_rule`
    jvp: bool = False
    dirty: bool = False  # it writes its result into its first argument


_RULES = {
    "straight": _Rule("{gradient}"),
    "scaled": _Rule("{gradient} * -0.5"),
    "clipped": _Rule("{gradient}.clamp(-0.5, 0.5)"),
    "of_argument": _Rule("{gradient} * {argument}.cos()", shared=True),
    "of_result": _Rule("{gradient} * {result}.cos()", shared=True),
}
_STYLES = {
    "": _Style(),
    "setup": _Style(setup=True),
    "once": _Style(once=True),
    "vmap": _Style(setup=True, vmap=True),
    "jvp": _Style(setup=True, vmap=True, jvp=True),
    "dirty": _Style(dirty=True),
    "dirty_setup": _Style(setup=True, dirty=True),
}
FUNCTION_OPTIONS = tuple("+".join(filter(None, (rule, style))) for style in _STYLES for rule in _RULES)
"""The options of the kind, simplest first: a rule, and a style of the class."""


def _is_captured(style: _Style) -> bool:
    return not (style.jvp or style.dirty)


_TRANSFORMS: dict[str, Callable[[_Style], bool]] = {
    **dict.fromkeys(("grad", "vjp", "jacrev", "grad_of_grad"), lambda style: style.setup),
    "vmap": lambda style: style.vmap,
    "jvp": lambda style: style.jvp,
    **dict.fromkeys(("cond", "map", "map_uncaptured", "scan", "while_loop"), _is_captured),
}
"""The styles that a region around takes, by its kind. Transforms of torch.func need a style of their own:
https://docs.pytorch.org/docs/stable/notes/extending.func.html. Control flow must be captured whole, and Dynamo captures
no `jvp` in training and no `mark_dirty` in inference (torch/_dynamo/variables/misc.py)."""


def _find(option: str) -> tuple[_Rule, _Style]:
    rule, _, style = option.partition("+")
    return _RULES[rule], _STYLES[style]


def is_transformable(option: str, around: str) -> bool:
    """Whether a region of the kind `around` takes the Function of an option."""
    return around not in _TRANSFORMS or _TRANSFORMS[around](_find(option)[1])


def writes_argument(option: str) -> bool:
    return _find(option)[1].dirty


def emit_function(
    option: str,
    name: str,
    parameters: Sequence[str],
    alike: Sequence[str],
    body: Sequence[str],
    result: str,
    free: Callable[[str], str],
) -> Iterator[str]:
    """The lines of the class.

    alike: the parameters of the result's type; the first parameter is one
    body: the lines that compute the result
    free: a name that the program does not use, like the given name
    """
    rule, style = _find(option)
    ctx, gradient, first = free("ctx"), free("gradient"), parameters[0]
    slots = alike if rule.shared else alike[:1]
    saved = slots if "{argument}" in rule.gradient else [result] if "{result}" in rule.gradient else []
    returned = first if style.dirty else result
    kept = [returned if value == result else value for value in saved]
    marks = [f"{ctx}.mark_dirty({first})"] * style.dirty
    if saved:
        marks += [
            f"{ctx}.{save}({', '.join(kept)})" for save in ("save_for_backward", *["save_for_forward"] * style.jvp)
        ]
    writes = [f"{first}.copy_({result})"] * style.dirty
    yield from (f"class {name}(torch.autograd.Function):", *["    generate_vmap_rule = True", ""] * style.vmap)
    if style.setup:
        yield from _define("forward", parameters, [*body, *writes, f"return {returned}"])
        yield ""
        inputs, output = free("inputs"), free("output")
        unpacked = [f"{_pack(parameters)} = {inputs}"] * bool(marks)
        named = [f"{returned} = {output}"] * (result in saved and not style.dirty)
        yield from _define("setup_context", (ctx, inputs, output), [*unpacked, *named, *(marks or ["pass"])])
    else:
        yield from _define("forward", (ctx, *parameters), [*body, *writes, *marks, f"return {returned}"])
    yield ""
    read = [f"{_pack(saved)} = {ctx}.saved_tensors"] * bool(saved)
    found = {
        value: rule.gradient.format(gradient=gradient, argument=value, result=result) if value in slots else "None"
        for value in parameters
    }
    lines = [*read, f"return {', '.join(found.values())}"]
    yield from _define("backward", (ctx, gradient), lines, "@torch.autograd.function.once_differentiable" * style.once)
    if style.jvp:
        tangents = {value: free(f"{value}_tangent") for value in parameters}
        terms = [rule.gradient.format(gradient=tangents[value], argument=value, result=result) for value in slots]
        yield ""
        yield from _define("jvp", (ctx, *tangents.values()), [*read, f"return {' + '.join(terms)}"])


def _define(method: str, parameters: Sequence[str], lines: Sequence[str], decorator: str = "") -> Iterator[str]:
    yield from ("    @staticmethod", *[f"    {decorator}"] * bool(decorator))
    yield from (f"    def {method}({', '.join(parameters)}):", *(f"        {line}" if line else "" for line in lines))


def _pack(names: Sequence[str]) -> str:
    return ", ".join(names) + "," * (len(names) == 1)
