"""Whether attribution is right: planted mistakes whose place is known, bugs of torch that are known, and cases of
yours.

    python -m benchmarks.attribution [--only PREFIX] [--device cpu] [--bisect] [--evidence] [CASE_OR_DIRECTORY...]

Prints a line for each finding: what was planted, the cause that triage names, whether that is right, and the seconds.
Plants are mistakes in replacements of attention and in Inductor's relu (benchmarks/planted_torch), and in copies of the
bundled kernels (benchmarks/defects.py). `--evidence` adds the sentences that the cause rests on. With `--bisect`
repro.py is written too and PyTorch's bisector run on it, in both ways, which takes minutes each. Exits with 1 where one
is wrong.
"""

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.defects import DEFECTS
from corpus import casefile, entry
from corpus.entry import Entry, Expectation
from corpus.passes.plain_attention import Plain, spell
from fuzz.evaluator import WorkerConfig, open_evaluator
from fuzz.subjects import get_spec
from generators.errors import UserError
from generators.program.case import Input, Values
from generators.program.sizes import Size
from triage.attribution.ablation import DYNAMIC
from triage.attribution.attribute import Attribution, RootCause, attribute
from triage.attribution.bisector import bisect, bisect_command
from triage.attribution.render import describe_evidence
from triage.attribution.root_cause import MechanismKind
from triage.report.repro import Bug, run, write_script

HERE = Path(__file__).resolve().parent
SEEDS = HERE.parent / "corpus" / "seeds"

RELU = """
case_format: 1
dims: {S: 4, D: 8}
inputs:
  q: {shape: [1, 1, S, D], dtype: float32, values: {seed: 0}}
  k: {shape: [1, 1, S, D], dtype: float32, values: {seed: 1}}
ops:
  - {name: kt, op: transpose, args: [k]}
  - {name: scores, op: matmul, args: [q, kt]}
  - {name: positive, op: relu, args: [scores]}
  - {name: out, op: matmul, args: [positive, k]}
returns: [out]
"""

REPLACEMENTS = {
    "scale_dropped": "sfdp-01-inference",
    "scale_squared": "sfdp-05-inference",
    "mask_dropped": "sfdp-14-inference",
    "mask_negated": "sfdp-15-inference",
    "causal_added": "sfdp-11-inference",
    "queries_and_keys_swapped": "sfdp-02-inference",
    "heads_rolled": "sfdp-09-inference",
    "queries_reversed": "sfdp-19-inference",
    "output_transposed": "sfdp-23-inference",
}
"""By plant: the seed that the pattern takes."""

KERNELS: dict[str, tuple[str, dict[str, object]]] = {
    "statistics_without_mask": ("attention_", {"mode": "training", "S": 65, "H": 2}),
    "tail_keys_counted": ("attention_forward", {"S": 7}),
    "no_rescale": ("attention_forward", {"S": 130}),
    "maximum_before_scale": ("attention_forward, negative scale", {"scale": -8.0, "S": 64}),
    "softcap_by_exponentials": ("attention_forward, softcap", {"softcap": 0.05, "scale": 8.0}),
    "finite_minus_infinity": ("attention_forward, mask", {"mask": "empty_row"}),
    "corner_ignored": ("attention_forward, causal from the bottom right", {"causal": "bottom_right", "T": 24}),
    "window_short_by_one": ("attention_forward, window", {"window": (2, 2)}),
    "heads_interleaved": ("attention_forward, grouped queries", {"H": 4, "kv": 2}),
    "group_overwritten": ("attention_backward (dk)", {"H": 4, "kv": 2, "mode": "training"}),
    "softcap_without_derivative": ("attention_backward", {"softcap": 1.0, "mode": "training"}),
    "features_unmasked": ("attention_", {"D": 24}),
    "log2e_in_three_digits": ("attention_forward", {"scale": 1.0}),
    "slope_of_the_first_head": ("attention_forward, alibi", {"alibi": True, "H": 2}),
}
"""By defect: how the part that is to blame begins, and a call that shows it."""

_SFDP = "_sfdp_pattern_"


@dataclass(frozen=True, slots=True)
class Known:
    """A finding whose cause is known; `right` says whether a cause is it. `plant` is what ATTNFUZZ_PLANT is set to."""

    name: str
    entry: Entry
    right: Callable[[RootCause], bool] | None = None
    plant: str = ""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("cases", nargs="*", type=Path, metavar="CASE_OR_DIRECTORY")
    parser.add_argument(
        "--only", default="", metavar="PREFIX", help="findings whose name begins so: replacement, relu, kernel, known"
    )
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--bisect", action="store_true")
    parser.add_argument("--evidence", action="store_true")
    options = parser.parse_args()
    yours = (
        [Known(str(path.name), found) for path, found in entry.load_all(options.cases).items()] if options.cases else []
    )
    wrong = 0
    for known in yours or known_findings():
        if known.name.startswith(options.only):
            wrong += not _told(known, options.device, with_bisector=options.bisect, with_evidence=options.evidence)
    return 1 if wrong else 0


def known_findings() -> Iterator[Known]:
    """All of them, the cheap ones first."""
    for plant, seed in REPLACEMENTS.items():
        found = entry.load(SEEDS / "patterns" / f"{seed}.case.yaml")
        yield Known(f"replacement {plant}", replace(found, expect=_subject(found.subject)), _in_pattern(seed), plant)
    for plant in ("relu_accuracy", "relu_compile_error", "relu_runtime_error"):
        yield Known(f"relu {plant}", Entry(casefile.loads(RELU), expect=_subject("inductor")), _in_relu, plant)
    for name in DEFECTS:
        part, how = KERNELS[name]
        yield Known(f"kernel {name}", _call(f"benchmarks.defects:{name}", how), _in_kernel(name, part))
    for path, found in entry.load_directory(SEEDS).items():
        if found.expect is not None and found.expect.status == "known":
            yield Known(f"known {path.name.partition('.')[0]}", found, _as_known(path.name))


def _subject(name: str) -> Expectation:
    return Expectation("known", subject=name)


def _in_pattern(seed: str) -> Callable[[RootCause], bool]:
    part = f"{_SFDP}{int(seed.split('-')[1])}"
    return lambda cause: (cause.who, cause.stage, cause.part) == ("inductor", "joint_graph_passes", part)


def _in_relu(cause: RootCause) -> bool:
    return (cause.who, cause.stage, cause.part) == ("inductor", "lowering", "relu")


def _in_kernel(name: str, part: str) -> Callable[[RootCause], bool]:
    return lambda cause: cause.who == f"benchmarks.defects:{name}" and cause.part.startswith(part)


def _as_known(file: str) -> Callable[[RootCause], bool]:
    if file.startswith("sfdp-"):
        return _in_pattern(file)
    return lambda cause: cause.who == "sdpa_flash" and cause.mechanism.name is MechanismKind.OVERLAPPING_ROWS


def _call(subject: str, how: dict[str, object]) -> Entry:
    """One plain call of an attention function."""

    def number(name: str, usual: int) -> int:
        value = how.get(name, usual)
        assert isinstance(value, int)
        return value

    rows = number("S", 17)
    dims = (
        ("H", number("H", 1)),
        ("K", number("kv", number("H", 1))),
        ("S", rows),
        ("T", number("T", rows)),
        ("D", number("D", 16)),
    )

    def tensor(name: str, seed: int, *shape: str, dtype: str = "float32", kind: str = "normal") -> Input:
        return Input(
            name, tuple(Size.of(int(s)) if s.isdigit() else Size.of(s) for s in shape), dtype, Values(kind, seed)
        )

    extra: dict[str, object] = {key: how[key] for key in ("scale", "softcap", "causal", "window", "mode") if key in how}
    if "mask" in how:
        extra["mask"] = tensor("mask", 3, "S", "T", dtype="bool", kind=str(how["mask"]))
    if "alibi" in how:
        extra["alibi"] = tensor("slopes", 4, "H", kind="uniform")
    q, k, v = tensor("q", 0, "1", "H", "S", "D"), tensor("k", 1, "1", "K", "T", "D"), tensor("v", 2, "1", "K", "T", "D")
    case = spell(Plain(dims, q, k, v, **{"scale": 0.25, **extra}))  # type: ignore[arg-type]
    assert case is not None, subject
    return Entry(case, expect=_subject(subject))


def _told(known: Known, device: str, *, with_bisector: bool, with_evidence: bool) -> bool:
    """Print one line; whether the cause is right, or not known."""
    subject = known.entry.subject
    config = WorkerConfig(device=device, named=(subject,) if ":" in subject else (), timeout=120.0, memory_mib=8192)
    began = time.monotonic()
    with planted(known.plant):
        try:
            with open_evaluator(config, repeat=1, with_error_map=True, remember=True) as evaluator:
                found = attribute(known.entry, evaluator)
        except UserError as error:
            print(f"{known.name}: NO FINDING: {error}", flush=True)
            return known.right is None
        right = known.right is None or known.right(found.cause)
        word = "" if known.right is None else "right: " if right else "WRONG: "
        print(
            f"{known.name}: {word}{found.cause.place}: {found.cause.mechanism} ({time.monotonic() - began:.0f} s)",
            flush=True,
        )
        if with_evidence:
            print("\n".join(f"  {sentence}" for sentence in describe_evidence(found.cause.evidence)), flush=True)
        if with_bisector and found.cause.who == "inductor":
            _bisected(known, found)
    return right


@contextmanager
def planted(name: str) -> Iterator[None]:
    """While entered, processes that are started have a torch with that mistake; "" for none."""
    before = {key: os.environ.get(key) for key in ("ATTNFUZZ_PLANT", "PYTHONPATH")}
    if name:
        os.environ["ATTNFUZZ_PLANT"] = name
        os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (str(HERE / "planted_torch"), before["PYTHONPATH"])))
    try:
        yield
    finally:
        for key, value in before.items():
            os.environ.pop(key, None)
            if value is not None:
                os.environ[key] = value


def _bisected(known: Known, found: Attribution) -> None:
    """Print what repro.py does, and what the bisector says of it by both of its doors."""
    result = found.ablation.result
    with tempfile.TemporaryDirectory(prefix="attnfuzz-attribution-") as scratch:
        repro = Path(scratch) / "repro.py"
        own_random, dynamic = get_spec(known.entry.subject).random, known.entry.subject == DYNAMIC
        bug = Bug(case=known.entry.case, result=result, title=known.name, own_random=own_random, dynamic=dynamic)
        repro.write_text(write_script(bug).text)
        codes = [run(repro, sys.executable, backend=backend).code for backend in ("inductor", "eager")]
        began = time.monotonic()
        lines = [asked(repro, sys.executable).line for asked in (bisect, bisect_command)]
    print(
        f"  repro.py exits with {codes[0]}, in eager with {codes[1]}; the bisector says: {lines[0]}; "
        f"by its command: {lines[1]}"
        f" ({time.monotonic() - began:.0f} s)",
        flush=True,
    )


if __name__ == "__main__":
    sys.exit(main())
