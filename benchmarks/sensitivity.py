"""Which mistakes in the results of whole programs does the oracle miss, and which do published criteria?

    python -m benchmarks.sensitivity [--seed 1] [--cases 500] [--dtype float16] [--workers 2]

Judges programs of `generators.sample(seed, index)` under `passes` and makes right results wrong in the ways of
`MISTAKES`: all gradients at once, or one output or gradient after the other. Prints by dtype and mistake what share the
oracle, torch.testing.assert_close and torch._dynamo.utils.same miss, the largest ratio of a right result, and every
program that the oracle accuses before anything is made wrong.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from benchmarks.oracle_power.processes import run_parts
from fuzz.ask.question import Question, build_check
from fuzz.check.check import judge_compiled
from fuzz.check.judge.case_run import CaseRun, Rejected
from fuzz.check.judge.row_error_bound import as_rows
from fuzz.check.judge.verdict import is_same_for_dynamo
from fuzz.check.run.program import Execution, Program, same_bits
from fuzz.check.run.subject_builder import find
from fuzz.protocol.render import describe_failure
from generators.program.values import FLOATS
from generators.sampling.sample import sample

CHUNK = 10


def zero_smallest_row(value: Tensor) -> Tensor:
    """The row of the smallest magnitude other than 0 is 0."""
    rows = as_rows(value).clone()
    sizes = rows.abs().amax(-1).double()
    rows[sizes.masked_fill(sizes == 0, torch.inf).argmin()] = 0
    return rows.view(value.shape)


def repeat_last_row(value: Tensor) -> Tensor:
    """The first row has the values of the last."""
    rows = as_rows(value).clone()
    rows[0] = rows[-1]
    return rows.view(value.shape)


ZEROED = "all gradients zeroed"
MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    ZEROED: torch.zeros_like,
    "times 1.1": lambda value: value * 1.1,
    "smallest row zeroed": zero_smallest_row,
    "row 0 is the last": repeat_last_row,
}


@dataclass
class Counts:
    """By dtype: right programs and their largest ratio; by (dtype, mistake): results made wrong; by (dtype, mistake,
    criterion): those missed; programs accused."""

    right: Counter[str] = field(default_factory=Counter)
    ratios: dict[str, float] = field(default_factory=dict)
    wrong: Counter[tuple[str, str]] = field(default_factory=Counter)
    missed: Counter[tuple[str, str, str]] = field(default_factory=Counter)
    accused: list[str] = field(default_factory=list)


class WrongRun(CaseRun):
    """A case whose subjects give the values of `wrong` in the place of theirs."""

    wrong: Execution | None = None

    def execute(
        self,
        call: Callable[..., Any] | None = None,
        module: nn.Module | None = None,
        mode: AbstractContextManager[Any] | None = None,
        program: Program | None = None,
    ) -> Execution:
        """One run; see `CaseRun`."""
        return super().execute(call, module, mode, program) if call is None or self.wrong is None else self.wrong


def judge_mistakes(seed: int, indices: range, dtypes: list[str]) -> Counts:
    """What is missed in these programs."""
    counts = Counts()
    for index in indices:
        for dtype in dtypes:
            _judge_mistakes(seed, index, dtype, counts)
    return counts


def _judge_mistakes(seed: int, index: int, dtype: str, counts: Counts) -> None:
    request = build_check(Question(sample(seed, index, dtype=dtype), ("passes",)))
    if request.random:
        return
    try:
        case = WrongRun(request, "cpu", lambda _: None)
    except Rejected:
        return
    subject = find("passes")
    module = case.program.module(request.training)
    try:
        with subject.apply_settings():
            call = subject.compile(module, request.dynamic)
            run = case.execute(call, module)
    except Exception as error:  # noqa: BLE001 whatever it is, there is no right result
        counts.accused.append(f"seed {seed} index {index} {dtype}: {type(error).__name__}")
        return

    def judge(given: Execution) -> Any:
        return judge_compiled(case, subject, (call, module), [given])

    judgement = judge(run)
    if judgement.verdict.is_finding:
        said = describe_failure(judgement.failure) if judgement.failure else ""
        counts.accused.append(f"seed {seed} index {index} {dtype}: {judgement.verdict} {said}")
        return
    counts.right[dtype] += 1
    counts.ratios[dtype] = max(counts.ratios.get(dtype, 0.0), judgement.numbers.get("ratio", 0.0))
    for name, wrong in make_mistakes(run):
        case.wrong = wrong
        missed = {
            "oracle": not judge(wrong).verdict.is_finding,
            "assert_close": _is_close(wrong, case.eager),
            "same": bool(is_same_for_dynamo(case.eager, wrong, case.exact)),
        }
        counts.wrong[dtype, name] += 1
        counts.missed.update((dtype, name, criterion) for criterion, is_missed in missed.items() if is_missed)
    case.program.close()
    torch.compiler.reset()


def make_mistakes(run: Execution) -> Iterator[tuple[str, Execution]]:
    """What a subject gives that makes a mistake, by its name. Where a number is not finite conventions differ, and
    there is none to make."""
    values = {name: x for name, x in run.values.items() if x.is_floating_point() and x.numel() and x.isfinite().all()}
    for name, mistake in MISTAKES.items():
        every = set(values) & set(run.gradients)
        for chosen in [every] if name == ZEROED else [{value} for value in values]:
            changed = {value: mistake(values[value]) for value in chosen}
            if all(same_bits(values[value], changed[value]) for value in chosen):
                continue
            outputs, mutated, gradients = (
                {value: changed.get(value, x) for value, x in part.items()}
                for part in (run.outputs, run.mutated, run.gradients)
            )
            yield name, replace(run, outputs=outputs, mutated=mutated, gradients=gradients)


def _is_close(run: Execution, eager: Execution) -> bool:
    try:
        torch.testing.assert_close(run.values, eager.values, equal_nan=True)
    except AssertionError:
        return False
    return True


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", action="append", type=int)
    parser.add_argument("--cases", type=int, default=500, help="of each seed and dtype")
    parser.add_argument("--dtype", action="append", choices=FLOATS)
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    dtypes = options.dtype or [dtype for dtype in FLOATS if dtype != "float64"]
    chunks = [
        (seed, range(at, min(at + CHUNK, options.cases)), dtypes)
        for seed in options.seed or [1]
        for at in range(0, options.cases, CHUNK)
    ]
    counts, lost = Counts(), list[str]()
    for part in run_parts("cpu", options.workers, lost, judge_mistakes, chunks):
        counts.right += part.right
        counts.ratios |= {dtype: max(counts.ratios.get(dtype, 0.0), ratio) for dtype, ratio in part.ratios.items()}
        counts.wrong += part.wrong
        counts.missed += part.missed
        counts.accused += part.accused
    print(f"{'dtype':9} {'mistake':20} {'wrong':>6}  missed by oracle, assert_close, same")
    for dtype, name in sorted(counts.wrong):
        total = counts.wrong[dtype, name]
        shares = (counts.missed[dtype, name, criterion] / total for criterion in ("oracle", "assert_close", "same"))
        print(f"{dtype:9} {name:20} {total:6}  " + "  ".join(f"{share:6.1%}" for share in shares))
    print(
        f"right: {dict(counts.right)}, largest ratios {counts.ratios}; accused: {len(counts.accused)}",
        *sorted(counts.accused),
        *lost,
        sep="\n",
    )
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
