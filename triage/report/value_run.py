"""A run of the failing program in a script: the value that counts, and the statements that get it."""

import math
from dataclasses import dataclass

from fuzz.error_location import find_name
from fuzz.protocol.failures import (
    EmptyRowsNotZero,
    Failure,
    FaultyOperation,
    FormDiffers,
    MissingGradient,
    NotFinite,
    StateChanged,
    Value,
    WrongValue,
)
from generators.program.emit import is_random
from generators.program.emit_regions import indent
from generators.program.values import FLOATS
from triage.report import shards
from triage.report.failing_run import WITHOUT_NUMBERS, FailingRun

OF_EXACT = WrongValue | NotFinite | FaultyOperation | EmptyRowsNotZero
"""Failures that are differences from float64."""


@dataclass(frozen=True, slots=True)
class ValueRun:
    """The text of the runs: of the accused module, of eager, and in float64."""

    bug: FailingRun

    @property
    def failure(self) -> Failure | None:
        return self.bug.result.failure

    @property
    def mode(self) -> str:
        return f"{'' if self.bug.case.training else '.eval()'}{'.cuda()' * self.is_moved}"

    @property
    def has_no_value(self) -> bool:
        """Whether the failure shows without looking at a result."""
        return self.bug.result.verdict in WITHOUT_NUMBERS or isinstance(self.failure, StateChanged | MissingGradient)

    @property
    def has_reference(self) -> bool:
        """Whether eager runs first: it is not accused, and its result counts."""
        return self.bug.who != "eager" and not isinstance(self.failure, StateChanged)

    @property
    def is_exact(self) -> bool:
        """Whether the result is compared with float64: not where eager equals float64, as of whole numbers. Cast one by
        one, arguments that share memory would lie apart."""
        failure = self.failure
        if any(item.part for item in self.bug.case.inputs):
            return False
        if isinstance(failure, WrongValue) and math.isfinite(failure.error) and self.bug.who == "compiled":
            return failure.eager_error != 0
        return not self.has_no_value and isinstance(failure, OF_EXACT)

    @property
    def is_moved(self) -> bool:
        """Whether the inputs go to a GPU."""
        return self.bug.device != "cpu"

    @property
    def has_gather(self) -> bool:
        """Whether the results of DTensors are several, or of a function that takes whole tensors too."""
        return self.bug.spec.sharded and (not self.is_single or len(self.bug.case.returns) > 1)

    def spell_call(self, call: str, of: str = "accused") -> str:
        """The value that counts, of a run of `call`, without `run` where a call is all. `of`: `accused`, or the
        reference, `eager` or `exact`."""
        if self.is_single:
            value = self.value.removeprefix("out")
            if not self.bug.spec.sharded or of != "accused":
                return f"{call}(*{self.spell_inputs(of)}){value}"
            return f"gather({call}(*given)){value}" if self.has_gather else f"{call}(*given).full_tensor(){value}"
        flag = {"exact": "double=True", "eager": "whole=True" * self.bug.spec.sharded}.get(of, "")
        module = "module" if call == "compiled" else call
        return f"run({', '.join(filter(None, [module * self.reads_module, call, flag]))})"

    @property
    def is_single(self) -> bool:
        """Whether the failure shows in the result of a single call."""
        case = self.bug.case
        is_plain = not (self.bug.is_sequence or case.training or is_random(case))
        return is_plain and self.value[:3] in ("", "out") and "given" not in self.value

    @property
    def reads_module(self) -> bool:
        return self.bug.is_sequence or "module." in self.value

    def list_run(self) -> list[str]:
        """The function `run`; nothing where a single call is all."""
        case, sharded = self.bug.case, self.bug.spec.sharded
        if self.is_single:
            return []
        flags = ["double"] * self.is_exact + ["whole"] * (sharded and self.has_reference)
        words = [*["module"] * self.reads_module, "call", *(f"{flag}=False" for flag in flags)]
        inputs = "given" if self.bug.is_sequence else "inputs()"
        given = self.spell_inputs("accused", inputs)
        given = f"{self.spell_inputs('eager', inputs)} if whole else {given}" if "whole" in flags else given
        if self.is_moved:
            given = f"[move(x{', double' * self.is_exact}) for x in {inputs}]"
        elif "double" in flags:
            given = f"{self.spell_inputs('exact', inputs)} if double else {given}"
        lines = [f"given = {given}"] * (given != "given")
        trains = case.may_train
        if trains:
            wanted = "torch.is_grad_enabled()" * bool(case.calls)
            lines += [f"given[{place}].requires_grad_({wanted})" for place in self._trained]
        backward = self._list_backward() if trains else []
        if case.is_cast_forward:
            backward = ['with torch.autocast("cpu", enabled=False):', *indent(backward)]
        lines += [f"out = {'gather(call(*given))' if sharded else 'call(*given)'}", *backward]
        if self.bug.is_sequence:
            lines = ["for given in calls(module):", *indent(lines)]
        lines = ["torch.manual_seed(0)"] * is_random(case) + lines + [f"return {self.value}"] * bool(self.value)
        return [*[""] * sharded, f"def run({', '.join(words)}):", *indent(lines), ""]

    @property
    def _trained(self) -> list[int]:
        """The places of the arguments that get a gradient."""
        arguments = enumerate(self.bug.case.arguments)
        return [place for place, item in arguments if item.requires_grad and item.dtype in FLOATS]

    def _list_backward(self) -> list[str]:
        case, is_sum = self.bug.case, self.bug.case.mode == "training_on_sum"
        seed = ["torch.manual_seed(1)"] * (not is_sum)
        if len(case.returns) == 1 and not case.calls:
            return [*seed, "out.sum().backward()" if is_sum else "out.backward(torch.randn(out.shape).to(out))"]
        outs = f"outs = [o for o in {'out' if len(case.returns) > 1 else '[out]'} if o.requires_grad]"
        loss = f"sum({'o' if is_sum else '(o * torch.randn(o.shape).to(o))'}.sum() for o in outs)"
        return [*seed, outs, "if outs:", f"    {loss}.backward()"]

    def spell_inputs(self, of: str = "accused", given: str = "inputs()") -> str:
        """The inputs of a run, on the device."""
        if self.is_moved:
            return f"[move(x{', True' * (of == 'exact')}) for x in {given}]"
        if of == "exact":
            case = self.bug.case
            is_float = all(item.dtype in FLOATS for item in case.arguments) and not case.numbers
            # A number is no tensor, and the same in every precision.
            holds = "torch.is_tensor(x) and " * bool(case.numbers) + "x.is_floating_point()"
            return f"[{'x.double()' if is_float else f'x.double() if {holds} else x'} for x in {given}]"
        return shards.spell_split(self.bug.case, given) if of == "accused" and self.bug.spec.sharded else given

    @property
    def value(self) -> str:
        """The expression that is compared; "" if there is none."""
        failure, value = self.failure, getattr(self.failure, "value", None)
        if self.has_no_value:
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
            whole = ", ".join(f"given[{place}].grad.flatten()" for place in self._trained)
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
