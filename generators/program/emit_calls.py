"""The text of further calls: the generator `calls(module)`, and the parameters of `inputs`."""

import re
from collections.abc import Iterator

from generators.program.case import Case, FurtherCall, Input
from generators.program.further_calls import cast_to
from generators.program.values import LAYOUTS

_OPTIMIZERS = {"sgd": "torch.optim.SGD(module.parameters(), lr=0.1)", "adamw": "torch.optim.AdamW(module.parameters())"}
_CONTEXTS = {
    "training": "torch.enable_grad()",
    "inference": "torch.no_grad()",
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
}


def emit_calls(case: Case) -> str:
    """The text of `calls(module)`, which yields the inputs of each call and does what lies between calls."""
    lines = ["    first = inputs()", *_mark(case), "    yield first"]
    if not case.marked and all(call.values != "same" for call in case.calls):
        lines = ["    yield inputs()"]
    step = next((call.step for call in case.calls if call.step), "")
    if step:
        lines.insert(0, f"    optimizer = {_OPTIMIZERS[step.removeprefix('compiled_')]}")
    training = case.training
    for call in case.calls:
        if call.step:
            is_compiled = call.step.startswith("compiled_")
            lines.append("    torch.compile(optimizer.step)()" if is_compiled else "    optimizer.step()")
            lines.append("    optimizer.zero_grad()")
        wanted = {"training": True, "inference": False}.get(call.under, case.training)
        if wanted != training:
            lines.append(f"    module.{'train' if wanted else 'eval'}()")
            training = wanted
        if call.reseeds:
            lines.append("    torch.manual_seed(0)")
        lines += _yield(case, call)
    return "\n\ndef calls(module):\n" + "\n".join(lines) + "\n"


def vary_inputs(case: Case, text: str) -> tuple[str, str]:
    """The parameters of `inputs`, and the text of its list with them."""
    names = list(dict.fromkeys(name for call in case.calls for name, _ in call.sizes))
    parameters = [f"{name}={name}" for name in names]
    if any(call.values == "other" for call in case.calls):
        parameters.append("seed=0")
        text = re.sub(r"rng\((\d+)\)", r"rng(\1 + seed)", text)
    return ", ".join(parameters), text


def _yield(case: Case, call: FurtherCall) -> Iterator[str]:
    given = "first" if call.values == "same" else f"inputs({', '.join(_list_arguments(case, call))})"
    arguments = [item for item in case.inputs if not item.parameter]
    changed = [_change(case, call, item) for item in arguments]
    if changed != [item.name for item in arguments]:
        yield f"    {', '.join(item.name for item in arguments)}{',' * (len(arguments) == 1)} = {given}"
        given = f"[{', '.join(changed)}]"
    context = _CONTEXTS.get(call.under)
    if context is None or (call.under == case.mode):
        yield f"    yield {given}"
        return
    if given != "first":
        yield f"    given = {given}"
    yield f"    with {context}:"
    yield f"        yield {'first' if given == 'first' else 'given'}"


def _list_arguments(case: Case, call: FurtherCall) -> Iterator[str]:
    yield from (f"{name}={size}" for name, size in call.sizes)
    if call.values == "other":
        yield f"seed={100 * (1 + case.calls.index(call))}"


def _change(case: Case, call: FurtherCall, item: Input) -> str:
    dtype, layout = cast_to(case, call, item), dict(call.layouts).get(item.name, item.layout)
    text = item.name if dtype is None else f"{item.name}.to(torch.{dtype})"
    return text if layout == item.layout else emit_layout(f"{text}.contiguous()", layout, len(item.shape))


def _mark(case: Case) -> Iterator[str]:
    """Lines that mark dimensions of the first call's inputs as dynamic."""
    for index, item in enumerate(item for item in case.inputs if not item.parameter):
        for axis, size in enumerate(item.shape):
            if size.is_name and str(size) in case.marked:
                yield f"    torch._dynamo.maybe_mark_dynamic(first[{index}], {axis})"


def emit_layout(text: str, layout: str, rank: int) -> str:
    """A tensor of that rank, laid out so."""
    return LAYOUTS[layout].template.format(x=text, zeros="0, 0, " * (rank - 1))
