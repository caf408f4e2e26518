"""The script of a bug: test_regression.py, which needs only torch, and the accused function or runtime if there is one.

It prints the numbers of eager, of the accused run and of float64, and raises AssertionError if the bug shows.
"""

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from corpus.causes import CauseKey
from corpus.fault import FaultyLine
from fuzz.protocol import Verdict
from fuzz.protocol.failures import (
    DifferentElements,
    EmptyRowsNotZero,
    FaultyOperation,
    FormDiffers,
    Nondeterministic,
    StateChanged,
    WrongValue,
)
from generators.program.case import Earlier
from generators.program.edits import map_inputs
from generators.program.emit import source
from generators.program.emit_regions import indent
from generators.program.type_check import is_valid, types_of
from generators.program.values import FLOATS
from triage.rendering import render
from triage.report import shards
from triage.report.failing_run import ENABLE, FailingRun, find_function, needs_worker, spell_kernel, spell_plain
from triage.report.owners import find_owner
from triage.report.runtimes import is_foreign, list_head, list_imports, spell_compiling
from triage.report.value_run import OF_EXACT, ValueRun

FILE = "test_regression.py"
CANT_RUN = 125
"""The exit code of a script that can't tell, which `git bisect run` skips."""

_RUNS = 6
"""Runs on equal inputs, which have to give equal bits."""
_FINITE = "assert actual[exact.isfinite()].isfinite().all()"
_OF_EAGER = FormDiffers | DifferentElements
"""Failures that are differences from eager."""
_MATH = "sdpa_kernel(SDPBackend.MATH)"
_MOVE = """\
def move(x, exact=False):  # in place and with its strides: a tensor that two calls get stays one tensor
    flat = x.data.as_strided([x.untyped_storage().nbytes() // x.element_size()], [1], 0).cuda()
    flat = flat.double() if exact and flat.is_floating_point() else flat
    x.data = flat.as_strided(x.shape, x.stride(), x.storage_offset())
    return x"""
_FLOAT64 = """\
class Float64(torch.utils._python_dispatch.TorchDispatchMode):  # casts in the program become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(arg) for arg in args):
            kwargs["dtype"] = torch.float64
        double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        return torch.utils._pytree.tree_map(double, func(*args, **kwargs))"""


def _enter(contexts: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The statements, in these contexts."""
    return [f"with {', '.join(contexts)}:", *indent(lines)] if contexts else [*lines]


@dataclass(frozen=True, slots=True)
class RegressionScript(ValueRun):
    """The parts of the script."""

    def write(self, cause: CauseKey | None = None, *, name: str = "regression", fault: FaultyLine | None = None) -> str:
        """The text of the file. `name`: of the test."""
        bug, function = self.bug, find_function(self.bug)
        # Triton reads its variable when a kernel is defined. With that of CUDA, tracebacks lead to the launch.
        variables = ["TRITON_INTERPRET"] * (bool(function) and bug.device == "cpu")
        variables += ["CUDA_LAUNCH_BLOCKING"] * (bug.result.verdict is Verdict.DEVICE_ERROR)
        path = ["sys.path.insert(0, os.getcwd())  # the function is imported from here"] * bool(function)
        return render(
            "test_regression.py.j2",
            title=bug.title.replace("\\", "/").replace('"', "'"),
            owner=find_owner(bug.case, cause, fault) if cause and not function else None,
            name=name.replace("-", "_").replace(".", "_"),
            head=[*list_head(bug), *(f'os.environ.setdefault("{variable}", "1")' for variable in variables), *path],
            program=self.program,
            is_sharded=bug.spec.sharded,
            body=self.body,
        )

    @property
    def is_possible(self) -> bool:
        """Whether a plain script shows the bug."""
        # DTensor needs a context of its own for such calls.
        has_call = self.bug.spec.sharded and any(op.kind == "sdpa" for op in self.bug.case.ops)
        is_compared = isinstance(self.failure, OF_EXACT | _OF_EAGER | Nondeterministic) and bool(self.value)
        has_call |= is_foreign(self.bug) and not spell_compiling(self.bug)
        return not (needs_worker(self.bug) or has_call) and (self.has_no_value or is_compared)

    @property
    def program(self) -> str:
        """The module and its inputs, and all that `body` calls."""
        bug = self.bug
        own = shards.spell_program(bug.case) if bug.spec.sharded else source(bug.case).strip()
        parts = [spell_kernel(bug), spell_plain(bug.case) if self.is_exact else "", spell_compiling(bug)]
        parts += [_MOVE] * self.is_moved + [_FLOAT64] * ("Float64()" in self._contexts)
        parts += [shards.GATHER] * self.has_gather
        parts += [self._spell_earlier(number, earlier) for number, earlier in enumerate(bug.case.before, 1)]
        text = "\n".join([own, *parts, *self.body])
        module, _, name = find_function(bug).partition(":")
        needed = [name for name in ("functools", "os", "tempfile") if re.search(rf"\b{name}\.", text)]
        needed += ["tempfile"] * bug.spec.sharded  # for the method of the test
        standard = [f"import {', '.join(needed)}"] * bool(needed)
        imports = [f"import {', '.join(config)}"] if (config := bug.list_config()) else []
        imports += ["from torch.nn.attention import SDPBackend, sdpa_kernel"] * ("SDPBackend." in text)
        imports += shards.list_imports(text) if bug.spec.sharded else list_imports(bug)
        imports += [f"from {module} import {name}{'' if name == 'attend' else ' as attend'}"] * bool(module)
        first, rest = own.split("\n\n", 1)
        return "\n\n\n".join(filter(None, ["\n".join([*standard, first, *imports, "", rest]), *parts]))

    @property
    def body(self) -> list[str]:
        """The statements of the test, which a report shows. They raise AssertionError if the bug shows."""
        bug, case, failure = self.bug, self.bug.case, self.failure
        lines = shards.list_setup(case) if bug.spec.sharded else []
        if find_function(bug) and bug.result.verdict in (Verdict.NONFINITE, Verdict.NONDETERMINISTIC):
            lines.append("torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN")
        if bug.spec.warm:
            lines.append('os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # for the caches of this run')
        lines += [f"earlier_{number}()" for number, _ in enumerate(case.before, 1)] + self.list_run()
        changes = failure.changes if isinstance(failure, StateChanged) else ()
        accused, actual = self._list_accused()
        if self.has_reference:
            is_read = not (self.has_no_value or isinstance(failure, Nondeterministic))
            lines += self._list_reference("eager" * is_read, f"Module(){self.mode}", "eager")
        if changes:
            states = ", ".join(change.state for change in changes)
            lines += [*accused, f"before = [{states}]", *actual, f"afterwards = [{states}]"]
            lines += ['print(f"before {before}, afterwards {afterwards}")', "assert afterwards == before"]
        elif self.has_no_value:
            lines += ["try:", *indent([*accused, *actual]), *self._list_raising()]
        else:
            lines += [*accused, *actual, *self._list_comparison()]
        config = (f"{name}.patch({given!r})" for name, given in bug.list_config().items())
        return _enter([*["torch.no_grad()"] * (case.mode == "inference"), *config], lines)

    @property
    def _contexts(self) -> list[str]:
        """In which the program runs in float64."""
        if not self.is_exact:
            return []
        # In low precision if all inputs are in float64?
        double = map_inputs(
            self.bug.case, lambda item: replace(item, dtype="float64") if item.dtype in FLOATS else item
        )
        double = replace(double, contracts=())
        has_casts = not is_valid(double) or bool({kind.dtype for kind in types_of(double).values()} & {*FLOATS[:3]})
        has_sdpa = any(op.kind == "sdpa" for op in self.bug.case.ops)
        return [_MATH] * has_sdpa + ["Float64()"] * has_casts

    def _spell_earlier(self, number: int, earlier: Earlier) -> str:
        """A function that runs a case before the failing one. A worker calls a subject twice: so does the script."""
        other = RegressionScript(replace(self.bug, case=earlier.case, result=replace(self.bug.result, failure=None)))
        accused, actual = other._list_accused()
        context = "torch.no_grad()" if earlier.case.mode == "inference" else "torch.enable_grad()"
        loop = [f"for _ in range({2 * earlier.times}):", *indent([*accused, *actual])]
        lines = [*other.program.replace("\n\n\n", "\n\n").splitlines(), "", *other.list_run(), *_enter([context], loop)]
        return "\n".join([f"def earlier_{number}():", *indent(lines)])

    @property
    def exact(self) -> str:
        """The expression of the result in float64, of a module and inputs without names."""
        double = f"{'Plain' if spell_plain(self.bug.case) else 'Module'}(){self.mode}.double()"
        return self.spell_call(double, "exact")

    def _list_reference(self, name: str, module: str, of: str) -> list[str]:
        """Statements that run a new module."""
        is_named = self.reads_module
        run = self.spell_call("module" if is_named else module, of)
        return [f"module = {module}"] * is_named + [f"{name} = {run}" if name else run]

    def _list_accused(self) -> tuple[list[str], list[str]]:
        """Statements that make what is accused, and that run it."""
        bug, failure, inputs = self.bug, self.failure, self.spell_inputs()
        module = f"{'WithKernel' if spell_kernel(bug) else 'Module'}(){self.mode}"
        prepared = shards.list_preparation(bug.case) if bug.spec.sharded else []
        *before, compiled = bug.list_compiling(inputs)
        is_again = bug.spec.warm or isinstance(failure, Nondeterministic)
        is_named = bool(prepared or before) or is_again or self.reads_module
        lines = [*[f"module = {module}"] * is_named, *prepared]
        lines += [f"given = {inputs}"] * (bug.spec.sharded and self.is_single)
        if before and bug.is_sequence:
            # `calls` may change the module before its first call.
            lines += ["", "@functools.cache", "def export():", *indent([*before, f"return {compiled}"]), ""]
            compiled = "lambda *given: export()(*given)"
        elif before:
            lines += before
        call = compiled if is_named else re.sub(r"\bmodule\b", module, compiled)
        if is_named and bug.is_compiled:
            lines.append(f"compiled = {compiled}")
            call = "compiled"
        run = self.spell_call(call)
        lines += [run, "torch._dynamo.reset()", f"compiled = {compiled}"] * bug.spec.warm
        if isinstance(failure, Nondeterministic):
            run = f"runs = [{run} for _ in range({_RUNS})]"
        elif not self.has_no_value and self.value:
            run = f"actual = {run}"
        return lines, _enter([f"{ENABLE}(torch.compile)"] * bug.compiles_backward, [run])

    def _list_raising(self) -> list[str]:
        """The end of a `try` statement in which the accused runs: if it raises where eager does not, the bug shows."""
        synchronize = ["    torch.cuda.synchronize()  # raises the GPU's errors"] * self.is_moved
        if self.bug.spec.sharded and (words := shards.spell_error(self.failure)):
            # DTensor refuses by exceptions too.
            refuses = f'    assert "{words}" not in repr(error), "only DTensors raise"'
            return ["except Exception as error:", refuses, "    raise"]
        who = "the kernel raises" if self.bug.who == "kernel" else "the compiled module raises"
        who = "DTensors raise" if self.bug.spec.sharded else who
        raised = f'    raise AssertionError("only {who}") from error'
        return [*synchronize, "except Exception as error:", raised]

    def _list_comparison(self) -> list[str]:
        """Statements that print `eager`, `actual` and, if it counts, the result in float64, and compare them."""
        bug, failure = self.bug, self.failure
        eager, who = ("whole tensors", "DTensors") if bug.spec.sharded else ("eager", bug.who)
        if isinstance(failure, Nondeterministic):
            largest = "max((one.double() - runs[0].double()).abs().max().item() for one in runs)"
            return [
                f'print(f"largest difference of {_RUNS} runs on equal inputs: {{{largest}:.2g}}")',
                'assert all(torch.equal(one.nan_to_num(), runs[0].nan_to_num()) for one in runs), "runs differ"',
            ]
        error = failure.error if isinstance(failure, WrongValue | FaultyOperation) else math.inf
        bound = f"# atol: half of this bug's error, {error:.2g}"
        close = f"atol={error / 2:.2g}, rtol=0, equal_nan=True"
        if not self.is_exact and isinstance(failure, WrongValue):
            off = "{(actual - eager).abs().max():.2g}"
            largest = f'print(f"{eager} up to {{eager.abs().max():.2g}}; {who} off by {off}")'
            return [largest, bound, f"torch.testing.assert_close(actual, eager, {close})"]
        if not self.is_exact:
            is_form = isinstance(failure, FormDiffers) and failure.aspect != "mutation"
            equal = "torch.testing.assert_close(actual, eager, equal_nan=True)"
            return [f'print(f"{eager} {{eager}}, {who} {{actual}}")', "assert actual == eager" if is_form else equal]
        double = f"{'Plain' if spell_plain(bug.case) else 'Module'}(){self.mode}.double()"
        lines = _enter(self._contexts, self._list_reference("exact", double, "exact"))
        runs = [(eager, "eager")] * (bug.who != "eager") + [(who, "actual")]
        shown = ", ".join(f"{name} {{off({value})}}" for name, value in runs)
        lines += [
            'off = lambda value: f"{(value - exact).abs().max():.2g}"',
            f'print(f"float64 up to {{exact.abs().max():.2g}}; off by: {shown}")',
        ]
        if isinstance(failure, EmptyRowsNotZero):
            return [*lines, "assert not actual[exact.isnan()].nan_to_num(0.0).any()  # rows without a key"]
        if not math.isfinite(error):
            return [*lines, _FINITE]
        return [*lines, bound, f"torch.testing.assert_close(actual.double(), exact, {close})"]


def write_case(bug: FailingRun) -> RegressionScript:
    """The script of a failure, without calls after the one that fails."""
    value = getattr(bug.result.failure, "value", None)
    case = replace(bug.case, calls=bug.case.calls[: value.call - 1]) if value else bug.case
    return RegressionScript(replace(bug, case=case) if is_valid(case) else bug)
