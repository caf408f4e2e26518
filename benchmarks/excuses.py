"""Does an excuse hide a mistake, and does the oracle accuse right programs whose results depend on choices?

    python -m benchmarks.excuses [--seed 1] [--cases 200] [--right 0] [--subject shaken] [--device cpu] [--workers 2]

A choice is an order of equal elements, the place of a maximum, a comparison, a rounding to an integer, or the last of
several writes. Draws programs of `generators.sample(seed, index)` twice: with operations of `CHOICES` on inputs with
equal elements, and as they are. Runs them under `--subject`, and plants the mistakes of `MISTAKES` in one right result
or gradient after the other. Prints by program and mistake what share is seen, and which verdicts the rest got.

The subject `shaken` needs no compiler: it is eager with one element of eight moved by an ulp in each result, which is
about as much as rounding, and in another order where the documentation of torch leaves the order open. Other subjects
are those of `fuzz/subjects.py`.

With `--right N`, only judges N programs with choices. Ends after `--seconds`, and says how many programs it judged. On
a GPU:

    python -m benchmarks.excuses --right 2000 --device cuda --workers 14 --seconds 500
    python -m benchmarks.excuses --right 2000 --device cuda --workers 14 --seconds 500 --subject inductor

Exits with 1 if the oracle accuses a program before a mistake is planted, or accuses eager.
"""

import argparse
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from benchmarks.oracle_power.processes import run_parts
from benchmarks.sensitivity import WrongRun
from fuzz.ask.question import Question, build_check
from fuzz.check.check import judge_compiled
from fuzz.check.judge.case_run import CaseRun, Rejected
from fuzz.check.judge.dropout_seeds import Compiled
from fuzz.check.judge.modes import Noise
from fuzz.check.judge.open_orders import AnotherOrder
from fuzz.check.judge.operations import Nested
from fuzz.check.judge.row_error_bound import as_rows
from fuzz.check.run.program import Execution, same_numbers
from fuzz.check.run.subject_builder import Subject, find
from fuzz.protocol import Verdict
from fuzz.protocol.failures import FormDiffers, Value
from fuzz.protocol.render import describe_failure
from generators.program.case import Case, Values
from generators.sampling.choices import Choices
from generators.sampling.mutations import MUTATIONS
from generators.sampling.sample import sample

CHUNK = 5
CHOICES = (
    *("topk", "sort", "argsort", "argmax", "argmin", "max", "min", "amax", "max_pool1d", "max_pool2d", "max_pool3d"),
    *("index_put_", "index_copy_", "scatter", "scatter_", "scatter_reduce", "histc", "round", "floor", "sign", "gt"),
)
"""Operations with choices."""
_EQUAL_SHARE = 0.4  # the share of inputs that get equal elements
_TRIES = 20
SHAKEN = "shaken"
_NUMBER = 10_007  # of the noise and the order of `shaken`: the oracle uses smaller numbers


def scale(value: Tensor) -> Tensor:
    """Every element is a tenth too large."""
    return value * 1.1


def swap_rows(value: Tensor) -> Tensor:
    """The first row, and the last that differs from it, are swapped."""
    rows = as_rows(value).clone()
    other = int(torch.nonzero((rows != rows[0]).any(-1)).max()) if (rows != rows[0]).any() else 0
    rows[[0, other]] = rows[[other, 0]]
    return rows.view(value.shape)


MISTAKES: dict[str, Callable[[Tensor], Tensor]] = {
    "a tenth too large": scale,
    "sign": torch.neg,
    "rows swapped": swap_rows,
}


@dataclass
class Counts:
    """By (with choices, mistake): results made wrong, those seen, and (…, verdict) of those not seen."""

    verdicts: Counter[tuple[bool, str]] = field(default_factory=Counter)
    wrong: Counter[tuple[bool, str]] = field(default_factory=Counter)
    seen: Counter[tuple[bool, str]] = field(default_factory=Counter)
    missed: Counter[tuple[bool, str, str]] = field(default_factory=Counter)
    accused: list[str] = field(default_factory=list)

    def add(self, other: "Counts") -> None:
        """Add the counts of other programs."""
        for name, counted in vars(other).items():
            setattr(self, name, getattr(self, name) + counted)


def draw_case(seed: int, index: int, *, choices: bool, device: str = "cpu") -> Case:
    """A program of the seed. choices: with operations of `CHOICES`, and inputs that have equal elements."""
    case = replace(sample(seed, index, device=device), settings=())
    if not choices:
        return case
    c = Choices(f"{seed}:{index}:choices")
    inputs = [
        replace(item, values=Values("integers")) if item.values.kind == "normal" and c.chance(_EQUAL_SHARE) else item
        for item in case.inputs
    ]
    case = replace(case, inputs=tuple(inputs), autocast=None)  # which operations are not drawn with
    for _ in range(_TRIES):
        changed = MUTATIONS["operations"].draw(case, c, CHOICES)
        if changed is not case and any(op.kind in CHOICES for op in changed.ops):
            return changed
    return case


def judge_programs(
    seed: int, indices: range, subject: str, device: str, deadline: float, *, mistakes: bool, choices: tuple[bool, ...]
) -> Counts:
    """The counts of these programs; `deadline` in seconds since the epoch."""
    counts = Counts()
    for index in indices:
        for with_choices in choices:
            if time.time() < deadline:
                case = draw_case(seed, index, choices=with_choices, device=device)
                name, accused = f"seed {seed} index {index}", len(counts.accused)
                _judge(case, name, subject, device, counts, with_choices, mistakes=mistakes)
                if len(counts.accused) > accused and not mistakes:
                    plain = Counts()
                    case = draw_case(seed, index, choices=False, device=device)
                    _judge(case, name, subject, device, plain, False, mistakes=False)
                    counts.accused[-1] += f"; without choices: {[str(verdict) for _, verdict in plain.verdicts]}"
    return counts


def _judge(
    drawn: Case, name: str, subject_name: str, device: str, counts: Counts, with_choices: bool, *, mistakes: bool
) -> None:
    request = build_check(Question(drawn, (subject_name,)))
    if request.random:
        return
    try:
        case = WrongRun(request, device, lambda _: None)
    except Rejected:
        return
    is_shaken = subject_name == SHAKEN
    subject = Subject("package.module:shaken", lambda module, _: module) if is_shaken else find(subject_name)
    module = case.program.module(request.training)
    try:
        with subject.apply_settings():
            call = subject.compile(module, request.dynamic)
            mode = Nested(Noise(_NUMBER, share=1 / 8), AnotherOrder(_NUMBER))
            runs = [case.execute(mode=mode)] if is_shaken else [case.execute(call, module) for _ in range(2)]
    except Exception as error:  # noqa: BLE001 another benchmark counts errors
        counts.verdicts[with_choices, type(error).__name__] += 1
        return
    try:
        verdict = _judge_run(case, subject, (call, module), runs, name, drawn, counts, with_choices)
        for mistake, wrong in make_mistakes(runs[0]) if mistakes and not verdict.is_finding else ():
            case.wrong = wrong
            verdict = judge_compiled(case, subject, (call, module), [wrong]).verdict
            counts.wrong[with_choices, mistake] += 1
            if verdict.has_wrong_numbers:
                counts.seen[with_choices, mistake] += 1
            else:
                counts.missed[with_choices, mistake, verdict] += 1
    finally:
        case.close()
        torch.compiler.reset()


def _judge_run(
    case: CaseRun,
    subject: Subject,
    compiled: Compiled,
    runs: list[Execution],
    name: str,
    drawn: Case,
    counts: Counts,
    with_choices: bool,
) -> Verdict:
    """The verdict on a right run. A form is judged elsewhere: `rounding` stands for one that differs."""
    judgement = judge_compiled(case, subject, compiled, runs)
    counts.verdicts[with_choices, judgement.verdict] += 1
    if judgement.verdict is Verdict.METADATA:
        same_form = isinstance(judgement.failure, FormDiffers) and judgement.failure.aspect == "strides"
        return Verdict.ROUNDING if same_form else judgement.verdict
    if judgement.verdict.is_finding:
        said = describe_failure(judgement.failure) if judgement.failure else ""
        kinds = sorted({op.kind for op in drawn.ops if op.kind in CHOICES})
        counts.accused.append(f"{name} {'with' if with_choices else 'without'}: {judgement.verdict} {said} {kinds}")
    return judgement.verdict


def make_mistakes(run: Execution) -> Iterator[tuple[str, Execution]]:
    """The run with a mistake in one floating value, by the name of the mistake."""
    for name, value in run.values.items():
        if not (value.is_floating_point() and value.numel() and value.isfinite().all()):
            continue
        for mistake, change in MISTAKES.items():
            changed = change(value)
            if not same_numbers(value, changed):
                yield mistake, _replace_value(run, name, changed)


def _replace_value(run: Execution, name: Value, changed: Tensor) -> Execution:
    outputs, mutated, gradients = (
        {at: changed if at == name else value for at, value in part.items()}
        for part in (run.outputs, run.mutated, run.gradients)
    )
    return replace(run, outputs=outputs, mutated=mutated, gradients=gradients)


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--first", type=int, default=0, metavar="INDEX")
    parser.add_argument("--cases", type=int, default=200, help="programs of each kind, to plant mistakes in")
    parser.add_argument("--right", type=int, default=0, metavar="N", help="only judge N programs with choices")
    parser.add_argument("--subject", default=SHAKEN)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seconds", type=float, default=3600.0, help="the time after which no program is begun")
    options = parser.parse_args()
    count, counts, lost = options.right or options.cases, Counts(), list[str]()
    deadline = time.time() + options.seconds
    keywords = {"mistakes": not options.right, "choices": (True,) if options.right else (True, False)}
    chunks = [
        (options.seed, range(at, min(at + CHUNK, options.first + count)), options.subject, options.device, deadline)
        for at in range(options.first, options.first + count, CHUNK)
    ]
    for part in run_parts(options.device, options.workers, lost, _Call(keywords), chunks):
        counts.add(part)
        for accused in part.accused:
            print("ACCUSED", accused, flush=True)
        if time.time() > deadline:
            break
    _print(counts)
    print(*lost, sep="\n")
    return int(bool(counts.accused or lost))


@dataclass
class _Call:
    keywords: dict[str, Any]

    def __call__(self, *arguments: Any) -> Counts:
        with suppress(KeyboardInterrupt):
            return judge_programs(*arguments, **self.keywords)
        return Counts()


def _print(counts: Counts) -> None:
    for (with_choices, mistake), total in sorted(counts.wrong.items()):
        seen = counts.seen[with_choices, mistake]
        rest = {at[2]: number for at, number in counts.missed.items() if at[:2] == (with_choices, mistake)}
        kind = "with choices" if with_choices else "without"
        print(f"{kind:12} {mistake:18} {total:6} wrong, {seen / total:6.1%} seen, else {rest}")
    for with_choices in sorted({key[0] for key in counts.verdicts}):
        verdicts = {at[1]: number for at, number in sorted(counts.verdicts.items()) if at[0] == with_choices}
        print(f"{'with choices' if with_choices else 'without'}: {sum(verdicts.values())} programs, {verdicts}")
    print(f"{len(counts.accused)} accused")


if __name__ == "__main__":
    sys.exit(main())
