"""Which of the attention patterns that this torch has are reached: by sampled cases, and by the seeds of the corpus.

    python -m benchmarks.coverage [--cases 3000] [--seed 1] [--workers 2] [--device cpu] [--json PATH]

Judges the seeds of the corpus, and cases sampled as a campaign with that seed samples them, in workers under `passes`,
those with active dropout under `passes_random` too. Prints a line for every pattern: how many sampled
cases fired it or "never", whether a seed does, and where the registry or torch's source says why the pattern can't
fire, that. Ends with what else was reached, by kind, and the verdicts. Shared machines only change how long it takes.
"""

import argparse
import json
import re
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks.patterns import Pattern, registered_patterns
from corpus.entry import load_directory
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.check.torch_api.coverage import missing_hooks
from fuzz.protocol import CoverageItem, Result
from fuzz.protocol.render import describe
from generators.program.case import Case
from generators.program.emit import is_random
from generators.sampling.sample import sample

ROOT = Path(__file__).resolve().parent.parent
SEEDS = ROOT / "corpus" / "seeds"

#: What no registry tells, read in torch's source and seen to be so.
KNOWN = (
    (
        re.compile(r"_sfdp_pattern_(29|30)_half_"),
        "F.sdpa in half precision is decomposed, unless torch.backends.cuda.allow_fp16_bf16_reduction_math_sdp",
    ),
    # Since 2.13 these are not registered any more.
    (
        re.compile(r"_sfdp_pattern_(15|17|18|19|20)_.*training"),
        "its graph has aten.scalar_tensor, of which constant folding makes aten.full before patterns are tried",
    ),
    (
        re.compile(r"_sfdp_pattern_(21|22|23)_half_.*training"),
        "its graph has casts in a row, of which pointless_convert makes one before it is tried",
    ),
)


REPORTED = 250
"""Progress is told after so many cases."""


@dataclass
class Counts:
    """How many cases reached what; shared by the threads."""

    rewrites: Counter[str] = field(default_factory=Counter)
    coverage: Counter[CoverageItem] = field(default_factory=Counter)
    verdicts: Counter[str] = field(default_factory=Counter)
    judged: int = 0
    rejected: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def add(self, name: str, result: Result) -> None:
        """Count a case once for everything it reached under any subject. A process lost to it, which tells nothing, is
        told."""
        with self.lock:
            self.judged += 1
            self.rejected += result.rejected is not None
            self.rewrites.update({name for one in result.results for name in one.applied_rewrites})
            self.coverage.update({name for one in result.results for name in one.coverage})
            self.verdicts.update(one.verdict for one in result.results)
            for one in result.results:
                if one.verdict.is_lost:
                    print(f"{name} under {one.subject}: {one.verdict}: {describe(one)}", file=sys.stderr, flush=True)
            if self.judged % REPORTED == 0:
                print(f"{self.judged} cases: {len(self.rewrites)} rewrites", file=sys.stderr, flush=True)


def main() -> int:
    """Sample, judge, print."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.coverage", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--json", type=Path, help="write the table there too")
    options = parser.parse_args()
    patterns = registered_patterns(options.device)
    started = time.monotonic()
    seeds = ((path.name, entry.case) for path, entry in sorted(load_directory(SEEDS).items()))
    seeded = judge(seeds, options.workers, options.device)
    print(f"{seeded.judged} seeds judged in {time.monotonic() - started:.0f} s", file=sys.stderr, flush=True)
    drawn = ((f"case {index}", sample(options.seed, index)) for index in range(options.cases))
    counts = judge(drawn, options.workers, options.device)
    seconds = time.monotonic() - started
    rows = [row(pattern, counts, seeded, options.device) for pattern in patterns]
    print("\n".join(table(rows, counts, seconds, options.device)))
    for who, those in (("seeds", seeded), ("cases", counts)):
        print(
            f"verdicts of {who}: {', '.join(f'{count} {verdict}' for verdict, count in those.verdicts.most_common())}"
        )
    if options.json:
        data = {
            "torch": torch.__version__,
            "device": options.device,
            "seed": options.seed,
            "cases": counts.judged,
            "rejected": counts.rejected,
            "seconds": round(seconds, 1),
            "patterns": rows,
            "rewrites": dict(sorted(counts.rewrites.items())),
            "coverage": [[item.kind, item.name, count] for item, count in sorted(counts.coverage.items())],
        }
        options.json.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
    return 0


def judge(cases: Iterable[tuple[str, Case]], workers: int, device: str) -> Counts:
    """What the cases, each with its name, reach."""
    counts = Counts()
    left = iter(cases)

    def work() -> None:
        with open_evaluator(WorkerConfig(device=device, memory_mib=8192), own_cache=False, repeat=1) as evaluator:
            while True:
                with counts.lock:
                    name, case = next(left, ("", None))
                if case is None:
                    return
                subjects = ("passes", *["passes_random"] * is_random(case))
                counts.add(name, evaluator.ask(Question(case, subjects)))

    threads = [threading.Thread(target=work) for _ in range(workers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return counts


def row(pattern: Pattern, counts: Counts, seeded: Counts, device: str) -> dict[str, Any]:
    """A pattern's line of the table, as data."""
    seeds, cases = seeded.rewrites[pattern.name], counts.rewrites[pattern.name]
    return {
        "name": pattern.name,
        "cases": cases,
        "seeds": seeds,
        "reason": "" if cases or seeds else reason(pattern, device),
    }


def reason(pattern: Pattern, device: str) -> str:
    """Why a pattern can't fire; empty where that is not known."""
    if pattern.same_as:
        return f"not registered: the graph of {pattern.same_as} is the same"
    if pattern.after:
        return f"{pattern.after} is tried first, and its graph covers this one"
    if device == "cuda" and pattern.refuses_cuda:
        return "its check refuses CUDA (disable_cuda)"
    known = next((why for name, why in KNOWN if name.search(pattern.name)), "")
    if not known and device == "cuda" and "_half" not in pattern.name:
        return "its check refuses float32 on CUDA unless TF32 is allowed"
    return known


def table(rows: list[dict[str, Any]], counts: Counts, seconds: float, device: str) -> list[str]:
    """The lines of the table, and the sums below it."""
    width = max(len(line["name"]) for line in rows)
    lines = [f"{'pattern':{width}}  {'cases':>6}  seed  why not"]
    for line in rows:
        fired = str(line["cases"] or "never")
        lines.append(
            f"{line['name']:{width}}  {fired:>6}  {'yes' if line['seeds'] else '':4}  {line['reason']}".rstrip()
        )
    kinds = Counter(item.kind.value for item in counts.coverage)
    told = ", ".join(f"{count} {kind}" for kind, count in sorted(kinds.items()))
    by_cases, by_seeds = (sum(bool(line[key]) for line in rows) for key in ("cases", "seeds"))
    either = sum(bool(line["cases"] or line["seeds"]) for line in rows)
    explained = sum(bool(line["reason"]) for line in rows)
    lines += [
        "",
        (
            f"torch {torch.__version__} on {device}: {len(rows)} patterns; {by_cases} fired by {counts.judged} cases"
            f" ({counts.rejected} rejected, {seconds:.0f} s), {by_seeds} by a seed, {either} one or the other;"
            f" {explained} can't fire, {len(rows) - either - explained} are open"
        ),
        f"rewrites: {len(counts.rewrites)}; other things reached: {told}",
    ]
    return lines + [f"not told by this torch: {part} ({names} missing)" for part, names in missing_hooks().items()]


if __name__ == "__main__":
    raise SystemExit(main())
