"""False alarms of the dropout statistics: right programs with active dropout, eager held against itself with other
seeds.

    python -m benchmarks.dropout [--cases 500] [--seed 1] [--seeds 64 | --subject passes]

Prints, for each number of seeds, how many programs exceed the limit there and the largest S
(fuzz/check/oracle/dropout.py) of whole tensors, of their parts and of slopes. With --subject every program is compiled
with it instead and draws one number before it runs, so that its masks are others than eager's, and the verdicts are
counted. Exits with 1 for a false alarm: an S beyond the last limit, or a finding that dropout statistics made.
"""

import argparse
import collections
import itertools
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from fuzz.check import settings
from fuzz.check.case_run import CaseRun, Clock, Rejected
from fuzz.check.check import check
from fuzz.check.oracle import constants, dropout
from fuzz.check.recheck import compare_over_seeds
from fuzz.check.subjects import find
from fuzz.protocol import Check, Verdict
from fuzz.protocol.render import describe
from generators.program.emit import is_random, source
from generators.sampling.sample import sample


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=500)
    parser.add_argument("--seed", type=int, default=1)
    most = max(constants.DROPOUT_SEEDS)
    parser.add_argument("--seeds", type=int, default=most, help="stop there instead of at the last limit")
    parser.add_argument(
        "--subject", default="", help="compile every program with this subject, and give it other random numbers"
    )
    options = parser.parse_args()
    settings.configure_torch()
    requests = itertools.islice(_random_cases(options.seed, options.subject), options.cases)
    return _compiled(requests, options.subject) if options.subject else _eager(requests, options.seeds)


def _random_cases(seed: int, subject: str) -> Iterator[Check]:
    for index in itertools.count():
        case = sample(seed, index)
        if is_random(case) and not case.dynamic:
            yield Check(index, source(case), (subject,), training=case.training, random=True, repeat=1)


def _eager(requests: Iterator[Check], most: int) -> int:
    stages = [seeds for seeds in constants.DROPOUT_SEEDS if seeds <= most]
    largest: dict[tuple[int, str], float] = collections.defaultdict(float)
    beyond: dict[int, int] = collections.defaultdict(int)
    seconds = []
    cases = 0
    for request in requests:
        try:
            case = CaseRun(request, "cpu", lambda stage: None, Clock(), Clock())
        except Rejected:
            continue
        cases += 1
        module = case.program.module(request.training)
        comparison = compare_over_seeds(case, (module, module), case.eager, case.eager, case.coarsest())
        for seeds in stages:
            started = time.process_time()
            if not comparison.take(seeds):
                break
            suspicious = False
            for found in comparison.all():
                kind = found.kind if found.kind == dropout.SLOPE else "part" if found.part else "whole"
                largest[seeds, kind] = max(largest[seeds, kind], abs(found.s))
                suspicious |= found.excess > 1
            beyond[seeds] += suspicious
            if seeds == stages[0]:
                seconds.append(time.process_time() - started)
        case.program.close()
    for seeds in stages:
        shown = ", ".join(f"{kind} {s:.2f}" for (n, kind), s in sorted(largest.items()) if n == seeds)
        print(f"{seeds} seeds: {beyond[seeds]} of {cases} programs suspicious; largest S: {shown}")
    seconds.sort()
    median, most_of = seconds[len(seconds) // 2], seconds[int(len(seconds) * 0.95)]
    print(f"the first seeds take {median:.3f} s of processor time (median), {most_of:.3f} s (95 %)")
    return 1 if beyond[constants.DROPOUT_SEEDS[-1]] else 0


def _compiled(requests: Iterator[Check], name: str) -> int:
    subject = find(name)

    def compiled(module: nn.Module, dynamic: bool) -> Callable[..., Any]:
        call = subject.compile(module, dynamic)

        def run(*inputs: Any) -> Any:
            torch.rand(1)
            return call(*inputs)

        return run

    subjects = {name: replace(subject, compile=compiled)}
    verdicts: collections.Counter[Verdict] = collections.Counter()
    accused = 0
    for request in requests:
        result = check(request, subjects, "cpu", lambda stage: None, lambda: 0.0)
        for one in result.results:
            verdicts[one.verdict] += 1
            if one.verdict.is_finding:
                accused += "seeds" in one.numbers
                print(f"case {request.id}: {one.verdict}: {describe(one)}", flush=True)
    print(f"{name}: {', '.join(f'{verdict} {count}' for verdict, count in verdicts.most_common())}")
    return 1 if accused else 0


if __name__ == "__main__":
    sys.exit(main())
