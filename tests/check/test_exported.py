"""Programs of torch.export, and limits that torch documents."""

from typing import Any

import pytest

from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api import exceptions
from fuzz.protocol import Verdict
from tests.check.in_process import run_subject
from tests.check.sources import source

PLAIN = source("return (q @ k.transpose(-2, -1)).softmax(-1) @ v", dims="1, 2, 3, 4")
FLEX = """
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
LAYER = """
import torch
from torch import nn


class Module(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)

    def forward(self, x):
        return self.attention(x, x, x)[0]


def inputs():
    return [torch.randn((2, 3, 4), generator=torch.Generator().manual_seed(0))]
"""


@pytest.mark.parametrize(
    ("text", "training", "verdict"),
    [
        (PLAIN, False, Verdict.OK),
        (PLAIN, True, Verdict.SKIPPED),
        # Traced as workers run flex_attention in eager, it would give tensors without values.
        (FLEX, False, Verdict.OK),
        # Strides that eager's fast path gives.
        (LAYER, False, Verdict.OK),
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
