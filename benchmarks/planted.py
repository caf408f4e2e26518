"""How long a campaign takes to find each planted defect of `benchmarks.defects`, and what it makes of it.

    python -m benchmarks.planted [--torch | --memory | --compilers] [--workers 2] [--budget 10m] [--seed 1] [NAME...]

For every defect runs `python -m fuzz.run --subject benchmarks.defects:NAME` until it saves a finding that is none
without the defect, and prints the seconds to the first suspicion of that verdict and to the saved finding, its verdict,
operations and sizes, and where the error is. Exits with 1 when one is missed, or its stage is not named.

With `--torch` the defects are those of `benchmarks/planted_torch` that take writes, several calls or settings to show.
They are in torch's own functions, so that campaigns have their usual subjects; `mask_forgotten` and
`graph_input_stale` need `--device cuda`. Subjects that get little time of a campaign run alone (`RARE`),
and programs with the part that a defect is about (`PARTS`).

With `--compilers` they lie on the way through other compilers: the exporter, ONNX Runtime, OpenVINO. The campaign runs
the subject that a defect shows under. A second line has the finding's cause, and whether its stage is the planted one.

With `--memory` the defects are those that take earlier calls in the same process to show, most of them in
benchmarks/stateful_functions.py. The line also has the earlier cases that the finding needs.
"""

import argparse
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from benchmarks.attribution import planted
from benchmarks.defects import DEFECTS
from benchmarks.planted_torch.torch_defects import COMPILER_DEFECTS, FUNCTIONS, OF_MEMORY
from benchmarks.stateful_functions import FUNCTIONS as STATEFUL
from corpus import entry
from corpus.causes import Stage
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache, Question
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.attribute import find_cause
from fuzz.protocol import Verdict
from fuzz.run_store import read_events
from generators.errors import UserError
from generators.program.ops import OPS

RARE = dict.fromkeys(("seeds_shared", "mask_rows_repeated"), "inductor_random")
RARE |= dict.fromkeys(("key_without_numbers", "key_without_strides"), "inductor_warm")
RARE |= {"graph_input_stale": "inductor_reduce_overhead"}
RARE |= dict.fromkeys(("shard_kept", "offset_forgotten", "partial_kept"), "sharded")
RARE |= dict.fromkeys(("second_partial_kept", "moved_shard_reversed"), "sharded")
IN_EAGER = ("copy_back_lost", "view_not_replayed")
"""Defects of eager, in programs that torch.compile refuses."""
RARE |= dict.fromkeys(IN_EAGER, "eager")
"""The subjects that alone show a defect, and first run after minutes, by the name of the defect."""
PARTS = dict.fromkeys(("custom_arguments_swapped", "custom_argument_reversed"), "custom_op")
PARTS |= {"branch_swapped": "cond", "first_step_skipped": "while_loop", "members_mismatched": "vmap"}
PARTS |= dict.fromkeys(("carry_repeated", "captured_gradient_cut"), "carries")
PARTS |= {"tangents_are_primals": "jvp", "parameter_stale": "replaced", "hook_unguarded": "forward_hook"}
PARTS |= dict.fromkeys(("clip_forgotten", "slots_swapped"), "autograd_function")
PARTS |= {"self_included": "scatter_reduce", "products_narrowed": "integers"}
PARTS |= dict.fromkeys(("number_cut", "flag_unguarded"), "numbers")
PARTS |= dict.fromkeys(("first_body_reused", "inner_region_skipped"), "compile_region")
PARTS |= dict.fromkeys(IN_EAGER, "functionalize")
PARTS |= dict.fromkeys(("autocast_kept", "inner_dtype_ignored"), "autocast")
PARTS |= dict.fromkeys(("shared_offset_lost", "overlap_missed", "module_overlap_missed"), "shared_arguments")
PARTS |= dict.fromkeys(("diagonal_cut", "bytes_cut"), "odd_views")
PARTS |= dict.fromkeys(("sum_wrapped", "negative_ignored", "own_dtype_saturated"), "reduced_integers")
PARTS |= {"real_in_both_parts": "complex_numbers"}
PARTS |= dict.fromkeys(("pooled_sizes_swapped", "remainder_dropped"), "places_in_memory")
"""The part of programs that a defect is about: campaigns of the engineers of that part draw it alone."""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--torch", action="store_true", help="plant them in torch's own functions")
    parser.add_argument("--memory", action="store_true", help="those that need earlier calls in the same process")
    parser.add_argument("--workers", default="2")
    parser.add_argument("--budget", default="10m")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--compilers", action="store_true", help="plant them on the way through other compilers")
    options = parser.parse_args()
    missed = 0
    listed = (*STATEFUL, *OF_MEMORY) if options.memory else FUNCTIONS if options.torch else DEFECTS
    for name in options.names or (COMPILER_DEFECTS if options.compilers else listed):
        in_torch = options.torch or options.compilers or name in OF_MEMORY
        with tempfile.TemporaryDirectory(prefix="attnfuzz-planted-") as scratch:
            out = Path(scratch) / "run"
            command = [sys.executable, "-m", "fuzz.run"]
            module = "stateful_functions" if options.memory else "defects"
            command += [] if in_torch else [f"--subject=benchmarks.{module}:{name}"]
            command += [f"--subject={RARE[name]}"] if name in RARE else []
            command += [f"--subject={COMPILER_DEFECTS[name][3]}"] if name in COMPILER_DEFECTS else []
            command += [f"--draw={PARTS[name]}"] if name in PARTS else []
            command += [f"--out={out}", f"--corpus={scratch}/found"]
            command += [f"--{key}={getattr(options, key)}" for key in ("workers", "budget", "seed", "device")]
            with planted(name if in_torch else ""):
                campaign = subprocess.Popen(command, stdout=subprocess.DEVNULL)
            findings, saved, others = list[dict[str, Any]](), 0, set[str]()
            while campaign.poll() is None:
                time.sleep(1.0)
                with suppress(UserError):  # before the run begins
                    findings = read_events(out, "FindingSaved")
                for finding in findings[saved:]:
                    if in_torch and shows_without_defect(finding, options.device):
                        others.add(finding["case"])
                    else:
                        campaign.send_signal(signal.SIGINT)
                saved = len(findings)
            events = read_events(out)
            missed += not print_found(name, events, others)
    return 1 if missed else 0


def shows_without_defect(found: dict[str, Any], device: str) -> bool:
    """Whether a finding is one in a torch without the defect too."""
    subject = found["result"]["subject"]
    with open_evaluator(_configure(subject, device)) as evaluator:
        return evaluator.ask(Question(entry.load(Path(found["path"])).case, (subject,))).only.verdict.is_finding


def compare_stage(name: str, found: dict[str, Any]) -> tuple[str, bool]:
    """The cause of a finding of a compiler's defect in words, and whether its stage is the planted one."""
    subject, stage = COMPILER_DEFECTS[name][3], Stage(COMPILER_DEFECTS[name][4])
    with planted(name), open_evaluator(_configure(subject, "cpu"), repeat=1) as evaluator:
        cause = find_cause(entry.load(Path(found["path"])), AnswerCache(evaluator))
    told = ", ".join(filter(None, (cause.who, cause.stage, cause.part)))
    is_right = cause.stage == stage
    return f"stage {'right' if is_right else f'WRONG, planted is {stage}'}: {told}", is_right


def _configure(subject: str, device: str) -> WorkerConfig:
    return WorkerConfig.from_options(None, device, (subject,), "120s", 4096)


def print_found(name: str, events: list[dict[str, Any]], others: set[str]) -> bool:
    """Print a run's result; whether it found something, with the right stage. `others`: ids of findings that are not
    the defect."""
    began = next(e["time"] for e in events if e["event"] == "CampaignStarted")
    # A fault of eager met on the way is no planted defect, unless that is one of eager.
    skipped = () if name in IN_EAGER else (Verdict.EAGER_SUSPECT,)
    about_it = [e for e in events if e.get("verdict") not in skipped and e.get("case") not in others]
    found = next((e for e in about_it if e["event"] == "FindingSaved"), None)
    cases = sum(e["event"] == "CaseJudged" for e in events)
    alike = [e for e in about_it if found is None or e.get("verdict") == found["verdict"]]
    seen = next((e["time"] for e in alike if e["event"] == "SuspicionRaised"), began)
    if found is None:
        first = f"seen after {seen - began:.0f} s, " if seen > began else ""
        print(f"{name}: {first}not saved in {cases} cases", flush=True)
        return False
    where = found["where"] or found["result"]["failure"]["kind"]
    sizes = next((line for line in found["source"].splitlines() if " = " in line and line[0].isupper()), "all sizes 1")
    case = entry.load(Path(found["path"])).case
    before = [earlier.times for earlier in case.before]
    calls, writes = 1 + len(case.calls), sum(OPS[op.kind].writes for op in case.ops)
    print(
        f"{name}: seen after {seen - began:.0f} s, saved after {found['time'] - began:.0f} s and {cases} cases: "
        f"{found['verdict']}, {calls} calls, {len(case.ops)} operations, {writes} writes, {sizes}, "
        f"settings {dict(case.settings)}, earlier cases {before}; {where}",
        flush=True,
    )
    if name not in COMPILER_DEFECTS:
        return True
    told, is_right = compare_stage(name, found)
    print(f"  {told}", flush=True)
    return is_right


if __name__ == "__main__":
    sys.exit(main())
