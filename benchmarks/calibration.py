"""What right attention functions reach of the limits they are judged by, per dtype: where the oracle's limits come from.

    python -m benchmarks.calibration [--cases 2000] [--seed 1] [--workers 2] [--device cpu] [--out benchmarks/calibration/cpu.json]

Runs cases for kernels (`generators.sample(seed, index, contracted=True)`, all distributions, a half with gradients) through
PyTorch's MATH steps, the backends of `F.scaled_dot_product_attention`, eager code that says it rounds scores, and the bundled
kernels (on CPU in Triton's interpreter, every fourth case). Prints, and writes with where it comes from, the largest of
every statistic by function and dtype, and every case that would be a finding.
"""

import argparse
import collections
import datetime as dt
import json
import math
import multiprocessing
import os
import platform
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from fuzz.check.attention.calls import judged
from fuzz.check.attention.function import Attention, SubjectError, Unsupported
from fuzz.check.attention.sdpa import function as on_backend
from fuzz.check.attention.standin import StandIn
from fuzz.check.oracle import constants
from fuzz.check.program import execute
from fuzz.protocol import Verdict
from generators.sample import sample
from generators.stand_in import stand_in
from kernels.attention import attention
from kernels.reference import math_attention

Record = dict[str, Any]


def eager(q: Tensor, k: Tensor, v: Tensor, *, scale: float, mask: Tensor | None = None, bias: Tensor | None = None) -> Tensor:
    """Attention as it is written by hand, everything rounded to the inputs' dtype."""
    group = q.shape[1] // k.shape[1] if k.shape[1] else 1
    k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
    scores = q @ k.transpose(-2, -1) * scale
    scores = scores if bias is None else scores + bias.to(q.dtype)
    scores = scores if mask is None else scores.masked_fill(~mask, -math.inf)
    return scores.softmax(-1) @ v


eager.capabilities = {"rounds": ("scores", "weights")}  # type: ignore[attr-defined]


def plain_math(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
    """MATH without dropout."""
    if options.pop("dropout", None):
        raise Unsupported("it does not take dropout")
    return math_attention(q, k, v, **options)


FUNCTIONS = {
    "math": plain_math,
    "eager": eager,
    "sdpa_flash": on_backend(SDPBackend.FLASH_ATTENTION),
    **({"sdpa_efficient": on_backend(SDPBackend.EFFICIENT_ATTENTION), "sdpa_cudnn": on_backend(SDPBackend.CUDNN_ATTENTION)}
       if torch.cuda.is_available() else {}),
    "triton": attention,
}  # fmt: skip
INTERPRETED_EVERY = 4


def records(seed: int, index: int, device: str) -> Iterator[Record]:
    """What each function reached on one case."""
    case = sample(seed, index, contracted=True)
    text = stand_in(case)
    assert text is not None
    cotangents: dict[str, Tensor] | None = None
    for name, function in FUNCTIONS.items():
        if name == "triton" and device == "cpu" and index % INTERPRETED_EVERY:
            continue
        try:
            stood = StandIn(text, Attention(lambda function=function: function), device, training=case.training)  # type: ignore[misc]
            run = execute(
                stood.module(), stood.module(), stood.program.inputs(), training=case.training, cotangents=cotangents, mode=stood.fresh()
            )
        except (Unsupported, SubjectError, NotImplementedError, RuntimeError):
            continue
        cotangents = cotangents or run.cotangents
        judgement = judged(stood.calls, stood.function, training=case.training)
        dtypes = sorted({str(call.q.dtype).removeprefix("torch.") for call in stood.calls})
        stood.program.close()
        yield {
            "index": index, "case": case.id, "function": name, "dtype": "+".join(dtypes), "verdict": judgement.verdict.value,
            "message": judgement.message, "value": judgement.value, "numbers": judgement.numbers,
        }  # fmt: skip


def main() -> int:
    """Run and print. Returns the exit code: 1 when a right function would be accused."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=2000)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    jobs = [(options.seed, index, options.device) for index in range(options.first, options.first + options.cases)]
    largest: dict[str, dict[str, float]] = collections.defaultdict(dict)
    accused = 0
    with multiprocessing.get_context("spawn").Pool(options.workers, _settle) as pool:
        for found in pool.imap_unordered(_all, jobs, chunksize=8):
            for record in found:
                key = f"{record['function']} {record['dtype']}"
                _add(largest[key], record)
                if Verdict(record["verdict"]).is_finding:
                    accused += 1
                    print(f"seed {options.seed} index {record['index']} {key}: {record['verdict']} {record['message']}", flush=True)
    for key, values in sorted(largest.items()):
        print(f"{key:28} " + "  ".join(f"{name} {value:.3g}" for name, value in values.items()))
    print(f"{accused} accused")
    if options.out:
        _write(options.out, largest, options, accused)
    return 1 if accused else 0


def _add(largest: dict[str, float], record: Record) -> None:
    largest["calls"] = largest.get("calls", 0) + 1
    numbers = record["numbers"]
    if "ratio" not in numbers:
        return
    unit = constants.UNIT_ROUNDOFF[getattr(torch, record["dtype"])]
    values = {"worst": numbers["ratio"]}
    if "rms_ratio" in numbers:
        deviates = {name: numbers[f"{name}_deviations"] > constants.TREND_DEVIATIONS for name in ("scale", "bias", "rms", "row")}
        values |= {name: numbers[f"{name}_ratio"] for name in ("rms", "row") if deviates[name]}
        values |= {f"{name}/u": abs(numbers[f"{name}_change"]) / unit for name in ("scale", "bias") if deviates[name]}
        values |= {
            f"{name} deviations": numbers[f"{name}_deviations"]
            for name in ("scale", "bias") if abs(numbers[f"{name}_change"]) > constants.TREND_SHARE * unit
        }  # fmt: skip
    for name, value in values.items():
        largest[name] = max(largest.get(name, 0.0), value)


def _all(job: tuple[int, int, str]) -> list[Record]:
    return list(records(*job))


def _settle() -> None:
    torch.set_num_threads(1)
    torch.backends.cuda.matmul.allow_tf32 = False
    warnings.filterwarnings("ignore")


def _write(path: Path, largest: dict[str, dict[str, float]], options: argparse.Namespace, accused: int) -> None:
    device = torch.cuda.get_device_name() if options.device == "cuda" else platform.machine()
    provenance = {
        "command": f"python -m benchmarks.calibration --cases {options.cases} --seed {options.seed} --device {options.device}",
        "date": dt.datetime.now(dt.UTC).date().isoformat(),
        "torch": torch.__version__,
        "device": device,
        "accused": accused,
    }
    rounded = {key: {name: float(f"{value:.4g}") for name, value in values.items()} for key, values in sorted(largest.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({"provenance": provenance, "largest": rounded}, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
