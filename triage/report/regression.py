"""A failure as a test in the style of PyTorch, for the file that owns the code at fault; and the same as a script."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from corpus.causes import CauseKey
from corpus.fault import FaultyLine
from fuzz.error_location import find_name
from fuzz.protocol.failures import (
    DifferentElements,
    EmptyRowsNotZero,
    FaultyOperation,
    FormDiffers,
    MissingGradient,
    NotFinite,
    StateChanged,
    Value,
    WrongValue,
)
from generators.program.edits import map_inputs
from generators.program.emit import is_random, source
from generators.program.type_check import is_valid, types_of
from generators.program.values import FLOATS
from triage.rendering import render
from triage.report import shards
from triage.report.owners import find_owner
from triage.report.repro import (
    AUTOMATIC,
    ENABLE,
    UNITS,
    WITHOUT_NUMBERS,
    ScriptedFailure,
    find_function,
    find_tolerance,
    list_constants,
    needs_worker,
    read_runtime,
    spell_import,
    spell_kernel,
    spell_plain,
)

FILE = "test_regression.py"
_FAILED = re.compile(r"^(?:FAIL|ERROR): (\w+)(.*?)(?=^={70}$|\Z)", re.MULTILINE | re.DOTALL)
_IMPORT = re.compile(r"(?:from \S+ )?import ")


def write_test(
    bug: ScriptedFailure,
    cause: CauseKey,
    name: str = "",
    seen: str = "",
    fault: FaultyLine | None = None,
    eager: str = "",
    *,
    dynamic: Sequence[bool] = (False, True),
) -> str:
    """The text of test_regression.py; "" if no test of PyTorch shows the bug by itself.

    `name`: of the test; `seen`: the versions of torch that fail; `eager`: a person's script that fails alike.
    `dynamic`: whether sizes are symbolic, in each way that the test compiles.
    """
    about = {
        "title": bug.title.replace("\\", "/").replace('"', "'"),
        "owner": find_owner(bug.case, cause, fault),
        "seen": "" if eager else seen,
        "name": name.replace("-", "_").replace(".", "_") or "regression",
    }
    if eager:
        lines = eager.strip().splitlines()
        program, body = ([one for one in lines if bool(_IMPORT.match(one)) is wanted] for wanted in (True, False))
        given = {"imports": [], "has_backends": False, "runtime": "", "is_compiled": False, "decorators": []}
        given |= {"is_sharded": False}
        return render(
            "test_regression.py.j2",
            **about,
            **given,
            program="\n".join(program),
            body="\n".join(body).strip().splitlines(),
        )
    made = _Test(_simplify(bug))
    if not made.is_possible:
        return ""
    bug, statements = made.bug, made.list_body()
    parts = (made.program, spell_kernel(bug), made.plain)
    imports = [f"import {', '.join(config)}"] if (config := bug.list_config()) else []
    return render(
        "test_regression.py.j2",
        **about,
        imports=[*imports, *(shards.list_imports("\n".join([*statements, made.runtime])) if bug.spec.sharded else [])],
        has_backends=bug.who == "kernel" or "sdpa_kernel(SDPBackend.MATH)" in made.contexts,
        program="\n\n\n".join(filter(None, parts)),
        runtime=made.runtime,
        is_compiled=bug.is_compiled,
        dynamic=[*dynamic],
        is_sharded=bug.spec.sharded,
        decorators=[
            *["@with_comms"] * bug.spec.sharded,
            *(f"@{module}.patch({{{_spell_items(given)}}})" for module, given in config.items()),
            *["@torch.no_grad()"] * (bug.case.mode == "inference"),
        ],
        body=statements,
    )


def read_failures(log: str, error: str) -> tuple[tuple[str, ...], tuple[bool, ...]]:
    """The tests that fail by this error, from the output of unittest, and the ways to compile that fail by no other."""
    failed: list[tuple[str, str]] = re.findall(_FAILED, log)
    own = tuple(name for name, said in failed if error in said) or tuple(name for name, _ in failed)
    others = {name.rpartition("_dynamic_")[2] for name, _ in failed if name not in own}
    return own, tuple(way for way in (False, True) if str(way) not in others)


def spell_script(bug: ScriptedFailure) -> tuple[str, str]:
    """The program, and the statements that show the failure: they raise. "" for both if no plain script shows it."""
    made = _Test(bug, is_script=True)
    if not made.is_possible:
        return "", ""
    has_backends = bug.who != "kernel" and "sdpa_kernel(SDPBackend.MATH)" in made.contexts
    imports = "from torch.nn.attention import SDPBackend, sdpa_kernel" if has_backends else spell_import(bug)
    setup = [*bug.list_setup(), *["torch.set_grad_enabled(False)"] * (bug.case.mode == "inference")]
    body = "\n".join([*setup, *made.list_body()])
    program = "\n\n\n".join(filter(None, (made.program, imports, spell_kernel(bug), made.plain, made.runtime)))
    if bug.spec.sharded:
        first, rest = program.split("\n\n", 1)
        program = "\n".join([first, *shards.list_imports(f"{body}\n{made.runtime}"), "", rest])
    return program, body


def _spell_items(given: Mapping[str, object]) -> str:
    return ", ".join(f'"{name}": {value!r}' for name, value in given.items())


def _simplify(bug: ScriptedFailure) -> ScriptedFailure:
    """The bug with sizes read off the arguments, so that all of them can be symbolic, and no call after the failure."""
    value = getattr(bug.result.failure, "value", None)
    for change in ({"calls": bug.case.calls[: value.call - 1]} if value else {}, {"dynamic": bug.is_compiled}):
        other = replace(bug.case, **change)
        bug = replace(bug, case=other) if is_valid(other) else bug
    return bug


_COMPARED = (WrongValue, NotFinite, FormDiffers, DifferentElements, FaultyOperation, MissingGradient, EmptyRowsNotZero)
"""The failures that show in a value."""


@dataclass(frozen=True, slots=True)
class _Test:
    """The parts of the test's text."""

    bug: ScriptedFailure
    is_script: bool = False

    @property
    def is_possible(self) -> bool:
        """Whether a test of PyTorch shows the bug by itself: it needs no worker, earlier case, cache or own kernel."""
        bug, failure = self.bug, self.bug.result.failure
        is_plain = not (bug.case.before or bug.spec.warm or needs_worker(bug) or find_function(bug))
        # DTensor needs a context of its own for such calls.
        is_plain &= not (bug.spec.sharded and any(op.kind == "sdpa" for op in bug.case.ops))
        is_measured = not self.is_exact or "scale" in bug.result.numbers
        is_compared = isinstance(failure, _COMPARED) and bool(self.value) and is_measured
        return is_plain and (self.has_no_value or is_compared)

    @property
    def has_no_value(self) -> bool:
        """Whether the failure shows without looking at a result."""
        return self.bug.result.verdict in WITHOUT_NUMBERS or isinstance(self.bug.result.failure, StateChanged)

    @property
    def program(self) -> str:
        return shards.spell_program(self.bug.case) if self.bug.spec.sharded else source(self.bug.case).strip()

    @property
    def plain(self) -> str:
        """The module that float64 runs; "" for the module itself."""
        return spell_plain(self.bug.case) if self.is_exact else ""

    @property
    def is_sequence(self) -> bool:
        case = self.bug.case
        return bool(case.calls or case.setup or case.mode == "inference_mode")

    @property
    def is_exact(self) -> bool:
        """Whether the result is compared with float64."""
        failure = self.bug.result.failure
        is_other = isinstance(failure, NotFinite | DifferentElements | FormDiffers)
        return not self.has_no_value and (not is_other or getattr(failure, "aspect", "") == "mutation")

    @property
    def has_casts(self) -> bool:
        """Whether some values of the program stay in low precision if all of its inputs are in float64."""
        double = map_inputs(
            self.bug.case, lambda item: replace(item, dtype="float64") if item.dtype in FLOATS else item
        )
        double = replace(double, contracts=())
        return not is_valid(double) or bool({kind.dtype for kind in types_of(double).values()} & {*FLOATS[:3]})

    @property
    def contexts(self) -> list[str]:
        """In which the program runs in float64."""
        if not self.is_exact:
            return []
        has_sdpa = any(op.kind == "sdpa" for op in self.bug.case.ops)
        return ["sdpa_kernel(SDPBackend.MATH)"] * has_sdpa + ["Float64()"] * self.has_casts

    @property
    def is_moved(self) -> bool:
        """Whether the inputs go to a device."""
        return self.bug.device != "cpu"

    @property
    def runtime(self) -> str:
        """The parts of the end of repro.py that the test needs."""
        names = ["move"] * self.is_moved + ["Float64"] * ("Float64()" in self.contexts) + ["gather"] * self.has_gather
        return read_runtime(tuple(names), list_constants(self.bug)).strip() if names else ""

    @property
    def has_gather(self) -> bool:
        """Whether the results of DTensors are several, or of a function that takes whole tensors too."""
        return self.bug.spec.sharded and (not self.is_single or len(self.bug.case.returns) > 1)

    def list_body(self) -> list[str]:
        """The statements of the test method."""
        bug, failure = self.bug, self.bug.result.failure
        mode = f"{'' if bug.case.training else '.eval()'}{'.cuda()' if self.is_moved else ''}"
        is_compiled, is_sharded = bug.is_compiled, bug.spec.sharded
        mesh = shards.MESH if self.is_script else "mesh = self.build_device_mesh()"
        lines = shards.list_setup(bug.case, mesh) if is_sharded else []
        lines += self._list_run() + ["torch._dynamo.reset()"] * (is_compiled and not self.is_script)
        dynamic, shapes = "dynamic", "shapes"
        if self.is_script:
            is_dynamic = bug.dynamic or bug.case.dynamic
            dynamic, shapes = str(is_dynamic), AUTOMATIC if is_dynamic else "None"
        *before, compiled = bug.list_compiling(dynamic, shapes, self._spell_inputs())
        lines += [f"shapes = {AUTOMATIC} if dynamic else None"] * (bool(before) and not self.is_script)
        if is_sharded and self.has_no_value:
            lines += [f"whole = Module(){mode}", self._spell_call("whole", "whole", is_reference=True)]
        lines += [f"module = {'WithKernel' if bug.who == 'kernel' else 'Module'}(){mode}", *before]
        lines += shards.list_preparation(bug.case) if is_sharded else []
        if is_sharded and self.is_single:
            lines += [f"given = {self._spell_inputs()}"]
        lines += [f"compiled = {compiled}"] * is_compiled
        actual = self._spell_call("compiled" if is_compiled else "module", "module")
        if isinstance(failure, StateChanged):
            states = ", ".join(change.state for change in failure.changes)
            return [*lines, f"before = [{states}]", actual, self._spell_equal(f"[{states}]", "before")]
        if self.has_no_value:
            return [*lines, *self._enter(actual)]
        if isinstance(failure, NotFinite):
            check = f"{actual}.isfinite().all()"
            return [*lines, *self._enter(f"assert {check}" if self.is_script else f"self.assertTrue({check})")]
        lines += self._enter(f"actual = {actual}")
        if not self.is_exact:
            eager = [
                f"module = Module(){mode}",
                f"expected = {self._spell_call('module', 'module', is_reference=True)}",
            ]
            return [*lines, *eager, self._spell_equal("actual", "expected")]
        expected = f"expected = {self._spell_call('exact', 'exact', is_reference=True)}"
        lines += [f"exact = {'Plain' if self.plain else 'Module'}(){mode}.double()"]
        lines += [f"with {', '.join(self.contexts)}:", f"    {expected}"] if self.contexts else [expected]
        rows = ".nan_to_num(0.0)" if isinstance(failure, EmptyRowsNotZero) else ""
        lines += ['print(f"whole tensors: {expected}\\nDTensors: {actual}")'] * (is_sharded and self.is_script)
        tolerance, reasons = self._find_tolerance()
        equal = self._spell_equal(f"actual{rows}.double()", f"expected{rows}", f", atol={tolerance:.1e}, rtol=0")
        return [*lines, *(f"# {reason}" for reason in reasons), equal]

    def _enter(self, line: str) -> list[str]:
        """A statement that runs the accused, in the context that it needs."""
        return [f"with {ENABLE}(torch.compile):", f"    {line}"] if self.bug.compiles_backward else [line]

    def _spell_equal(self, actual: str, expected: str, tolerance: str = "") -> str:
        if not self.is_script:
            return f"self.assertEqual({actual}, {expected}{tolerance})"
        is_form = isinstance(self.bug.result.failure, FormDiffers | StateChanged)
        if is_form and not tolerance:
            others = ("whole tensors", "DTensors") if self.bug.spec.sharded else ("eager", "compiled")
            others = ("before", "afterwards") if expected == "before" else others
            return f'assert {actual} == {expected}, f"{others[0]} {{{expected}}}, {others[1]} {{{actual}}}"'
        return f"torch.testing.assert_close({actual}, {expected}{tolerance})"

    def _spell_call(self, call: str, module: str, *, is_reference: bool = False) -> str:
        """A run of `call` in place of `module`, without `run` where a call is all."""
        if self.is_single:
            value = self.value.removeprefix("out")
            if not self.bug.spec.sharded or is_reference:
                return f"{call}(*{self._spell_inputs(is_reference)}){value}"
            return f"gather({call}(*given)){value}" if self.has_gather else f"{call}(*given).full_tensor(){value}"
        flags = [f"{self.flag}=True"] * bool(is_reference and self.flag)
        return f"run({', '.join([*[module] * self.reads_module, call, *flags])})"

    @property
    def flag(self) -> str:
        """The argument by which `run` gets the inputs of the reference; "" if it gets those of the accused."""
        return "double" if self.is_exact else "whole" if self.bug.spec.sharded else ""

    @property
    def is_single(self) -> bool:
        """Whether the failure shows in the result of a single call."""
        case = self.bug.case
        is_plain = not (self.is_sequence or case.training or is_random(case))
        return is_plain and self.value[:3] in ("", "out") and "given" not in self.value

    @property
    def reads_module(self) -> bool:
        return self.is_sequence or "module." in self.value

    def _list_run(self) -> list[str]:
        """The function `run`; nothing where a single call is all."""
        case, flag = self.bug.case, self.flag
        if self.is_single:
            return []
        words = [*["module"] * self.reads_module, "call", *[f"{flag}=False"] * bool(flag)]
        given = self._spell_inputs(flag, "given" if self.is_sequence else "inputs()")
        lines = [f"given = {given}"] * (given != "given")
        trains = case.training or any(call.under == "training" for call in case.calls)
        if trains:
            trained = [n for n, item in enumerate(case.arguments) if item.requires_grad and item.dtype in FLOATS]
            wanted = "torch.is_grad_enabled()" * bool(case.calls)
            lines += [f"given[{place}].requires_grad_({wanted})" for place in trained]
        lines += [
            f"out = {'gather(call(*given))' if self.bug.spec.sharded else 'call(*given)'}",
            *(self._list_backward() if trains else ()),
        ]
        if self.is_sequence:
            lines = ["for given in calls(module):", *(f"    {line}" for line in lines)]
        lines = ["torch.manual_seed(0)"] * is_random(case) + lines + [f"return {self.value}"] * bool(self.value)
        return [f"def run({', '.join(words)}):", *(f"    {line}" for line in lines), ""]

    def _list_backward(self) -> list[str]:
        case, is_sum = self.bug.case, self.bug.case.mode == "training_on_sum"
        seed = ["torch.manual_seed(1)"] * (not is_sum)
        if len(case.returns) == 1 and not case.calls:
            return [*seed, "out.sum().backward()" if is_sum else "out.backward(torch.randn(out.shape).to(out))"]
        outs = f"outs = [o for o in {'out' if len(case.returns) > 1 else '[out]'} if o.requires_grad]"
        loss = f"sum({'o' if is_sum else '(o * torch.randn(o.shape).to(o))'}.sum() for o in outs)"
        return [*seed, outs, "if outs:", f"    {loss}.backward()"]

    def _spell_inputs(self, flag: bool | str = False, given: str = "inputs()") -> str:
        """The inputs of the accused, on the device; of the reference if `flag`, which may be the name of a flag."""
        if self.is_moved:
            return f"[move({', '.join(['x', *[str(flag)] * bool(flag and self.is_exact)])}) for x in {given}]"
        is_float = all(item.dtype in FLOATS for item in self.bug.case.arguments)
        double = f"[{'x.double()' if is_float else 'x.double() if x.is_floating_point() else x'} for x in {given}]"
        reference = double if self.is_exact else given
        accused = shards.spell_split(self.bug.case, given) if self.bug.spec.sharded else given
        return accused if not flag else reference if flag is True else f"{reference} if {flag} else {accused}"

    @property
    def value(self) -> str:
        """The expression that is compared; "" if there is none."""
        failure = self.bug.result.failure
        if isinstance(failure, FormDiffers) and (failure.aspect, failure.actual) == ("structure", "FakeTensor"):
            return "out.__class__"
        value = getattr(failure, "value", None)
        text = self._spell_tensor(value) if value and not self.has_no_value else ""
        if not text or not isinstance(failure, FormDiffers) or failure.aspect == "mutation":
            return text
        if failure.aspect == "memory" and self.bug.spec.sharded:
            return ""
        if failure.aspect == "memory" and failure.owner and self._spell_tensor(failure.owner):
            owner, memory = self._spell_tensor(failure.owner), "untyped_storage().data_ptr()"
            return f"{text}.{memory} == {owner}.{memory}"
        forms = {"dtype": ".dtype", "shape": ".shape", "device": ".device", "strides": ".stride()"}
        return f"{text}{forms[failure.aspect]}" if failure.aspect in forms else ""

    def _spell_tensor(self, value: Value) -> str:
        case = self.bug.case
        if value.kind == "output" or (value.kind, value.name) == ("result", "out"):
            place = value.name if value.kind == "output" else 0
            text = "out" if len(case.returns) == 1 else f"out[{place}]"
        elif value.kind == "input":
            names = [item.name for item in case.arguments]
            text = f"given[{names.index(find_name(case, value))}]"
        else:
            text = "" if value.kind == "result" else f"module.{value.name}"
        text = f"{text}.grad" if text and value.is_gradient else text
        return f"gather({text})" if self.bug.spec.sharded and text[:3] not in ("", "out") else text

    def _find_tolerance(self) -> tuple[float, list[str]]:
        """How far the value may be off from float64, and why."""
        factor, share, dtype = find_tolerance(self.bug)
        error, scale = (self.bug.result.numbers.get(name, 0.0) for name in ("eager_error", "scale"))
        if not factor:
            return share * scale, [f"atol: {share:.2%} of the largest value, {scale:.2g}"]
        units = f"and {UNITS} units in the last place of the largest value, {scale:.2g} in {dtype}"
        return factor * error + share * scale, [
            f"atol: {factor} times eager's error against float64, {error:.1e},",
            units,
        ]
