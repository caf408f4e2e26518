"""Whether attribution is right about mistakes that were planted and bugs of torch that are known.

    python -m benchmarks.attribution [--only PREFIX] [--python PYTHON] [--device cpu]

Prints a line for each finding: what was planted, the cause that triage names, whether that is right, and the seconds;
and the line of torch that it names, if the mistake is in torch.
Mistakes are planted in replacements of attention and in Inductor's relu (benchmarks/planted_torch), and in copies of
the bundled kernels (benchmarks/defects.py); "unlisted" ones in passes, decompositions, lowerings, generated code. Exits
with 1 where a cause is wrong.
"""

import argparse
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any
from unittest import mock

from corpus import casefile, entry
from corpus.causes import MechanismKind
from corpus.entry import Entry, Expectation
from corpus.passes.contracts import Plain, spell_plain
from fuzz.ask.evaluator import open_evaluator
from fuzz.ask.question import AnswerCache
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.ablation import run_ablation
from fuzz.attribution.attribute import attribute
from fuzz.attribution.locate import locate
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study
from generators.errors import UserError
from generators.program.attention_options import Contract
from generators.program.case import Case, Input, Values
from generators.program.ops import make_op
from generators.program.sizes import Size

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

GATED = """
case_format: 1
dims: {S: 7}
inputs:
  q: {shape: [S, S, S], dtype: float32, values: {seed: 0}}
  k: {shape: [S, S, S], dtype: float32, values: {seed: 1}}
ops:
  - {name: kt, op: permute, args: [k], dims: [0, 2, 1]}
  - {name: scores, op: bmm, args: [q, kt]}
  - {name: others, op: bmm, args: [k, q]}
  - {name: less, op: mul, args: [scores], other: 0.5}
  - {name: gate, op: silu, args: [less]}
  - {name: positive, op: sigmoid, args: [others]}
  - {name: mixed, op: mul, args: [gate, positive]}
  - {name: out, op: bmm, args: [mixed, k]}
returns: [out]
"""

TWOFOLD = """
case_format: 1
dims: {S: 7}
inputs:
  q: {shape: [S, S, S], dtype: float32, values: {seed: 0}}
  k: {shape: [S, S, S], dtype: float32, values: {seed: 1}}
ops:
  - {name: kt, op: permute, args: [k], dims: [0, 2, 1]}
  - {name: scores, op: bmm, args: [q, kt]}
  - {name: others, op: bmm, args: [k, q]}
  - {name: positive, op: relu, args: [scores]}
  - {name: gate, op: sigmoid, args: [scores]}
  - {name: out, op: mul, args: [gate, others]}
returns: [positive, out]
"""

PERMUTED = """
case_format: 1
dims: {S: 4}
inputs:
  q: {shape: [S, S, S], dtype: float32, values: {seed: 0}}
ops:
  - {name: one, op: permute, args: [q], dims: [1, 0, 2]}
  - {name: other, op: permute, args: [one], dims: [0, 2, 1]}
  - {name: out, op: bmm, args: [other, q]}
returns: [out]
"""

UNLISTED = {
    "products_dropped": (GATED, "graph_passes", "reorder_for_locality", "drop_products"),
    "permutations_dropped": (PERMUTED, "graph_passes", "pointless_permute_pair", "pointless_permute_pair"),
    "silu_decomposed_wrongly": (GATED, "decomposition", "aten.silu", "change_silu"),
    "sigmoid_lowered_wrongly": (GATED, "lowering", "sigmoid", "change_sigmoid"),
    "loop_cut": (GATED, "codegen", "vectorisation", ""),
    "buffer_stale": (TWOFOLD, "codegen", "fusion", ""),
}
"""By plant of a kind that no list in triage knows: a program, the stage, the part, and the function at fault, or "" for
generated code."""

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

CALLED = {
    "last_key_ignored": "sfdp-15-inference",
    "last_key_ignored,mask_negated": "sfdp-15-inference",
    "last_key_ignored,mask_dropped": "sfdp-14-inference",
}
"""By plants: a seed whose pattern calls CPU flash, which is wrong if it is given a mask."""

KERNELS: dict[str, tuple[str, dict[str, Any]]] = {
    "statistics_without_mask": (r"attention$|attention_backward", {"mode": "training", "rows": 65, "heads": 2}),
    "tail_keys_counted": ("attention_forward", {"rows": 7}),
    "no_rescale": ("attention_forward", {"rows": 130}),
    "maximum_before_scale": ("attention_forward", {"needs": "negative_scale", "scale": -8.0, "rows": 64}),
    "softcap_by_exponentials": ("attention_forward", {"needs": "softcap", "softcap": 0.05, "scale": 8.0}),
    "finite_minus_infinity": ("attention_forward", {"needs": "mask", "mask": "empty_row"}),
    "corner_ignored": ("attention_forward", {"needs": "causal_bottom_right", "causal": "bottom_right", "columns": 24}),
    "window_short_by_one": ("attention_forward", {"needs": "window", "window": (2, 2)}),
    "heads_interleaved": ("attention_forward", {"needs": "group", "heads": 4, "kv_heads": 2}),
    "group_overwritten": ("attention_backward", {"needs": "dk", "heads": 4, "kv_heads": 2, "mode": "training"}),
    "softcap_without_derivative": ("attention_backward", {"softcap": 1.0, "mode": "training"}),
    "features_unmasked": ("attention_", {"dim": 24}),
    "log2e_in_three_digits": ("attention_forward", {"scale": 1.0}),
    "slope_of_the_first_head": ("attention_forward", {"needs": "alibi", "alibi": True, "heads": 2}),
}
"""By defect: how the part that is to blame begins, a regular expression, and a call that shows it. `needs`: an option
or gradient that the cause names. On a GPU the write
beside the statistics is seen, on a CPU the gradient that it spoils."""

_SFDP, _FLASH = "_sfdp_pattern_", "_scaled_dot_product_flash_attention_for_cpu"


@dataclass(frozen=True, slots=True)
class Known:
    """A finding whose cause is known. `plant` is what ATTNFUZZ_PLANT is set to."""

    name: str
    entry: Entry
    is_right: Callable[[RootCause], bool]
    plant: str = ""
    function: str = ""
    """The function at fault, a regular expression; "" where the line is not asked for."""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--only",
        default="",
        metavar="PREFIX",
        help="findings whose name begins so: replacement, called, relu, unlisted, kernel, known",
    )
    parser.add_argument("--python", help="interpreter, and so torch version, of the worker")
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    options = parser.parse_args()
    chosen = [known for known in known_findings(options.device) if known.name.startswith(options.only)]
    right = [is_attributed(known, options.device, options.python) for known in chosen]
    lines = [is_line_right for known, (_, is_line_right) in zip(chosen, right, strict=True) if known.function]
    print(
        f"causes: {sum(cause for cause, _ in right)} of {len(right)} right; lines: {sum(lines)} of {len(lines)} right"
    )
    return 0 if all(cause for cause, _ in right) else 1


def known_findings(device: str) -> Iterator[Known]:
    """All of them, the cheap ones first."""
    for plant, seed in REPLACEMENTS.items():
        found = entry.load(SEEDS / "patterns" / f"{seed}.case.yaml")
        # Without TF32, fuse_attention leaves float32 on a GPU alone.
        case = _in_bfloat16(found.case) if device == "cuda" else found.case
        found = Entry(case, expect=_subject(found.subject))
        yield Known(f"replacement {plant}", found, _in_pattern(seed), plant, _spell_replacement(seed))
    for plants, seed in CALLED.items() if device == "cpu" else ():
        is_first = "mask_dropped" in plants
        is_right, function = (
            (_in_pattern(seed), _spell_replacement(seed)) if is_first else (_in_flash, f"aten.{_FLASH}")
        )
        yield Known(
            f"called {plants}", entry.load(SEEDS / "patterns" / f"{seed}.case.yaml"), is_right, plants, function
        )
    for plant in ("relu_accuracy", "relu_compile_error", "relu_runtime_error"):
        relu = Entry(casefile.loads(RELU), expect=_subject("inductor"))
        yield Known(f"relu {plant}", relu, _in_relu, plant)
    for plant, (text, stage, part, function) in UNLISTED.items():
        found = Entry(casefile.loads(text), expect=_subject("inductor"))
        yield Known(f"unlisted {plant}", found, partial(_is_in, stage=stage, part=part), plant, function)
    for name, (part, how) in KERNELS.items():
        call = _call(f"benchmarks.defects:{name}", **{key: how[key] for key in how if key != "needs"})
        yield Known(f"kernel {name}", call, _in_kernel(name, part, how.get("needs", "")))
    for path, found in entry.load_directory(SEEDS).items():
        if found.expect is not None and found.expect.status == "known":
            yield Known(f"known {path.name.partition('.')[0]}", found, _match_known(path.name))


def _in_bfloat16(case: Case) -> Case:
    """What is in float32 but for casts, which are part of a pattern."""
    inputs = (replace(item, dtype="bfloat16") if item.dtype == "float32" else item for item in case.inputs)
    low = {"dtype": "bfloat16"}
    ops = (
        make_op(op.name, op.kind, op.args, {**dict(op.attrs), **low})
        if op.kind == "full" and dict(op.attrs).get("dtype", "float32") == "float32"
        else op
        for op in case.ops
    )
    return replace(case, inputs=tuple(inputs), ops=tuple(ops))


def _subject(name: str) -> Expectation:
    return Expectation("known", subject=name)


def _in_pattern(seed: str) -> Callable[[RootCause], bool]:
    part = f"{_SFDP}{int(seed.split('-')[1])}"
    return lambda cause: (cause.who, cause.stage, cause.part) == ("inductor", "joint_graph_passes", part)


def _spell_replacement(seed: str) -> str:
    return f"_sfdp_replacement_{int(seed.split('-')[1])}$"


def _is_in(cause: RootCause, *, stage: str, part: str) -> bool:
    return (str(cause.stage), cause.part) == (stage, part)


def _in_flash(cause: RootCause) -> bool:
    return (cause.who, cause.stage) == ("sdpa_flash", "operation")


def _in_relu(cause: RootCause) -> bool:
    return (cause.who, cause.stage, cause.part) == ("inductor", "lowering", "relu")


def _in_kernel(name: str, part: str, needs: str) -> Callable[[RootCause], bool]:
    def is_right(cause: RootCause) -> bool:
        named = {"", *(one for _, given in cause.mechanism.details for one in given)}
        return cause.who == f"benchmarks.defects:{name}" and bool(re.match(part, cause.part)) and needs in named

    return is_right


def _match_known(file: str) -> Callable[[RootCause], bool]:
    if file.startswith("sfdp-"):
        return _in_pattern(file)
    return lambda cause: cause.who == "sdpa_flash" and cause.mechanism.kind is MechanismKind.OVERLAPPING_ROWS


def _call(
    subject: str, *, rows: int = 17, columns: int = 0, heads: int = 1, kv_heads: int = 0, dim: int = 16, mask: str = "",
    alibi: bool = False, scale: float = 0.25, mode: str = "inference", **options: Any,
) -> Entry:  # fmt: skip
    """One plain call of an attention function."""

    def tensor(name: str, seed: int, *shape: str | int, dtype: str = "float32", kind: str = "normal") -> Input:
        return Input(name, tuple(map(Size.of, shape)), dtype, Values(kind, seed))

    dims = (("H", heads), ("K", kv_heads or heads), ("S", rows), ("T", columns or rows), ("D", dim))
    inputs = {
        "q": tensor("q", 0, 1, "H", "S", "D"),
        "k": tensor("k", 1, 1, "K", "T", "D"),
        "v": tensor("v", 2, 1, "K", "T", "D"),
        **({"mask": tensor("mask", 3, "S", "T", dtype="bool", kind=mask)} if mask else {}),
        **({"alibi": tensor("slopes", 4, "H", kind="uniform")} if alibi else {}),
    }
    case = spell_plain(Plain(dims, inputs, Contract("q", "k", "v", "out", scale=scale, **options), mode))
    assert case is not None, subject
    return Entry(case, expect=_subject(subject))


def is_attributed(known: Known, device: str, python: str | None = None) -> tuple[bool, bool]:
    """Print one line, and whether the cause and the line are right."""
    subject = known.entry.subject
    config = WorkerConfig(
        python=python or sys.executable,
        device=device,
        named=(subject,) if ":" in subject else (),
        timeout=120.0,
        memory_mib=8192,
    )
    began = time.monotonic()
    try:
        with planted(known.plant), open_evaluator(config, repeat=1) as evaluator:
            memory = AnswerCache(evaluator)
            ablation = run_ablation(known.entry, memory, full=False)
            cause = attribute(known.entry, memory, ablation)
            if known.function:
                study = Study(memory, known.entry, ablation.accused, ablation.result)
                cause = locate(study, cause)
    except UserError as error:
        print(f"{known.name}: NO FINDING: {error}", flush=True)
        return False, False
    word = "right" if known.is_right(cause) else "WRONG"
    seconds = time.monotonic() - began
    where = ", ".join(filter(None, (cause.who, cause.stage, cause.part)))
    print(f"{known.name}: {word}: {where}: {cause.mechanism} ({seconds:.0f} s)", flush=True)
    is_line_right = bool(cause.places) and re.search(known.function, cause.places[0].function) is not None
    for place in cause.places[:1] if known.function else ():
        print(
            f"  line {'right' if is_line_right else 'WRONG'}: {place.file}:{place.line} in {place.function}", flush=True
        )
    return word == "right", is_line_right


def planted(name: str) -> AbstractContextManager[Any]:
    """While entered, processes that are started have a torch with that mistake; "" for none."""
    path = os.pathsep.join(filter(None, (str(HERE / "planted_torch"), os.environ.get("PYTHONPATH"))))
    return mock.patch.dict(os.environ, {"ATTNFUZZ_PLANT": name, "PYTHONPATH": path} if name else {})


if __name__ == "__main__":
    sys.exit(main())
