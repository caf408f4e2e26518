"""The bundled kernels over every length from 1 to 130, and the 14 shapes of FlagGems' table: errors in units of the
budget.

    python -m benchmarks.kernel_sweep [--quick]

Natively where there is a GPU, through Triton's interpreter elsewhere (--quick: every seventh length). Prints the worst
error over budget of out, dq, dk and dv for each head layout and dtype, and exits with 1 where one is over its limit.
"""

import argparse
import os
import sys

import torch

from fuzz.protocol.render import describe_failure

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from tests.kernels.test_attention import FLAGGEMS
from tests.kernels.trial import DEVICE, NAMES, Trial

LAYOUTS = (
    (((8, 8), 64), ((8, 4), 64), ((8, 8), 128)) if DEVICE == "cuda" else (((2, 2), 16), ((4, 2), 16), ((2, 1), 24))
)
"""(heads, kv_heads), head_dim: FlagGems' on a GPU, smaller ones for the interpreter."""


def main() -> int:
    """Run and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="every seventh length")
    step = 7 if parser.parse_args().quick else 1
    where = torch.cuda.get_device_name() if DEVICE == "cuda" else "the interpreter on CPU"
    print(f"torch {torch.__version__}, {where}; worst error over budget")
    over = 0
    for shape in FLAGGEMS:
        heads, kv_heads, length, dim = shape
        for name in NAMES:
            over += _told(
                f"heads {heads}/{kv_heads} length {length} head_dim {dim} {name}",
                [Trial(heads, kv_heads, length, length, dim, dim, dtype=NAMES[name])],
            )
    for (heads, kv_heads), dim in LAYOUTS:
        for name in NAMES:
            for causal in ({}, {"causal": "top_left"}):
                trials = [
                    Trial(heads, kv_heads, length, length, dim, dim, dtype=NAMES[name], options=causal)
                    for length in range(1, 131, step)
                ]
                over += _told(f"heads {heads}/{kv_heads} lengths 1 to 130 head_dim {dim} {name} {causal or ''}", trials)
    print(f"{over} accused")
    return 1 if over else 0


def _told(what: str, trials: list[Trial]) -> int:
    """Print the worst of some trials; how many the oracle accuses."""
    judgements = [trial.judged(trial.run()) for trial in trials]
    accused = [judgement for judgement in judgements if judgement.verdict.is_finding]
    worst = max(judgements, key=lambda judgement: judgement.numbers["ratio"])
    print(f"{what}: {worst.value} {worst.numbers['ratio']:.2f} (limit {worst.numbers['limit']:g})", flush=True)
    for judgement in accused:
        assert judgement.failure is not None
        print(f"  {judgement.verdict}: {describe_failure(judgement.failure)}", flush=True)
    return len(accused)


if __name__ == "__main__":
    sys.exit(main())
