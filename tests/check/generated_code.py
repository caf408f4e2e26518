"""Whether settings change the code that Inductor generates: `python -m tests.check.generated_code DEVICE`.

Prints by setting "" where the code differs, or what is wrong. Nothing is compiled or run. Without a GPU, code for
"cuda" is generated from fake tensors, for a device that only says what it is.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping
from contextlib import nullcontext
from functools import cache
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import nn
from torch._inductor import config
from torch._inductor.graph import GraphLowering
from torch._inductor.select_algorithm import AlgorithmSelectorCache
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional

from fuzz.check.torch_api import settings
from generators.program.settings import SETTINGS, SWITCHES, list_available

Tensor = torch.Tensor
SHARED = ((64, 64), (64, 64))


class Layers(nn.Module):
    """Three linear layers of one input."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def forward(self, x: Tensor) -> list[Tensor]:
        return [layer(x).relu() for layer in self.layers]


class Deep(nn.Linear):
    """A linear layer with few outputs of long sums."""

    def __init__(self) -> None:
        super().__init__(4096, 16)


def interleave(x: Tensor, w: Tensor) -> tuple[Tensor, Tensor]:
    third = (((x @ w).relu() @ w).sin() @ w).cos()
    return third + 1, (third @ w) * 2


def branch(x: Tensor, w: Tensor) -> Tensor:
    steps = [(x * i).relu() @ w for i in range(1, 5)]
    return torch.stack([step.sum(-1) for step in steps])


def mix(x: Tensor) -> tuple[Tensor, Tensor]:
    return x.sum(0), x.sum(1)


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    return (q @ k.transpose(-2, -1) * 0.3).softmax(-1) @ v


Program = tuple[Callable[..., Any], tuple[tuple[int, ...], ...], torch.dtype]


def program(function: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Program:
    """A function or module, and shapes and dtype of its arguments."""
    return function, shapes, dtype


HALF = torch.float16
SOFTMAX = program(lambda x: (x * 0.5).softmax(-1), (7, 2053))
SUM = program(lambda x: x.sum(), (1 << 20,))
PRODUCT = program(torch.bmm, (8, 32, 64), (8, 64, 32))
LAYERS = program(Layers(), (32, 64))
INDEPENDENT = program(lambda a, b, c, d: (a * 2, b + 1, c.relu(), d.sum(-1)), (1000,), (33, 7), (64, 64), (40, 50))
TRANSPOSED = program(lambda x, y: x + y.t(), (256, 320), (320, 256))
SHORT = program(lambda x: x.sum(-1) * 2, (1000, 6))
CHAIN = program(lambda x, y: ((x + y) * x - y).sigmoid(), (64, 64), (64, 64), dtype=HALF)
MIXED = program(mix, (32768, 768))
STEPS, BRANCHES = program(interleave, *SHARED), program(branch, *SHARED)
ODD = program(torch.mm, (513, 1021), (1021, 769), dtype=HALF)
ATTENTION = program(attend, *[(2, 4, 64, 32)] * 3)

SHOWN: dict[str, Program] = {
    "max_autotune": PRODUCT,
    "max_autotune_gemm": PRODUCT,
    "deterministic": PRODUCT,
    "cpp.gemm_max_k_slices": program(Deep(), (4, 4096)),
    "epilogue_fusion": LAYERS,
    "freezing": LAYERS,
    "b2b_gemm_pass": program(lambda a, b, c: functional.gelu(a @ b) @ c, (256, 32), (32, 256), (256, 32), dtype=HALF),
    "force_shape_pad": ODD,
    "split_reductions": SUM,
    "triton.persistent_reductions": ATTENTION,
    "triton.cooperative_reductions": SUM,
    "triton.nested_reduction": program(lambda x: x.softmax(-1).sum(0), (64, 300)),
    "triton.mix_order_reduction": MIXED,
    "cpp.threads": SUM,
    "cpp.min_chunk_size": SHORT,
    "max_autotune_pointwise": TRANSPOSED,
    "disable_padding_cpu": program(lambda x, w: (x @ w).softmax(-1) + 1, (256, 1030), (1030, 1030)),
    "reorder_for_locality": BRANCHES,
    "emulate_precision_casts": CHAIN,
    "numerics": CHAIN,
    "memory_planning": STEPS,
    "combo_kernels": INDEPENDENT,
}
"""By setting a program whose code it changes; `SOFTMAX` for the others."""
BESIDE: Mapping[str, Mapping[str, Any]] = {"deterministic": {"max_autotune_gemm": True}}
"""Settings under which the program shows it, besides those that the setting needs."""
NEEDS_GPU = {"freezing", "force_shape_pad"}
"""Constants are computed and products measured on a GPU."""


class Generated(Exception):
    """Ends a compilation with the code."""


def stop(_: object, code: Any) -> None:
    raise Generated(re.sub(r"(?m)(#|//).*$|/tmp/\S*|\bc\w{50,}", "", code.value))


def prefer_templates(*_: object, **__: object) -> Callable[..., Any]:
    return lambda choices, *_: {one: float(type(one).__name__.startswith("Extern")) + 1 for one in choices}


@cache
def generate(shown: Program, device: str, chosen: tuple[tuple[str, Any], ...]) -> str:
    """The code of a program under settings."""
    torch._dynamo.reset()
    function, shapes, dtype = shown
    is_fake = device == "cuda" and not torch.cuda.is_available()
    with FakeTensorMode(allow_non_fake_inputs=True) if is_fake else nullcontext(), torch.no_grad():
        if isinstance(function, nn.Module):
            with torch.device(device):
                function = type(function)().requires_grad_(False)
        arguments = [torch.empty(shape, dtype=dtype, device=device).fill_(0.5) for shape in shapes]
        with settings.apply(dict(chosen)):
            try:
                torch.compile(function)(*arguments)
            except Exception as error:
                cause: Any = error
                while cause is not None and not isinstance(cause, Generated):
                    cause = getattr(cause, "inner_exception", None) or cause.__cause__ or cause.__context__
                if cause is None:
                    raise
                return str(cause)
    raise RuntimeError("no code was generated")


def list_shown(device: str) -> list[str]:
    """The settings of Inductor that this torch has for the device, and that can be shown here."""
    left_out = SWITCHES if device == "cpu" or torch.cuda.is_available() else {*SWITCHES, *NEEDS_GPU}
    return [name for name in list_available(torch.__version__, device) if name not in left_out]


def show(name: str, device: str) -> str:
    """ "" where a value of the setting changes the code of its program, else what happened."""
    shown, base = SHOWN.get(name, SOFTMAX), {**dict(SETTINGS[name].needs), **BESIDE.get(name, {})}
    try:
        plain = generate(shown, device, tuple(base.items()))
        codes = (generate(shown, device, (*base.items(), (name, value))) for value in SETTINGS[name].values)
        return "" if any(code != plain for code in codes) else "the code is the same"
    except Exception as error:  # noqa: BLE001 - what torch raises is the answer
        return f"{type(error).__name__}: {error}".partition("\n")[0]


def pretend_cuda() -> None:
    """Let Inductor and Triton take this machine for one with an H100, as far as generating code asks."""
    from torch._dynamo.device_interface import CudaInterface
    from torch._inductor.fx_passes import joint_graph
    from triton.backends.compiler import GPUTarget
    from triton.runtime.driver import driver

    device = SimpleNamespace(
        name="H100", gcnArchName="", major=9, minor=0, multi_processor_count=132,
        regs_per_multiprocessor=65536, warp_size=32,
        max_threads_per_multi_processor=2048, max_threads_per_block=1024, total_memory=80 << 30,
        shared_memory_per_block_optin=232448, shared_memory_per_block=49152, L2_cache_size=50 << 20,
    )  # fmt: skip
    said: dict[str, Any] = {"get_device_properties": device, "get_device_capability": (9, 0), "current_device": 0}
    for name, value in said.items():
        mock.patch.object(torch.cuda, name, lambda *_, value=value: value).start()
    said |= {"get_compute_capability": 90, "is_available": True}
    for owner in (CudaInterface, CudaInterface.Worker):
        for name, value in said.items():
            mock.patch.object(owner, name, staticmethod(lambda *_, value=value: value), create=True).start()
    register = joint_graph.lazy_init
    mock.patch.object(joint_graph, "lazy_init", side_effect=lambda *_: register(torch.device("cpu"))).start()
    target = GPUTarget("cuda", 90, 32)
    driver.set_active(SimpleNamespace(get_current_target=lambda: target, get_current_device=lambda: 0))


def main(device: str, *names: str) -> None:
    """Print what `show` says of each setting that this torch has on the device, or of those named."""
    settings.configure_torch()
    torch.set_num_threads(1)
    config.force_disable_caches = True
    # Else a C++ compiler says so.
    config.cpp.vec_isa_ok = True
    mock.patch.object(GraphLowering, "_compile_to_module_lines", stop).start()
    mock.patch.object(AlgorithmSelectorCache, "make_precompile_fn", return_value=lambda *_: None).start()
    mock.patch.object(AlgorithmSelectorCache, "make_benchmark_fn", staticmethod(prefer_templates)).start()
    if device == "cuda" and not torch.cuda.is_available():
        pretend_cuda()
    for name in names or list_shown(device):
        sys.stdout.write(f"{json.dumps([name, show(name, device)])}\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
