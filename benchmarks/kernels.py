"""Speed of the bundled kernels beside PyTorch's flash backend, side by side in one run on one GPU.

    python -m benchmarks.kernels [--seq-len 8192] [--head-dim 128] [--causal]

Prints the median time of each and the ratio of their speeds, forward and backward.
"""

import argparse
import math
import statistics
import sys
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.attention import attention

TOKENS = 16384
REPEATS = 30
"""Runs of one measurement; its median counts."""


def main() -> int:
    """Measure and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seq-len", type=int, default=8192)
    parser.add_argument("--head-dim", type=int, default=128)
    parser.add_argument("--heads", type=int, default=16)
    parser.add_argument("--causal", action="store_true")
    options = parser.parse_args()
    if not torch.cuda.is_available():
        print("benchmarks.kernels: no CUDA device", file=sys.stderr)
        return 2
    batch = max(1, TOKENS // options.seq_len)
    shape = (batch, options.heads, options.seq_len, options.head_dim)
    q, k, v, dout = (torch.randn(shape, device="cuda", dtype=torch.bfloat16) for _ in range(4))
    products = 4 * batch * options.heads * options.seq_len**2 * options.head_dim / (2 if options.causal else 1)
    print(f"{torch.cuda.get_device_name()}, torch {torch.__version__}, bfloat16 {list(shape)}, causal {options.causal}")

    def bundled(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        causal = "top_left" if options.causal else None
        return attention(q, k, v, scale=1 / math.sqrt(options.head_dim), causal=causal)

    def flash(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
            return functional.scaled_dot_product_attention(q, k, v, is_causal=options.causal)

    times: dict[str, list[list[float]]] = {"bundled": [], "flash": []}
    for _ in range(3):
        for name, call in (("bundled", bundled), ("flash", flash)):
            times[name].append([_forward_ms(call, q, k, v), _backward_ms(call, q, k, v, dout)])
    for at, (what, share) in enumerate((("forward", 1.0), ("backward", 2.5))):
        ours, theirs = (statistics.median(run[at] for run in times[name]) for name in ("bundled", "flash"))
        rates = [products * share / ms / 1e9 for ms in (ours, theirs)]
        print(
            f"{what}: bundled {ours:.3f} ms ({rates[0]:.0f} TFLOP/s), flash {theirs:.3f} ms ({rates[1]:.0f} TFLOP/s): "
            f"{theirs / ours:.0%} of flash's speed"
        )
    return 0


def _timed(call: Callable[[], object]) -> float:
    """Median milliseconds."""
    for _ in range(3):
        call()
    events = []
    for _ in range(REPEATS):
        start, stop = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        start.record()
        call()
        stop.record()
        events.append((start, stop))
    torch.cuda.synchronize()
    return float(statistics.median(start.elapsed_time(stop) for start, stop in events))


def _forward_ms(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor) -> float:
    with torch.no_grad():
        return _timed(lambda: call(q, k, v))


def _backward_ms(call: Callable[..., Tensor], q: Tensor, k: Tensor, v: Tensor, dout: Tensor) -> float:
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    out = call(*leaves)
    return _timed(lambda: torch.autograd.grad(out, leaves, dout, retain_graph=True))


if __name__ == "__main__":
    sys.exit(main())
