"""The script of a bug: test_regression.py, which needs only torch, and the accused attention function if there is one.

It prints the numbers of eager, of the accused run and of float64, and raises AssertionError if the bug shows.
"""

import math
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from corpus.causes import CauseKey
from corpus.fault import Fault
from fuzz.error_location import find_name
from fuzz.protocol import Verdict
from fuzz.protocol.failures import (
    DifferentElements,
    EmptyRowsNotZero,
    FaultyOperation,
    FormDiffers,
    MissingGradient,
    Nondeterministic,
    NotFinite,
    StateChanged,
    Value,
    WrongValue,
)
from generators.program.case import Earlier
from generators.program.edits import map_inputs
from generators.program.emit import is_random, source
from generators.program.state import is_written
from generators.program.type_check import is_valid, types_of
from generators.program.values import FLOATS
from triage.rendering import render
from triage.report import shards
from triage.report.failing_run import (
    ENABLE,
    WITHOUT_NUMBERS,
    FailingRun,
    find_function,
    needs_worker,
    spell_kernel,
    spell_plain,
)
from triage.report.owners import find_owner

FILE = "test_regression.py"
CANT_RUN = 125
"""The exit code of a script that can't tell, which `git bisect run` skips."""

_RUNS = 6
"""Runs on equal inputs, which have to give equal bits."""
_FINITE = "assert actual[exact.isfinite()].isfinite().all()"
_EXACT = WrongValue | NotFinite | FaultyOperation | EmptyRowsNotZero
_OF_EAGER = FormDiffers | DifferentElements
"""Failures that are differences from float64, and from eager."""
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


def _indent(lines: Iterable[str]) -> list[str]:
    return [line and f"    {line}" for line in lines]


def _enter(contexts: Sequence[str], lines: Iterable[str]) -> list[str]:
    """The statements, in these contexts."""
    return [f"with {', '.join(contexts)}:", *_indent(lines)] if contexts else [*lines]


@dataclass(frozen=True, slots=True)
class RegressionScript:
    """The parts of the script."""

    bug: FailingRun

    def write(
        self, cause: CauseKey | None = None, *, name: str = "regression", seen: str = "", fault: Fault | None = None
    ) -> str:
        """The text of the file. `name`: of the test; `seen`: the versions of torch that fail."""
        bug, function = self.bug, find_function(self.bug)
        # Triton reads its variable when a kernel is defined. With that of CUDA, tracebacks lead to the launch.
        variables = ["TRITON_INTERPRET"] * (bool(function) and bug.device == "cpu")
        variables += ["CUDA_LAUNCH_BLOCKING"] * (bug.result.verdict is Verdict.DEVICE_ERROR)
        path = ["sys.path.insert(0, os.getcwd())  # the function is imported from here"] * bool(function)
        return render(
            "test_regression.py.j2",
            title=bug.title.replace("\\", "/").replace('"', "'"),
            owner=find_owner(bug.case, cause, fault) if cause and not function else None,
            seen=seen,
            name=name.replace("-", "_").replace(".", "_"),
            head=[*(f'os.environ.setdefault("{variable}", "1")' for variable in variables), *path],
            program=self.program,
            is_sharded=bug.spec.sharded,
            body=self.body,
        )

    @property
    def is_possible(self) -> bool:
        """Whether a plain script shows the bug."""
        # DTensor needs a context of its own for such calls.
        has_call = self.bug.spec.sharded and any(op.kind == "sdpa" for op in self.bug.case.ops)
        is_compared = isinstance(self._failure, _EXACT | _OF_EAGER | Nondeterministic) and bool(self._value)
        return not (needs_worker(self.bug) or has_call) and (self._has_no_value or is_compared)

    @property
    def program(self) -> str:
        """The module and its inputs, and all that `body` calls."""
        bug = self.bug
        own = shards.spell_program(bug.case) if bug.spec.sharded else source(bug.case).strip()
        parts = [spell_kernel(bug), spell_plain(bug.case) if self._is_exact else ""]
        parts += [_MOVE] * self._is_moved + [_FLOAT64] * ("Float64()" in self._contexts)
        parts += [shards.GATHER] * self._has_gather
        parts += [self._spell_earlier(number, earlier) for number, earlier in enumerate(bug.case.before, 1)]
        text = "\n".join([own, *parts, *self.body])
        module, _, name = find_function(bug).partition(":")
        imports = ["import os, tempfile"] * bug.spec.warm + ["import tempfile"] * bug.spec.sharded
        imports += ["import functools"] * ("@functools" in text)
        imports += [f"import {', '.join(config)}"] if (config := bug.list_config()) else []
        imports += ["from torch.nn.attention import SDPBackend, sdpa_kernel"] * ("SDPBackend." in text)
        imports += shards.list_imports(text) if bug.spec.sharded else []
        imports += [f"from {module} import {name}{'' if name == 'attend' else ' as attend'}"] * bool(module)
        first, rest = own.split("\n\n", 1)
        return "\n\n\n".join(filter(None, ["\n".join([first, *imports, "", rest]), *parts]))

    @property
    def body(self) -> list[str]:
        """The statements of the test, which a report shows. They raise AssertionError if the bug shows."""
        bug, case, failure = self.bug, self.bug.case, self._failure
        lines = shards.list_setup(case) if bug.spec.sharded else []
        if find_function(bug) and bug.result.verdict in (Verdict.NONFINITE, Verdict.NONDETERMINISTIC):
            lines.append("torch.use_deterministic_algorithms(True, warn_only=True)  # fills fresh memory with NaN")
        if bug.spec.warm:
            lines.append('os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp()  # for the caches of this run')
        lines += [f"earlier_{number}()" for number, _ in enumerate(case.before, 1)] + self._list_run()
        is_state, is_of_eager = isinstance(failure, StateChanged), bug.who == "eager"
        if not is_of_eager and not is_state:
            is_read = not (self._has_no_value or isinstance(failure, Nondeterministic))
            lines += [f"module = Module(){self._mode}", "eager = " * is_read + self._spell_call("module", of="eager")]
        is_shared = not (is_of_eager or is_state or bug.who == "kernel" or bug.spec.sharded or self._reads_module)
        accused, actual = self._list_accused(is_shared=is_shared and not is_written(case))
        if is_state:
            states = ", ".join(change.state for change in failure.changes)  # type: ignore[union-attr]
            lines += [*accused, f"before = [{states}]", *actual, f"afterwards = [{states}]"]
            lines += ['print(f"before {before}, afterwards {afterwards}")', "assert afterwards == before"]
        elif self._has_no_value:
            lines += ["try:", *_indent([*accused, *actual]), *self._list_raising()]
        else:
            lines += [*accused, *actual, *self._list_comparison()]
        config = (f"{name}.patch({given!r})" for name, given in bug.list_config().items())
        return _enter([*["torch.no_grad()"] * (case.mode == "inference"), *config], lines)

    @property
    def _failure(self) -> object:
        return self.bug.result.failure

    @property
    def _mode(self) -> str:
        return f"{'' if self.bug.case.training else '.eval()'}{'.cuda()' * self._is_moved}"

    @property
    def _has_no_value(self) -> bool:
        """Whether the failure shows without looking at a result."""
        return self.bug.result.verdict in WITHOUT_NUMBERS or isinstance(self._failure, StateChanged | MissingGradient)

    @property
    def _is_sequence(self) -> bool:
        case = self.bug.case
        return bool(case.calls or case.setup or case.mode == "inference_mode")

    @property
    def _is_exact(self) -> bool:
        """Whether the result is compared with float64."""
        return not self._has_no_value and isinstance(self._failure, _EXACT)

    @property
    def _contexts(self) -> list[str]:
        """In which the program runs in float64."""
        if not self._is_exact:
            return []
        # In low precision if all inputs are in float64?
        double = map_inputs(
            self.bug.case, lambda item: replace(item, dtype="float64") if item.dtype in FLOATS else item
        )
        double = replace(double, contracts=())
        has_casts = not is_valid(double) or bool({kind.dtype for kind in types_of(double).values()} & {*FLOATS[:3]})
        has_sdpa = any(op.kind == "sdpa" for op in self.bug.case.ops)
        return [_MATH] * has_sdpa + ["Float64()"] * has_casts

    @property
    def _is_moved(self) -> bool:
        """Whether the inputs go to a GPU."""
        return self.bug.device != "cpu"

    @property
    def _has_gather(self) -> bool:
        """Whether the results of DTensors are several, or of a function that takes whole tensors too."""
        return self.bug.spec.sharded and (not self._is_single or len(self.bug.case.returns) > 1)

    def _spell_earlier(self, number: int, earlier: Earlier) -> str:
        """A function that runs a case before the failing one. A worker calls a subject twice, so the script does too."""
        other = RegressionScript(
            replace(self.bug, case=earlier.case, result=replace(self.bug.result, failure=None))
        )
        accused, actual = other._list_accused(is_shared=False)
        context = "torch.no_grad()" if earlier.case.mode == "inference" else "torch.enable_grad()"
        loop = [f"for _ in range({2 * earlier.times}):", *_indent([*accused, *actual])]
        lines = [*other.program.replace("\n\n\n", "\n\n").splitlines(), "", *other._list_run(), *_enter([context], loop)]
        return "\n".join([f"def earlier_{number}():", *_indent(lines)])

    def _list_accused(self, *, is_shared: bool) -> tuple[list[str], list[str]]:
        """Statements that make what is accused, and that run it. `is_shared`: it is eager's module, compiled."""
        bug, sharded = self.bug, self.bug.spec.sharded
        lines = [] if is_shared else [f"module = {'WithKernel' if spell_kernel(bug) else 'Module'}(){self._mode}"]
        lines += [*shards.list_preparation(bug.case), *["given = " + self._spell_inputs()] * self._is_single] * sharded
        *before, compiled = bug.list_compiling(self._spell_inputs())
        name = "compiled" if bug.is_compiled else "module"
        run = self._spell_call(name)
        if before and self._is_sequence:
            # `calls` may change the module before its first call.
            lines += ["@functools.cache", "def export():", *_indent([*before, f"return {compiled}"])]
            compiled = "lambda *given: export()(*given)"
        elif before:
            lines += before
        lines += [f"compiled = {compiled}"] * bug.is_compiled
        lines += [run, "torch._dynamo.reset()", f"compiled = {compiled}"] * bug.spec.warm
        if isinstance(self._failure, Nondeterministic):
            run = f"runs = [{run} for _ in range({_RUNS})]"
        elif not self._has_no_value and self._value:
            run = f"actual = {run}"
        return lines, _enter([f"{ENABLE}(torch.compile)"] * bug.compiles_backward, [run])

    def _list_raising(self) -> list[str]:
        """The end of a `try` statement in which the accused runs: if it raises where eager does not, the bug shows."""
        synchronize = ["    torch.cuda.synchronize()  # raises the GPU's errors"] * self._is_moved
        if self.bug.spec.sharded and (words := shards.spell_error(self._failure)):
            # DTensor refuses by exceptions too.
            return ["except Exception as error:", f'    assert "{words}" not in repr(error), "only DTensors raise"', "    raise"]
        who = {"kernel": "the kernel raises", "eager": "eager raises"}.get(self.bug.who, "the compiled module raises")
        who = "DTensors raise" if self.bug.spec.sharded else who
        raised = f'    raise AssertionError("only {who}") from error'
        return [*synchronize, "except Exception as error:", raised]

    def _list_comparison(self) -> list[str]:
        """Statements that print `eager`, `actual` and, if it counts, the result in float64, and compare them."""
        bug, failure = self.bug, self._failure
        eager, who = ("whole tensors", "DTensors") if bug.spec.sharded else ("eager", bug.who)
        if isinstance(failure, Nondeterministic):
            largest = "max((one.double() - runs[0].double()).abs().max().item() for one in runs)"
            return [
                f'print(f"largest difference of {_RUNS} runs on equal inputs: {{{largest}:.2g}}")',
                'assert all(torch.equal(one.nan_to_num(), runs[0].nan_to_num()) for one in runs), "runs differ"',
            ]
        if not self._is_exact:
            is_form = isinstance(failure, FormDiffers) and failure.aspect != "mutation"
            equal = "torch.testing.assert_close(actual, eager, equal_nan=True)"
            return [
                f'print(f"{eager} {{eager}}, {who} {{actual}}")',
                "assert actual == eager" if is_form else equal,
            ]
        double = f"double = {'Plain' if spell_plain(bug.case) else 'Module'}(){self._mode}.double()"
        lines = [double, *_enter(self._contexts, [f"exact = {self._spell_call('double', of='exact')}"])]
        runs = {"float64": "exact"} | ({} if bug.who == "eager" else {eager: "eager"}) | {who: "actual"}
        shown = ", ".join(f'"{name}": {value}' for name, value in runs.items())
        error = failure.error if isinstance(failure, WrongValue | FaultyOperation) else math.inf
        lines += [
            f"for name, value in {{{shown}}}.items():",
            '    print(f"{name}: up to {value.abs().max():.2g}, off by {(value - exact).abs().max():.2g}")',
        ]
        if isinstance(failure, EmptyRowsNotZero):
            return [*lines, "assert not actual[exact.isnan()].nan_to_num(0.0).any()  # rows without a key"]
        if not math.isfinite(error):
            return [*lines, _FINITE]
        close = f"torch.testing.assert_close(actual.double(), exact, atol={error / 2:.2g}, rtol=0, equal_nan=True)"
        return [*lines, f"# atol: half of this bug's error, {error:.2g}", close]

    def _spell_call(self, call: str, of: str = "accused") -> str:
        """The value that counts, of a run of `call`, without `run` where a call is all. `of`: `accused`, or the
        reference, `eager` or `exact`."""
        if self._is_single:
            value = self._value.removeprefix("out")
            if not self.bug.spec.sharded or of != "accused":
                return f"{call}(*{self._spell_inputs(of)}){value}"
            return f"gather({call}(*given)){value}" if self._has_gather else f"{call}(*given).full_tensor(){value}"
        flag = {"exact": "double=True", "eager": "whole=True" * self.bug.spec.sharded}.get(of, "")
        module = "module" if call == "compiled" else call
        return f"run({', '.join(filter(None, [module * self._reads_module, call, flag]))})"

    @property
    def _is_single(self) -> bool:
        """Whether the failure shows in the result of a single call."""
        case = self.bug.case
        is_plain = not (self._is_sequence or case.training or is_random(case))
        return is_plain and self._value[:3] in ("", "out") and "given" not in self._value

    @property
    def _reads_module(self) -> bool:
        return self._is_sequence or "module." in self._value

    def _list_run(self) -> list[str]:
        """The function `run`; nothing where a single call is all."""
        case, sharded = self.bug.case, self.bug.spec.sharded
        if self._is_single:
            return []
        flags = ["double"] * self._is_exact + ["whole"] * (sharded and not self._has_no_reference)
        words = [*["module"] * self._reads_module, "call", *(f"{flag}=False" for flag in flags)]
        source_of = "given" if self._is_sequence else "inputs()"
        given = self._spell_inputs("accused", source_of)
        given = f"{self._spell_inputs('eager', source_of)} if whole else {given}" if "whole" in flags else given
        if self._is_moved:
            given = f"[move(x{', double' * self._is_exact}) for x in {source_of}]"
        elif "double" in flags:
            given = f"{self._spell_inputs('exact', source_of)} if double else {given}"
        lines = [f"given = {given}"] * (given != "given")
        trains = case.training or any(call.under == "training" for call in case.calls)
        if trains:
            trained = [n for n, item in enumerate(case.arguments) if item.requires_grad and item.dtype in FLOATS]
            wanted = "torch.is_grad_enabled()" * bool(case.calls)
            lines += [f"given[{place}].requires_grad_({wanted})" for place in trained]
        lines += [
            f"out = {'gather(call(*given))' if sharded else 'call(*given)'}",
            *(self._list_backward() if trains else ()),
        ]
        if self._is_sequence:
            lines = ["for given in calls(module):", *_indent(lines)]
        lines = ["torch.manual_seed(0)"] * is_random(case) + lines + [f"return {self._value}"] * bool(self._value)
        return [f"def run({', '.join(words)}):", *_indent(lines), ""]

    @property
    def _has_no_reference(self) -> bool:
        return self.bug.who == "eager" or isinstance(self._failure, StateChanged)

    def _list_backward(self) -> list[str]:
        case, is_sum = self.bug.case, self.bug.case.mode == "training_on_sum"
        seed = ["torch.manual_seed(1)"] * (not is_sum)
        if len(case.returns) == 1 and not case.calls:
            return [*seed, "out.sum().backward()" if is_sum else "out.backward(torch.randn(out.shape).to(out))"]
        outs = f"outs = [o for o in {'out' if len(case.returns) > 1 else '[out]'} if o.requires_grad]"
        loss = f"sum({'o' if is_sum else '(o * torch.randn(o.shape).to(o))'}.sum() for o in outs)"
        return [*seed, outs, "if outs:", f"    {loss}.backward()"]

    def _spell_inputs(self, of: str = "accused", given: str = "inputs()") -> str:
        """The inputs of a run, on the device."""
        if self._is_moved:
            return f"[move(x{', True' * (of == 'exact')}) for x in {given}]"
        if of == "exact":
            is_float = all(item.dtype in FLOATS for item in self.bug.case.arguments)
            return f"[{'x.double()' if is_float else 'x.double() if x.is_floating_point() else x'} for x in {given}]"
        return shards.spell_split(self.bug.case, given) if of == "accused" and self.bug.spec.sharded else given

    @property
    def _value(self) -> str:
        """The expression that is compared; "" if there is none."""
        failure, value = self._failure, getattr(self._failure, "value", None)
        if self._has_no_value:
            return ""
        if isinstance(failure, FormDiffers) and failure.aspect == "structure":
            return "out.__class__" if len(self.bug.case.returns) == 1 else "[type(o) for o in out]"
        text = self._spell_tensor(value) if value else ""
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
        case, name = self.bug.case, find_name(self.bug.case, value)
        arguments = [item.name for item in case.arguments]
        if value.kind == "result" and value.is_gradient:
            # Of the attention: the gradient of the argument that it reads, or all that are known.
            reads = case.contracts[0].reads if case.contracts else {}
            name = reads.get(str(value.name).removeprefix("d")) or ""
            trained = [n for n, item in enumerate(case.arguments) if item.requires_grad and item.dtype in FLOATS]
            whole = ", ".join(f"given[{place}].grad.flatten()" for place in trained)
            text = f"given[{arguments.index(name)}]" if name in arguments else ""
            return f"{text}.grad" if text else f"torch.cat([{whole}])" if whole else ""
        if value.kind == "output" or (value.kind, value.name) == ("result", "out"):
            place = value.name if value.kind == "output" else 0
            text = "out" if len(case.returns) == 1 else f"out[{place}]"
        elif value.kind == "result":
            return ""
        else:
            text = f"given[{arguments.index(name)}]" if value.kind == "input" else f"module.{value.name}"
        text = f"{text}.grad" if value.is_gradient else text
        return f"gather({text})" if self.bug.spec.sharded and not text.startswith("out") else text


def write_case(bug: FailingRun) -> RegressionScript:
    """The script of a failure, without calls after the one that fails."""
    value = getattr(bug.result.failure, "value", None)
    case = replace(bug.case, calls=bug.case.calls[: value.call - 1]) if value else bug.case
    return RegressionScript(replace(bug, case=case) if is_valid(case) else bug)
