"""What the oracle, and the published criteria, raise on attention that is right: cases as campaigns over kernels draw
them."""

import functools
import random
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle_power import mistakes, simulated
from benchmarks.oracle_power.criteria import CRITERIA, Tried
from benchmarks.oracle_power.problem import Problem
from benchmarks.oracle_power.recording import Recorder
from fuzz.check.check import check
from fuzz.check.judge import constants
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.subject_builder import Subject, available
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.protocol import Check, Verdict
from fuzz.protocol.failures import Failure, FaultyOperation
from fuzz.protocol.render import describe
from generators.program.attention_stub import emit_attention_stub
from generators.program.case import Case
from generators.program.emit import is_random, source
from generators.program.values import FLOATS
from generators.sampling.sample import sample

MATH, SIMULATED, FLASH = "math_attention", "simulated", "sdpa_flash"
BACKENDS = (FLASH, "sdpa_efficient", "sdpa_cudnn")
SHARES = {"triton": 25, "passes": 8, "inductor": 200}
"""On CPU, one case of so many meets these subjects; 0: none does. On a GPU the kernels are native and meet all
cases."""
PLAIN_EVERY = 3
"""One case of so many has the operands that it was drawn with; in the others, operands may be degenerate."""
OPERANDS = {"equal": "x.flatten()[:1]", "constant_rows": "x[..., :1]", "equal_rows": "x[..., :1, :]", "zero": "0.0"}
"""Replacements for the elements of an operand. Equal rows of keys give equal weights."""
GRADIENTS = {"zero": "factor, loss = 0.0, ''", "equal": "factor, loss = 1.0, 'sum'"}
"""Attributes of a module, with which its output has such a gradient."""
_DEGENERATE = """

import functools

drawn_inputs, drawn_forward = inputs, Module.forward
{module}


def inputs():
    given = drawn_inputs()
    for x, change in zip(given, {changes}):
        if change is not None and x.is_floating_point() and x.dim() > 2 and x.isfinite().all() and 0 not in x.stride():
            x.copy_(torch.as_tensor(change(x)).clone())
    return given


@functools.wraps(drawn_forward)
def forward(self, *given):
    outputs = drawn_forward(self, *given)
    return tuple(x * factor for x in outputs) if isinstance(outputs, tuple) else outputs * factor


Module.forward = forward
if loss:
    Module.loss = loss
"""
_MATTERS = {
    "row": constants.ROW_RATIO,
    "rms": constants.RMS_RATIO,
    "bias": constants.TREND_SHARE,
    "scale": constants.TREND_SHARE,
}


@dataclass
class Counts:
    """What became of some cases. By subject: verdicts; by (subject, criterion): outcomes judged, and raised; by
    "subject dtype": the largest of every statistic the oracle has limits for (the limits were set by
    benchmarks/calibration)."""

    cases: int = 0
    rejected: int = 0
    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    judged: Counter[tuple[str, str]] = field(default_factory=Counter)
    raised: Counter[tuple[str, str]] = field(default_factory=Counter)
    largest: dict[str, dict[str, float]] = field(default_factory=dict)
    findings: list[dict[str, Any]] = field(default_factory=list)
    eager: list[dict[str, Any]] = field(default_factory=list)

    def measure(self, subject: str, dtype: str, numbers: Mapping[str, float]) -> None:
        """Count the statistics of one result: of a trend, its deviations where its size matters, its size where it
        stands out."""
        unit = constants.UNIT_ROUNDOFF[getattr(torch, dtype)]
        found = {"ratio": numbers["ratio"]} if "ratio" in numbers else {}
        for name in ("row", "rms", "bias", "scale"):
            deviations = numbers.get(f"{name}_deviations", 0.0)
            size = numbers.get(f"{name}_ratio", abs(numbers.get(f"{name}_change", 0.0)) / unit)
            if deviations > constants.TREND_DEVIATIONS:
                found[name] = size
            if size > _MATTERS[name]:
                found[f"{name} deviations"] = deviations
        self._enlarge(f"{subject} {dtype}", found)

    def _enlarge(self, key: str, found: Mapping[str, float]) -> None:
        known = self.largest.setdefault(key, {})
        for name, value in found.items():
            known[name] = max(known.get(name, 0.0), value)

    def add(self, other: "Counts") -> None:
        """Count what another one counted, too."""
        self.cases += other.cases
        self.rejected += other.rejected
        for name, verdicts in other.verdicts.items():
            self.verdicts.setdefault(name, Counter()).update(verdicts)
        self.judged.update(other.judged)
        self.raised.update(other.raised)
        self.findings += other.findings
        self.eager += other.eager
        for key, found in other.largest.items():
            self._enlarge(key, found)

    def printed(self) -> list[str]:
        """A line a subject: cases judged, findings, and for each criterion how many of how many outcomes it raises."""
        lines = [f"{'subject':16} {'judged':>7} {'findings':>8}  " + " ".join(f"{name:>11}" for name in CRITERIA)]
        for name, verdicts in sorted(self.verdicts.items()):
            judged = sum(count for verdict, count in verdicts.items() if verdict != Verdict.SKIPPED)
            findings = sum(found["subject"] == name for found in self.findings)
            asked = [f"{self.raised[name, c]}/{self.judged[name, c]}" for c in CRITERIA]
            lines.append(f"{name:16} {judged:7} {findings:8}  " + " ".join(f"{part:>11}" for part in asked))
        for key, found in sorted(self.largest.items()):
            lines.append(f"{key:24} " + ", ".join(f"{name} {value:.3g}" for name, value in sorted(found.items())))
        suspected = Counter(found["about"] for found in _once(self.eager))
        lines += [f"eager suspected in {count} cases: {name}" for name, count in suspected.most_common()]
        return lines

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return {
            "cases": self.cases,
            "rejected": self.rejected,
            "verdicts": {name: dict(verdicts) for name, verdicts in self.verdicts.items()},
            "criteria": [
                {"subject": subject, "criterion": criterion, "judged": count, "raised": self.raised[subject, criterion]}
                for (subject, criterion), count in sorted(self.judged.items())
            ],
            "largest": {
                key: {name: float(f"{value:.4g}") for name, value in sorted(found.items())}
                for key, found in sorted(self.largest.items())
            },
            "findings": self.findings,
            "eager": _once(self.eager),
        }


def _once(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The first of each case."""
    return list({item["id"]: item for item in reversed(found)}.values())


def judged(seed: int, indices: range, device: str) -> Counts:
    """Judge the cases with these indices on every subject that meets them."""
    counts = Counts()
    for index in indices:
        _judge(sample(seed, index, attention_only=True), seed, index, device, counts)
    return counts


def _judge(case: Case, seed: int, index: int, device: str, counts: Counts) -> None:
    recorders: dict[str, Recorder] = {}
    subjects = dict(_met(index, device, recorders))
    is_dropping, changed, stub = is_random(case), _degenerate(case, seed, index), emit_attention_stub(case)
    asked = Check(
        id=index,
        source=source(case) + changed,
        subjects=tuple(subjects),
        training=case.training,
        dynamic=case.dynamic,
        random=is_dropping,
        repeat=1,
        attention_stub=None if stub is None else stub + changed,
    )
    result = check(asked, subjects, device)
    dtype = next((item.dtype for item in case.inputs if item.dtype in FLOATS), "float32")
    counts.cases += 1
    counts.rejected += result.rejected is not None
    for answer in result.results:
        counts.measure(answer.subject, dtype, answer.numbers)
        counts.verdicts.setdefault(answer.subject, Counter())[str(answer.verdict)] += 1
        if answer.verdict.is_finding:
            # What accuses eager raises nothing against the subject.
            where = counts.eager if answer.verdict is Verdict.EAGER_SUSPECT else counts.findings
            where.append(
                {"subject": answer.subject, "seed": seed, "index": index, "id": case.id, "verdict": str(answer.verdict),
                 "about": _about(answer.failure), "failure": describe(answer), "numbers": answer.numbers,
                 "fired": answer.applied_rewrites}
            )  # fmt: skip
    if not is_dropping:
        _count_criteria(recorders, counts)


def _degenerate(case: Case, seed: int, index: int) -> str:
    """The text that makes operands degenerate, to append to the text of a case; "" for a case that stays as drawn."""
    if index % PLAIN_EVERY == 0:
        return ""
    drawn = random.Random(f"{seed}:{index}:degenerate")
    common = drawn.choice([*OPERANDS, ""])  # for all operands, or for each its own
    names = [common or drawn.choice([*OPERANDS, "", ""]) for _ in case.arguments]
    changes = ", ".join(f"lambda x: {OPERANDS[name]}" if name else "None" for name in names)
    module = GRADIENTS.get(drawn.choice([*GRADIENTS, "", ""]), "factor, loss = 1.0, ''")
    return _DEGENERATE.format(changes=f"[{changes}]", module=module)


def _about(failure: Failure | None) -> str:
    """The operation that is wrong, else the kind of failure."""
    if isinstance(failure, FaultyOperation):
        return failure.operation
    return failure.kind if failure is not None else ""


def _met(index: int, device: str, recorders: dict[str, Recorder]) -> Iterator[tuple[str, Subject]]:
    """The subjects that meet case number `index`, those that compute attention alone with a recorder around them."""
    yield MATH, _recording(MATH, Attention(_math), recorders)
    for how in mistakes.RIGHT:
        name = how or SIMULATED
        yield name, _recording(name, Attention(functools.partial(simulated.simulated, how)), recorders)
    for name, subject in available(device).items():
        share = SHARES.get(name, 1)
        if name.startswith("triton") and device == "cuda":
            share = 1
        if not share or index % share or not (name in SHARES or name.startswith("sdpa_")):
            continue
        if subject.attention is None:
            yield name, subject
        else:
            yield name, _recording(name, subject.attention, recorders)


def _recording(name: str, attention: Attention, recorders: dict[str, Recorder]) -> Subject:
    def load() -> Callable[..., Tensor]:
        function = attention.load()
        recorders[name] = Recorder(_where_right(function) if name in BACKENDS else function)
        return recorders[name].attention()

    return Subject(name, attention=Attention(load))


def _where_right(function: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # Flash on CPU raises for bfloat16 rows that overlap ("could not construct a memory descriptor using strides"), and
    # gives its output the strides of empty_like(q), where it writes as if features were next to each other.
    # Flash, on CPU and CUDA, and cuDNN turn masked keys into NaN or the heaviest ones: they multiply -inf by the scale.
    # Those of CUDA take the maximum of scores without the scale, and misread rows that are not aligned, or end the
    # process.
    @functools.wraps(function)
    def attention(
        q: Tensor, k: Tensor, v: Tensor, *, scale: float, causal: str | None = None, **options: Any
    ) -> Tensor:
        if scale <= 0 and (causal is not None or q.is_cuda):
            raise SubjectError("it is wrong with a negative scale, or 0")
        if any(0 < x.stride(2) < x.size(3) for x in (q, k, v)):
            raise SubjectError("it raises for rows that overlap")
        if not q.is_cuda:
            if q.size(3) > 1 and torch.empty_like(q).stride(3) != 1:
                raise SubjectError("it is wrong where elements of the query overlap")
            return function(q, k, v, scale=scale, causal=causal, **options)
        if any(size % 8 for size in (q.shape[3], v.shape[3])):
            raise SubjectError("it is wrong for rows that are not aligned")
        options = {name: _aligned(value) if isinstance(value, Tensor) else value for name, value in options.items()}
        out = function(*map(_aligned, (q, k, v)), scale=scale, causal=causal, **options)
        if out.requires_grad:
            out.register_hook(_aligned)
        return out

    return attention


def _aligned(x: Tensor) -> Tensor:
    return x.clone(memory_format=torch.contiguous_format)


@functools.cache
def _math() -> Callable[..., Tensor]:
    from tests.kernels.reference import math_attention

    return math_attention


def _count_criteria(recorders: dict[str, Recorder], counts: Counts) -> None:
    known: list[Problem] = []
    for subject, recorder in recorders.items():
        for problem, outcome in recorder.calls()[:1]:
            if not outcome["out"].numel() or problem.dropout:
                continue
            # Eager and exact results are kept with a problem: subjects that were asked the same share them.
            shared = next((other for other in known if _same(other, problem)), problem)
            known.append(shared)
            _ask(subject, Tried(shared, recorder.function, outcome), counts)


def _ask(subject: str, tried: Tried, counts: Counts) -> None:
    for criterion, judge in CRITERIA.items():
        try:
            passes = judge(tried)
        except (SubjectError, NotImplementedError):
            continue
        if passes is not None:
            counts.judged[subject, criterion] += 1
            counts.raised[subject, criterion] += not passes


def _same(one: Problem, other: Problem) -> bool:
    """Whether two problems of one case are the same: all but what came back is, by the case's text."""
    if one.dout is None or other.dout is None:
        return one.dout is other.dout
    return torch.equal(one.dout, other.dout)
