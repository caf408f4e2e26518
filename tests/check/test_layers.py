"""torch's own layers, flex_attention and autocast under the oracle: right ones are left alone, wrong ones are told."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch

from fuzz.check.judge.modes import Noise, reference
from fuzz.check.run.program import Program, execute
from fuzz.protocol import Verdict
from fuzz.protocol.failures import Value
from tests.check.client import Asker
from tests.check.sources import source

HARMLESS = (Verdict.OK, Verdict.ROUNDING)
AUTOCAST = """with torch.autocast("cpu", dtype=torch.bfloat16):
            return (q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1) @ v"""
LAYER = """import torch
from torch import nn
{setting}

class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)

    def forward(self, x):
        return self.layer(x)


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
    assert fused in operations(LAYER.format(setting=""))
    assert fused not in operations(LAYER.format(setting="torch.backends.mha.set_fastpath_enabled(False)"))
    assert fused in operations(LAYER.format(setting=""))


def test_reference_and_noise_take_a_fused_layer_apart(worker: Asker) -> None:
    text = LAYER.format(setting="")
    assert torch.allclose(exactly(text).float(), run(text), atol=1e-5)
    assert worker.one(text, "passes").verdict in HARMLESS


def test_reference_and_noise_see_into_flex_attention(worker: Asker) -> None:
    result = worker.one(FLEX, "passes")
    assert result.verdict in HARMLESS, result.failure
