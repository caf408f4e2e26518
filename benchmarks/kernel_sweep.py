"""The bundled kernels over every length from 1 to 130, and the 14 shapes of FlagGems' table: errors in units of the budget.

    python -m benchmarks.kernel_sweep [--quick]

Natively where there is a GPU, through Triton's interpreter elsewhere (--quick: every seventh length). Prints the worst
error over budget of out, dq, dk and dv for each head layout and dtype, and exits with 1 where one is over its limit.
"""

import argparse
import os
import sys

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"

from fuzz.check.oracle.constants import budget_limit
from tests.kernels.test_attention import FLAGGEMS
from tests.kernels.trial import DEVICE, NAMES, Trial

LAYOUTS = (((8, 8), 64), ((8, 4), 64), ((8, 8), 128)) if DEVICE == "cuda" else (((2, 2), 16), ((4, 2), 16), ((2, 1), 24))
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
            over += _told(f"heads {heads}/{kv_heads} length {length} head_dim {dim} {name}",
                          [Trial(heads, kv_heads, length, length, dim, dim, dtype=NAMES[name])])
    for (heads, kv_heads), dim in LAYOUTS:
        for name in NAMES:
            for causal in ({}, {"causal": "top_left"}):
                trials = [
                    Trial(heads, kv_heads, length, length, dim, dim, dtype=NAMES[name], options=causal)
                    for length in range(1, 131, step)
                ]
                over += _told(f"heads {heads}/{kv_heads} lengths 1 to 130 head_dim {dim} {name} {causal or ''}", trials)
    print(f"{over} over the limit")
    return 1 if over else 0


def _told(what: str, trials: list[Trial]) -> int:
    """Print the worst of some trials; how many are over the limit."""
    worst: dict[str, float] = {}
    over = 0
    for trial in trials:
        ratios = trial.ratios(trial.run())
        over += any(not ratio <= budget_limit(trial.dtype) for ratio in ratios.values())
        worst = {name: max(worst.get(name, 0.0), ratio) for name, ratio in ratios.items()}
    shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in worst.items())
    print(f"{what}: {shown} (limit {budget_limit(trials[0].dtype):g})", flush=True)
    return over


if __name__ == "__main__":
    sys.exit(main())
