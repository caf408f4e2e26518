"""The list of excuses: reasons why a run is right although the judge calls it wrong.

Before a run is called wrong, the rows of `LICENCES` are tried in their order. To add an excuse, add a row.
docs/oracle.md repeats the rows; `tests/check/test_licences.py` prints those that it lacks.
"""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from typing import Any

from fuzz.check.judge import constants
from fuzz.check.judge.case_run import find_difference
from fuzz.check.judge.choices import ChoiceMode
from fuzz.check.judge.declared_precision import judge_at_declared
from fuzz.check.judge.doubt import Doubt, is_documented, settle_draws
from fuzz.check.judge.dropout_seeds import compare_seeds
from fuzz.check.judge.modes import FusedNoise, HalvedSums, SkippedCasts, drop_by_index
from fuzz.check.judge.operations import Nested
from fuzz.check.judge.verdict import RightRuns, find_stride_difference
from fuzz.check.run import graph_passes
from fuzz.check.run.program import Execution
from fuzz.check.run.subject_changes import enter
from fuzz.check.torch_api.compilation import TryApart
from fuzz.experiments import Trial
from fuzz.protocol import SubjectResult, Verdict


@dataclass(frozen=True)
class Licence:
    """A reason why a run can be right that the judge calls wrong. `when`, `right` and `source` are for people."""

    name: str
    turns: tuple[Verdict, ...]
    """The verdicts that it may turn; none: the judge itself gives `verdict`."""
    verdict: Verdict | None
    """The verdict that it gives; None: that of the run beside the right runs."""
    when: str
    right: str
    """The runs that count as right."""
    source: str
    applies: Callable[[Doubt], bool] = lambda _: True
    right_runs: Callable[[Doubt], Iterator[RightRuns]] = lambda _: iter(())
    """Each entry is tried until one explains the run. `rounded` runs are noise: 32 times their distance is allowed, 2
    in low precision. Another value goes to `chosen`: the range up to it is allowed, and no more."""
    judge: "Callable[[Licence, Doubt], SubjectResult] | None" = None
    """Judges otherwise than by the values of `right_runs`."""
    by_proof: bool = False
    """Whether `applies` reads which rewrites are proven right."""
    narrows: bool = False
    """Whether the elements that it explains count as right while others stay wrong."""

    def try_on(self, doubt: Doubt) -> Doubt:
        """`doubt` with the judgement that this row leads to."""
        if doubt.judgement.verdict not in self.turns:
            return doubt
        doubt = replace(doubt, judgement=doubt.prove(doubt.judgement)) if self.by_proof else doubt
        judge = self.judge or Licence.judge_values
        return replace(doubt, judgement=judge(self, doubt)) if self.applies(doubt) else doubt

    def judge_values(self, doubt: Doubt) -> SubjectResult:
        """The judgement on the values of the run beside the right runs. An excused failure keeps its numbers."""
        before = judged = doubt.judgement
        for right in self.right_runs(doubt):
            judged = doubt.judge(doubt.run, others=right)
            judged = replace(judged, right_rewrites=before.right_rewrites)
            if not judged.verdict.has_wrong_numbers:
                return judged if self.verdict is None else self.grant(doubt)
        return judged if self.narrows else before

    def grant(self, doubt: Doubt) -> SubjectResult:
        """The judgement if nothing has to be compared."""
        return replace(doubt.judgement, verdict=self.verdict, where=None) if self.verdict else doubt.judgement

    def judge_strides(self, doubt: Doubt) -> SubjectResult:
        """The judgement on the strides of the run beside the right runs."""
        runs = (run for right in self.right_runs(doubt) for run in right.rounded)
        is_right = any(find_stride_difference(run, doubt.run) is None for run in runs)
        return self.grant(doubt) if is_right else doubt.judgement


def excuse(doubt: Doubt) -> Doubt:
    """`doubt` with the judgement that the licences leave."""
    doubt = settle_draws(doubt)
    for licence in LICENCES:
        doubt = licence.try_on(doubt)
    return doubt


def _judge_distribution(_: Licence, doubt: Doubt) -> SubjectResult:
    assert doubt.compiled is not None
    with doubt.subject.apply_settings():
        return compare_seeds(doubt.judgement, doubt.case, doubt.compiled, doubt.run)


def _judge_by_index(_: Licence, doubt: Doubt) -> SubjectResult:
    with drop_by_index(doubt.case.device):
        return doubt.judge(doubt.case.execute())


def _run_off_fast_path(doubt: Doubt) -> Iterator[RightRuns]:
    with enter(Trial("fast_path_off")):
        plain = doubt.case.execute()
    yield RightRuns(doubt.case.exact, (plain,))


def _run_other_orders(doubt: Doubt) -> Iterator[RightRuns]:
    for count in (1, constants.ORDERS, constants.ORDERS_BEFORE_WRONG):
        runs = doubt.case.run_in_other_orders(count)
        if not runs:
            return
        yield RightRuns(doubt.case.exact, (), runs)


def _run_halved_sums(doubt: Doubt) -> Iterator[RightRuns]:
    yield RightRuns(doubt.case.exact, tuple(doubt.case.execute(mode=HalvedSums(number)) for number in range(3)))


def _may_race(doubt: Doubt) -> bool:
    return doubt.case.device != "cpu" and "use_deterministic_algorithms" not in doubt.subject.options


def _may_skip_casts(doubt: Doubt) -> bool:
    spec, is_random = doubt.subject.spec, doubt.case.request.random
    return doubt.is_low and spec.uses_inductor and not spec.sharded and not is_random


def _skip_casts(doubt: Doubt) -> Iterator[RightRuns]:
    case = doubt.case
    rounded, chosen = list[Execution](), list[Execution]()
    for number in range(constants.REPLICAS_BEFORE_WRONG):
        free = ChoiceMode()
        chosen.append(case.execute(mode=Nested(SkippedCasts(number), free)))
        if not free.differ(case.right.eager_choices):
            rounded.append(chosen.pop())
            continue
        held = ChoiceMode(case.right.eager_choices)
        rounded.append(case.execute(mode=Nested(SkippedCasts(number), held)))
    yield RightRuns(case.exact, tuple(rounded), tuple(chosen))


def _move_fused_calls(doubt: Doubt) -> Iterator[RightRuns]:
    case = doubt.case
    module = case.program.module(case.request.training)
    noise: AbstractContextManager[Any] = nullcontext()
    moved: list[Execution] = []
    with TryApart():  # A torch that does not run the graph operation by operation explains nothing.
        call = graph_passes.compile_module(module, case.dynamic, lambda: noise)
        plain = case.execute(call, module)
        if find_difference([plain, case.execute(call, module)]) is not None:
            return  # a nondeterministic kernel would explain any error
        for seed in range(constants.REPLICAS_BEFORE_WRONG):
            noise = FusedNoise(seed)
            moved.append(case.eager.shift(plain, case.execute(call, module)))
    if len(moved) == constants.REPLICAS_BEFORE_WRONG:
        yield RightRuns(case.exact, tuple(moved))


_WRONG = (Verdict.WRONG_RESULT, Verdict.WRONG_GRADIENT)
_NUMBERS = tuple(verdict for verdict in Verdict if verdict.has_wrong_numbers)
_DOCS = "https://docs.pytorch.org/docs/stable"

LICENCES = (
    Licence(
        "noise",
        (),
        Verdict.ROUNDING,
        "always",
        "eager with each result moved by an ulp: 3 runs, 16 before a value is called wrong",
        "pytorch#179578: no order of accumulation is promised",
    ),
    Licence(
        "unstable programs",
        (),
        Verdict.ILL_CONDITIONED,
        "this noise moves eager by 5 % of a row",
        "any run within the limit of the row",
        "pytorch#178879",
    ),
    Licence(
        "choices",
        (),
        Verdict.ILL_CONDITIONED,
        "rounding decides between nearly equal numbers",
        "eager with the choices of 48 runs under larger noise, of 192 if few elements are wrong",
        "measured: `CHOOSING_RUNS` of constants.py",
    ),
    Licence(
        "not finite",
        (),
        Verdict.CONVENTION,
        "eager or float64 is not finite",
        "any number there",
        "measured: of a row without a key, fused attention gives 0 and a written softmax NaN",
    ),
    Licence(
        "fast path",
        (Verdict.METADATA,),
        Verdict.ROUNDING,
        "only strides differ, in a program of torch.export",
        "eager without the fast path of attention layers",
        'pytorch#126025: "we disable the fast path for MHA when used with torch.compile"',
        lambda doubt: doubt.is_of_strides and doubt.subject.spec.is_exported,
        _run_off_fast_path,
        Licence.judge_strides,
    ),
    Licence(
        "nondeterminism",
        (Verdict.NONDETERMINISTIC,),
        Verdict.ROUNDING,
        "on a GPU, outside of `use_deterministic_algorithms`: torch warns of an operation in that mode; or runs in "
        "that mode are equal, and the graph has one of the [writes or sums](#open-orders)",
        "any run",
        f"{_DOCS}/generated/torch.use_deterministic_algorithms.html",
        lambda doubt: _may_race(doubt) and is_documented(doubt.case, doubt.subject),
        judge=Licence.grant,
    ),
    Licence(
        "open order",
        _NUMBERS,
        Verdict.CONVENTION,
        "eager runs one of the [ties or writes](#open-orders); not for inputs that are split over ranks",
        "eager in another order, in 16, in 64",
        "torch's documentation of each operation",
        lambda doubt: not doubt.subject.spec.sharded,
        _run_other_orders,
        narrows=True,
    ),
    Licence(
        "halved sums",
        _NUMBERS,
        None,
        "inputs are split over ranks",
        "eager that adds up halves of each sum, and rounds these: 3 runs",
        "torch/distributed/tensor/_ops/_math_ops.py: an all-reduce adds partial sums in their dtype",
        lambda doubt: doubt.subject.spec.sharded,
        _run_halved_sums,
        narrows=True,
    ),
    Licence(
        "casts left out",
        _WRONG,
        Verdict.PRECISION_POLICY,
        "in low precision, Inductor's code is right with `emulate_precision_casts`, and wrong again without",
        "eager that leaves out casts at random: 16 runs",
        "pytorch#183761, pytorch#154009",
        lambda doubt: _may_skip_casts(doubt) and doubt.is_mended_by_casts(),
        _skip_casts,
    ),
    Licence(
        "declared precision",
        _NUMBERS,
        Verdict.PRECISION_POLICY,
        "the compiler declares that it computes in another dtype",
        "eager with operands and results of each operation rounded to it: 16 runs, each result moved by an ulp of it; "
        "integers wrap, or saturate",
        "`precisions` of the compiler, each with its documentation",
        lambda doubt: doubt.subject.compiler is not None and not doubt.case.request.random,
        judge=lambda _, doubt: judge_at_declared(doubt),
    ),
    Licence(
        "fused rounding",
        _WRONG,
        None,
        "the rewrites of the case are proven right in float64",
        "the replacement with the arguments of its fused calls moved by an ulp: 16 runs",
        "measured: the backward pass of a fused call computes the weights again, from rounded scores",
        lambda doubt: doubt.is_fused_rightly,
        _move_fused_calls,
        by_proof=True,
    ),
    Licence(
        "fused casts",
        _WRONG,
        Verdict.PRECISION_POLICY,
        "likewise, in low precision",
        "eager that leaves out casts at random: 16 runs",
        "measured: a fused call adds the mask to scores that are not rounded",
        lambda doubt: doubt.is_low and doubt.is_fused_rightly,
        _skip_casts,
        by_proof=True,
    ),
    Licence(
        "dropout's stream",
        (Verdict.RANDOM_STREAM,),
        Verdict.RANDOM_STREAM,
        "dropout is active, and values are not those of eager's random numbers",
        "eager with 16 to 256 other seeds, of which [distributions](#dropout) are compared",
        "pytorch#172206",
        lambda doubt: doubt.draws_otherwise,
        judge=_judge_distribution,
    ),
    Licence(
        "dropout's strides",
        (Verdict.EAGER_SUSPECT,),
        None,
        "dropout is active, and regions of eager differ from their plain text",
        "the plain text, both with dropout by the index of an element",
        "measured: dropout draws in the order of memory, and a region may return other strides",
        lambda doubt: doubt.case.request.random,
        judge=_judge_by_index,
    ),
)
"""In the order in which they are tried. Those without verdicts to turn are part of each measurement (verdict.py)."""
