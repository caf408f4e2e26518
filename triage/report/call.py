"""The code of a report below the imports: the program, and the run that shows how it fails."""

from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import Value
from fuzz.subjects import MEMORY_BUDGET, get_spec, is_user_function
from generators.program.attention_stub import emit_call
from generators.program.case import Case
from generators.program.emit import is_random
from generators.program.settings import SWITCHES, describe_settings
from triage.report.repro import WITHOUT_NUMBERS, is_kernel
from triage.report.wording import is_of_config

COMPARISON = "torch.testing.assert_close"
_UNCOMPARED = (Verdict.NONDETERMINISTIC, Verdict.OUT_OF_BOUNDS, Verdict.EAGER_SUSPECT)


def spell_program(case: Case, subject: str) -> str:
    """The program with calls of the attention function, or of scaled_dot_product_attention."""
    function = subject if is_user_function(subject) else get_spec(subject).function
    module, _, name = (function or "torch.nn.attention:SDPBackend, sdpa_kernel").rpartition(":")
    head, _, rest = emit_call(case, function).strip().partition("\n\n")
    return f"{head}\nfrom {module} import {name}\n\n{rest}"


def spell_run(case: Case, result: SubjectResult, device: str) -> str:
    """What raises, compares what compiled code gives with eager's result, or a backend's with MATH's, or prints it; ""
    where it takes more than a line to bring an input to the device as it lies in memory."""
    if device != "cpu" and any(item.layout == "offset" for item in case.inputs):
        return ""
    setup, runs = _list_runs(case, result, device)
    states = [line.partition(" = ")[0] for line in setup if is_of_config(result) and "config." in line]
    backend = get_spec(result.subject).sdpa if is_kernel(result) else ""
    is_silent = result.verdict not in WITHOUT_NUMBERS and not states
    owner: Value | None = getattr(result.failure, "owner", None)
    is_plain = len(case.returns) == 1
    writes = is_plain and owner is not None and owner.kind == "input"
    compares = is_silent and result.verdict not in _UNCOMPARED and (len(runs) > 1 or backend != "") and not writes
    value, moved = result.value, _move(case, device)
    leaf = f"{moved}.requires_grad_() if x.is_floating_point() else {moved}" if case.training else moved
    args, shown = "inputs()" if leaf == "x" else f"[{leaf} for x in inputs()]", _spell(value)
    lines = ["torch.manual_seed(0)"] * is_random(case)
    if case.training or writes or shown != "out":
        lines += [f"args = {args}", "out = run(*args)"]
    else:
        shown = f"run(*{args})"
    if case.training and ((value and value.is_gradient) or not is_silent):
        total = "out.square().sum()" if is_plain else "sum(one.square().sum() for one in out if one.requires_grad)"
        lines.append(f"{total}.backward()")
    if owner and writes:
        lines += ["out.zero_()", f"print(args[{owner.name}])"]
    elif is_silent:
        lines.append(f"results.append({shown})" if compares else f"print({shown})")
    elif shown != "out":
        lines.append(shown)
    loop = f"for run in ({', '.join(runs)}):" if is_silent and len(runs) > 1 else ""
    contexts = ["torch.no_grad()"] * (not case.training and not get_spec(result.subject).is_exported)
    if backend:
        loop = f"for backend in (SDPBackend.MATH, SDPBackend.{backend}):" if compares else ""
        contexts.append(f"sdpa_kernel({'backend' if compares else f'SDPBackend.{backend}'})")
    lines = [f"run = {runs[-1]}", *lines] if backend or not loop else lines
    for head in (f"with {', '.join(contexts)}:" if contexts else "", loop):
        lines = [head, *(f"    {line}" for line in lines)] if head else lines
    if compares:
        strides = ", check_stride=True" if getattr(result.failure, "aspect", "") == "strides" else ""
        lines = ["results = []", *lines, f"{COMPARISON}(results[1], results[0]{strides})"]
    return "\n".join([*setup, *lines, *(f"print({state})" for state in states)])


def _spell(value: Value | None) -> str:
    """The expression for what holds a value after a run."""
    if value and value.is_gradient:
        return f"[x.grad for x in {'run.parameters()' if value.kind == 'parameter' else 'args'}]"
    written = {"input": "args", "parameter": "[*run.parameters()]", "buffer": "[*run.buffers()]"}
    return written[value.kind] if value and value.is_written else "out"


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
        setup += ["torch.set_grad_enabled(False)"] * (not case.training)
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
