"""The source text of a case's inputs and calls: `inputs()` and `calls(module)` beside the module."""

import re
from collections.abc import Iterator

from generators.program.calls import at_call, list_arounds, seed_at
from generators.program.case import Case, Input, LaterCall, SharedSlice
from generators.program.changes import KINDS, ChangeText
from generators.program.emit_regions import indent
from generators.program.given import spell_given
from generators.program.references import list_dims
from generators.program.values import DISTRIBUTIONS, LAYOUTS, number

_OPTIMIZERS = {"sgd": "torch.optim.SGD(module.parameters(), lr=0.1)", "adamw": "torch.optim.AdamW(module.parameters())"}
_CONTEXTS = {
    "training": "torch.enable_grad()",
    "inference": "torch.no_grad()",
    "no_grad": "torch.no_grad()",
    "inference_mode": "torch.inference_mode()",
}
_CALL = re.compile(r"[\w.]+\([^()]*(\([^()]*\)[^()]*)*\)")


def emit_inputs(case: Case) -> str:
    """The text of `inputs()`, with parameters for sizes, seeds and numbers that differ in later calls."""
    parameters = [f"{name}={name}" for name in dict.fromkeys(name for call in case.calls for name, _ in call.sizes)]
    owners = {item.part.of for item in case.arguments if item.part}
    made = {item.name: emit_input(case, item) for item in _list_made(case)}
    is_other = any(call.values == "other" for call in case.calls)
    if is_other:
        # Copies of parameters and buffers have the numbers of these in every call.
        drawn = made.keys() - case.parts_of_module
        made |= {name: re.sub(r"rng\((\d+)\)", r"rng(\1 + seed)", made[name]) for name in made if name in drawn}
    head = "".join(f"    {name} = {text}\n" for name, text in made.items() if name in owners)
    lines = [name if name in owners else text for name, text in made.items()]
    varied = {name for call in case.calls for name, _ in call.numbers}
    parameters += [f"{one.name}={number(one.value)}" for one in case.numbers if one.name in varied]
    lines += [one.name if one.name in varied else number(one.value) for one in case.numbers]
    listed = "[\n" + "".join(f"        {line},\n" for line in lines) + "    ]" if lines else "[]"
    text = f"{head}    return {listed}\n"
    if is_other:
        parameters.append("seed=0")
    return f"\n\ndef inputs({', '.join(parameters)}):\n{text}"


def _list_made(case: Case) -> list[Input]:
    """The arguments that `inputs()` makes. It has no module, of which others are slices."""
    return [item for item in case.arguments if item.name not in case.parts_of_module or _is_copied(item)]


def _is_copied(item: Input) -> bool:
    return item.part is not None and item.part.copied


def emit_input(case: Case, item: Input) -> str:
    if item.part is not None:
        return _emit_part(case, item, item.part)
    given, sizes = item.values.given, [str(size) for size in item.shape]
    if given is not None:
        varied = {name for call in case.calls for name, _ in call.sizes if not item.parameter}
        is_cut = given.shape != item.type.sizes(case.sizes) or not varied.isdisjoint(list_dims(item.shape))
        text, native = spell_given(given, sizes, is_cut=is_cut), given.dtype
    else:
        shape = "(" + ", ".join(sizes) + ("," if len(sizes) == 1 else "") + ")"
        kind = DISTRIBUTIONS[item.values.kind]
        text, native = kind.expression(shape, item.values.seed, item.values.scale, item.values.param), kind.native
    if native != item.dtype or item.layout != "contiguous":
        if given is None and not _CALL.fullmatch(text):
            text = f"({text})"
        if native != item.dtype:
            text = f"{text}.to(torch.{item.dtype})"
        text = _emit_layout(text, item)
    return text


def _emit_part(case: Case, item: Input, part: SharedSlice) -> str:
    """The argument as a slice of another input, or as the other itself. A copy has the same strides."""
    owner, size = next(other for other in case.inputs if other.name == part.of), item.shape[part.dim]
    if part.copied:
        whole = emit_input(case, owner) if owner.parameter else f"{part.of}.clone()"
        whole = whole if _CALL.fullmatch(whole) else f"({whole})"
    else:
        whole = f"module.{part.of}" if owner.parameter else part.of
    return whole if owner.type == item.type else f"{whole}[{':, ' * part.dim}{part.start}:{part.start + size}]"


def emit_calls(case: Case) -> str:
    """The text of `calls(module)`: it yields the inputs of each call, and changes the module between calls."""
    if not case.is_sequence:
        return ""
    steps = dict.fromkeys(call.step for call in case.calls if call.step)
    optimizers = dict(zip(steps, ("optimizer", "optimizer2"), strict=False))
    lines = [f"{name} = {_OPTIMIZERS[step]}" for step, name in optimizers.items()]
    keeps_first = any(call.values == "same" for call in case.calls)
    changes, training = ChangeText(case), case.training
    first = LaterCall(values="same" if keeps_first else "equal", changes=case.setup)
    for place, (call, around) in enumerate(zip([first, *case.calls], list_arounds(case), strict=True)):
        own = [f"{optimizers[call.step]}.{method}()" for method in ("step", "zero_grad")] if call.step else []
        wanted = {"training": True, "inference": False}.get(call.under, case.training)
        if wanted != training:
            own.append(f"module.{'train' if wanted else 'eval'}()")
            training = wanted
        if call.reseeds:
            own.append("torch.manual_seed(0)")
        is_kept = call.around == "kept"
        own += _yield(case, call, changes, "" if is_kept else around, place)
        # The lines of the call before end with its autocast.
        lines += indent(own) if is_kept else own
    return "\n\ndef calls(module):\n" + "\n".join(indent(lines)) + "\n"


def _yield(case: Case, call: LaterCall, changes: ChangeText, around: str, place: int) -> Iterator[str]:
    is_first = place == 0
    texts: dict[str, list[str]] = {"argument": [], "call": [], "": []}
    for change in call.changes:
        target = KINDS[change.kind].target if KINDS[change.kind].of_call else ""
        texts[target].append(changes.emit(change))
    yield from texts[""]
    words = [f"{name}={size}" for name, size in call.sizes]
    words += [f"{name}={number(value)}" for name, value in call.numbers]
    words += [f"seed={seed}"] if (seed := seed_at(case, call)) else []
    given, made = f"inputs({', '.join(words)})", [item.name for item in _list_made(case)]
    pairs = zip(case.inputs, (case if is_first else at_call(case, place)).inputs, strict=True)
    changed = {item.name: _change(case, item, new) for item, new in pairs if not item.parameter}
    head = []
    if call.values == "same" and not is_first:
        given = "first"
    elif made != [*changed.values()]:
        made += [one.name for one in case.numbers]
        changed |= {one.name: one.name for one in case.numbers}
        head = [f"{', '.join(made)}{',' * (len(made) == 1)} = {given}"] * bool(made)
        given = f"[{', '.join(changed.values())}]"
    if is_first and call.values == "same":
        head, given = [*head, f"first = {given}"], "first"
    under = call.under or case.mode
    contexts = texts["call"]
    if under in _CONTEXTS and (under != case.mode or under == "inference_mode"):
        contexts = [_CONTEXTS[under], *contexts]
    dtype, _, uncached = around.partition("+")
    option = ", cache_enabled=False" * bool(uncached)
    autocasts = [f'torch.autocast("cpu", dtype=torch.{dtype}{option})'] if dtype else []
    if given != "first" and (texts["argument"] or ((contexts or autocasts) and not is_first)):
        head, given = [*head, f"given = {given}"], "given"
    head += [text.replace("given[", f"{given}[", 1) for text in texts["argument"]]
    body = [*head, f"yield {given}"]
    # The first call's inputs are made within its contexts.
    start = 0 if is_first else len(head)
    for context in filter(None, [", ".join(contexts), *autocasts]):
        body = [*body[:start], f"with {context}:", *indent(body[start:])]
    yield from body


def _change(case: Case, item: Input, new: Input) -> str:
    if new.part is not None:
        is_made = new.part == item.part and (item.name not in case.parts_of_module or _is_copied(item))
        return item.name if is_made else _emit_part(case, new, new.part)
    text = item.name if new.dtype == item.dtype else f"{item.name}.to(torch.{new.dtype})"
    return text if new.layout == item.layout else _emit_layout(f"{text}.contiguous()", new)


def _emit_layout(text: str, item: Input) -> str:
    return LAYOUTS[item.layout].template.format(x=text, zeros="0, 0, " * (len(item.shape) - 1))
