"""The code of a report below the imports: the program, and the run that shows how it fails."""

import textwrap

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import parse_value
from fuzz.subjects import MEMORY_BUDGET, get_spec, is_user_function
from generators.program.attention_stub import emit_call
from generators.program.case import Case
from generators.program.emit import is_random
from generators.program.settings import SWITCHES, describe_settings
from triage.report.repro import WITHOUT_NUMBERS, is_kernel
from triage.report.wording import is_of_config


def spell_program(case: Case, subject: str) -> str:
    """The program with calls of the attention function, or of scaled_dot_product_attention."""
    function = subject if is_user_function(subject) else get_spec(subject).function
    module, _, name = (function or "torch.nn.attention:SDPBackend, sdpa_kernel").rpartition(":")
    head, _, rest = emit_call(case, function).strip().partition("\n\n")
    return f"{head}\nfrom {module} import {name}\n\n{rest}"


def spell_run(case: Case, result: SubjectResult, device: str) -> str:
    """What raises; else what eager and compiled code print, one after the other. "" where it takes more than a line to
    bring an input to the device as it lies in memory."""
    if device != "cpu" and any(item.layout == "offset" for item in case.inputs):
        return ""
    setup, runs = _list_runs(case, result, device)
    states = [line.partition(" = ")[0] for line in setup if is_of_config(result) and "config." in line]
    is_silent = result.verdict not in WITHOUT_NUMBERS and not states
    runs = runs if is_silent else runs[-1:]
    lines = ["torch.manual_seed(0)"] * is_random(case)
    moved = _move(case, device)
    one = len(case.returns) == 1
    if case.training:
        leaf = f"{moved}.requires_grad_() if x.is_floating_point() else {moved}"
        total = "run(*args).sum()" if one else "sum(out.sum() for out in run(*args) if out.requires_grad)"
        lines += [f"args = [{leaf} for x in inputs()]", f"{total}.backward()"]
        lines += ["print([x.grad for x in args])"] * is_silent
    else:
        args = "inputs()" if moved == "x" else f"[{moved} for x in inputs()]"
        is_strides = getattr(result.failure, "aspect", "") == "strides"
        call = f"run(*{args})" + ".stride()" * (is_strides and one)
        owner = parse_value(getattr(result.failure, "owner", ""))
        if one and owner and owner["kind"] == "input":
            lines += [f"args = {args}", "run(*args).zero_()", f"print(args[{owner['which']}])"]
        else:
            lines.append(f"print({call})" if is_silent else call)
    if len(runs) > 1:
        lines = [f"for run in ({', '.join(runs)}):", *(f"    {line}" for line in lines)]
    else:
        lines.insert(0, f"run = {runs[0]}")
    backend = get_spec(result.subject).sdpa if is_kernel(result) else ""
    contexts = ["torch.no_grad()"] * (not case.training) + [f"sdpa_kernel(SDPBackend.{backend})"] * bool(backend)
    if contexts:
        lines = [f"with {', '.join(contexts)}:", textwrap.indent("\n".join(lines), "    ")]
    return "\n".join([*setup, *lines, *(f"print({state})" for state in states)])


def _list_runs(case: Case, result: SubjectResult, device: str) -> tuple[list[str], list[str]]:
    """Lines that come first, and expressions for eager's module and the one that fails; for eager's own mistakes and
    attention functions the module alone."""
    spec, setup = get_spec(result.subject), list[str]()
    to_device = "" if device == "cpu" else f'.to("{device}")'
    module = f"Module(){to_device}{'' if case.training else '.eval()'}"
    if result.verdict is Verdict.EAGER_SUSPECT or is_kernel(result):
        return setup, [module]
    options = {name: value for name, value in case.settings if spec.options and name not in SWITCHES}
    words = [module, f'mode="{spec.mode}"' if spec.mode else "", "dynamic=True" if spec.dynamic or case.dynamic else ""]
    if is_of_config(result):
        setup += [f"torch._inductor.config.{name} = {value!r}" for name, value in options.items()]
    else:
        words.append(describe_settings(options))
        setup += ["torch._inductor.config.fallback_random = True"] * is_random(case)
    setup = [*["import torch._inductor.config\n"] * bool(setup), *setup]
    if spec.recomputes:
        budget = f"torch._functorch.config.activation_memory_budget = {MEMORY_BUDGET}"
        setup = ["import torch._functorch.config", *setup, budget]
    if spec.is_exported:
        setup.append(f"program = torch.export.export({module}, tuple(inputs()))")
        return setup, [module, "torch._inductor.aoti_load_package(torch._inductor.aoti_compile_and_package(program))"]
    return setup, [module, f"torch.compile({', '.join(filter(None, words))})"]


def _move(case: Case, device: str) -> str:
    """`x`, an input, on the device."""
    if device == "cpu":
        return "x"
    if any(item.layout in ("padded", "every_second") for item in case.inputs):
        # .to() would leave the gaps behind.
        return f'torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="{device}").copy_(x)'
    return f'x.to("{device}")'
