"""torch's own layers, flex_attention, autocast and torch.export under the oracle: right programs are left alone."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fuzz.check.judge.modes import Noise, reference
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import exceptions
from fuzz.protocol import Verdict
from fuzz.protocol.failures import Value
from tests.check.client import Asker
from tests.check.in_process import run_subject, source

HARMLESS = (Verdict.OK, Verdict.ROUNDING)
AUTOCAST = """with torch.autocast("cpu", dtype=torch.bfloat16):
            return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v"""
_LAYER = """import torch
from torch import nn
{setting}

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = {layer}

    def forward(self, x):
        return {call}


def inputs():
    return [torch.randn((2, 5, 8), generator=torch.Generator().manual_seed(0))]
"""
FLEX = """import torch
from torch import nn
from torch.nn.attention.flex_attention import create_block_mask, flex_attention


class Module(nn.Module):
    def forward(self, q):
        def mask_mod(b, h, q_idx, kv_idx):
            return q_idx >= kv_idx

        return flex_attention(q, q, q, block_mask=create_block_mask(mask_mod, None, None, 9, 9, device=q.device))


def inputs():
    return [torch.randn((1, 2, 9, 4), generator=torch.Generator().manual_seed(0))]
"""


def encoder(setting: str = "") -> str:
    return _LAYER.format(
        setting=setting, layer="nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)", call="self.layer(x)"
    )


ATTENTION_LAYER = _LAYER.format(
    setting="", layer="nn.MultiheadAttention(8, 2, batch_first=True)", call="self.layer(x, x, x)[0]"
)


@pytest.fixture(autouse=True)
def _fast_path() -> Iterator[None]:
    yield
    torch.backends.mha.set_fastpath_enabled(True)


def run(text: str, mode: Any = None) -> torch.Tensor:
    """The output of a text in inference."""
    program = Program(text)
    module = program.module(False)
    return execute(module, module, [program.inputs()], training=False, mode=mode).outputs[Value("output", 0)]


def exactly(text: str) -> torch.Tensor:
    """The same from the reference."""
    program = Program(text)
    run = reference(program.module(False), program.calls, training=False, cotangents=None)
    return run.outputs[Value("output", 0)]


def operations(text: str) -> set[str]:
    """The aten operations that eager calls."""
    with torch.profiler.profile() as profile:
        run(text)
    return {event.key for event in profile.key_averages()}


def test_autocast_computes_and_is_judged_in_the_lower_dtype_but_its_reference_is_not() -> None:
    text, noise = source(AUTOCAST), Noise(0)
    assert run(text, noise).dtype == torch.bfloat16
    assert any(torch.bfloat16 in dtypes for dtypes in noise.dtypes)
    exact, plain = exactly(text), exactly(source("return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v"))
    assert exact.dtype == torch.float64
    assert torch.equal(exact, plain)


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
def test_right_programs_under_autocast_are_not_accused(worker: Asker, training: bool) -> None:
    result = worker.one(source(AUTOCAST), "passes", training=training)
    assert result.verdict in HARMLESS, result.failure


def test_the_fast_path_is_off_for_a_text_that_says_so_and_no_other() -> None:
    fused = "aten::_transformer_encoder_layer_fwd"
    assert fused in operations(encoder())
    assert fused not in operations(encoder("torch.backends.mha.set_fastpath_enabled(False)"))
    assert fused in operations(encoder())


def test_reference_and_noise_take_a_fused_layer_apart(worker: Asker) -> None:
    text = encoder()
    assert torch.allclose(exactly(text).float(), run(text), atol=1e-5)
    assert worker.one(text, "passes").verdict in HARMLESS


def test_reference_and_noise_see_into_flex_attention(worker: Asker) -> None:
    result = worker.one(FLEX, "passes")
    assert result.verdict in HARMLESS, result.failure


PLAIN = source("return (q @ k.transpose(-2, -1)).softmax(-1) @ v", dims="1, 2, 3, 4")
SLOPED_FLEX = """
import torch
from torch import nn
from torch.nn.attention.flex_attention import flex_attention


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.slopes = nn.Parameter(torch.tensor([0.25, -0.5]))

    def forward(self, q, k, v, table):
        def score_mod(score, b, h, q_idx, kv_idx):
            sloped = torch.add(score, self.slopes[h] * (kv_idx - q_idx))  # reads a name of the module around it
            return sloped + table[q_idx - kv_idx + k.size(2) - 1]

        return flex_attention(q, k, v, score_mod)


def inputs():
    q, k, v = (torch.randn(1, 2, 5, 16, generator=torch.Generator().manual_seed(seed)) for seed in range(3))
    return [q, k, v, torch.linspace(-1, 1, 9)]
"""


@pytest.mark.parametrize(
    ("text", "training", "verdict"),
    [
        (PLAIN, False, Verdict.OK),
        (PLAIN, True, Verdict.SKIPPED),
        # Traced as workers run flex_attention in eager, it would give tensors without values.
        (SLOPED_FLEX, False, Verdict.OK),
        # Strides that eager's fast path gives.
        (ATTENTION_LAYER, False, Verdict.OK),
        # A buffer that is written to, and an output that is a view of an input.
        (PLAIN.replace("        return", "        q += 1\n        return q.transpose(0, 1),"), False, Verdict.OK),
    ],
)
def test_exported_programs_are_judged_in_inference(text: str, training: bool, verdict: Verdict) -> None:
    assert run_subject(find("export"), text=text, training=training).verdict in (verdict, Verdict.ROUNDING)


def test_a_program_is_exported_for_the_inputs_of_its_first_call() -> None:
    calls = "\n\ndef calls(module):\n    yield inputs()\n    yield [torch.cat([x, x], 2) for x in inputs()]\n"
    assert run_subject(find("export"), text=PLAIN + calls).verdict is Verdict.SKIPPED


@pytest.mark.compiles
def test_what_aot_inductor_packages_writes_to_the_buffers_of_the_module() -> None:
    text = PLAIN.replace(
        "    def forward",
        "    def __init__(self):\n        super().__init__()\n"
        "        self.register_buffer('count', torch.zeros(3))\n\n    def forward",
    ).replace("        return", "        self.count.add_(1)\n        return self.count[:, None] +")
    assert run_subject(find("aot_inductor"), text=text).verdict in (Verdict.OK, Verdict.ROUNDING)


@pytest.mark.parametrize("wraps", [False, True])
def test_documented_limits_of_flex_attention_are_no_errors(wraps: bool) -> None:
    limit: Any = NotImplementedError(
        "NYI: embedding dimension of the query, key, and value must be at least 16 but got E=8 and Ev=8"
    )
    error = RuntimeError("lowering failed")
    error.__cause__ = limit
    assert exceptions.find_limit(error if wraps else limit)
    assert not exceptions.find_limit(RuntimeError("lowering failed"))
