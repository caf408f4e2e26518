"""The compilers of extras: how they refuse, and, where they are installed, that their results are eager's."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from fuzz.compilers.table import COMPILERS

_NAMES = ("executorch", "executorch_xnnpack", "iree", "tvm")


@pytest.mark.parametrize(
    ("compiler", "text", "operator"),
    [
        (
            "executorch",
            "Failed to execute method forward, error: 0x14; kernel 'aten::linalg_qr.out' not found.",
            "aten::linalg_qr.out",
        ),
        ("executorch_xnnpack", "'FlexAttentionHOP' object has no attribute '_schema'", "FlexAttentionHOP"),
        ("tvm", "Unsupported function types ['amax.default', 'sort.stable']", "amax.default"),
        (
            "iree",
            "error: failed to legalize operation 'torch.operator': %0 = <{name = \"torch.aten.special_i0e\"}>",
            "aten.special_i0e",
        ),
        ("iree", "error: failed to legalize operation 'torch.aten.linalg_qr': %3:2 = ...", "aten.linalg_qr"),
        ("iree", "Higher-order operation 'flat_apply' not implemented in the FxImporter", "flat_apply"),
        (
            "aot_inductor",
            (
                "Encountered aliased inputs that are mutated in the graph you are trying to export."
                "\n        This functionality is currently not supported. If needed, please file a github issue."
            ),
            "",
        ),
        ("aot_inductor", "Encountered aliased inputs that are mutated in the graph, but at least one input", None),
        ("executorch", "Failed to execute method forward, error: 0x12; KernelCall failed at instruction 0:29", None),
        ("tvm", "Binary operators must have the same datatype for both operands.", None),
    ],
)
def test_a_refusal_names_the_operator_that_is_not_taken(compiler: str, text: str, operator: str | None) -> None:
    assert COMPILERS[compiler].capabilities.find_refused(text) == operator


class _Module(nn.Module):
    def __init__(self, function: Callable[..., object]) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.linspace(-1, 1, 4))
        self._function = function

    def forward(self, *inputs: Tensor) -> object:
        return self._function(self.bias, *inputs)


def _attend(bias: Tensor, q: Tensor, keep: Tensor) -> tuple[Tensor, tuple[Tensor, Tensor]]:
    """Outputs of two shapes and two dtypes, so that another order is seen."""
    out = functional.scaled_dot_product_attention(q, q, q + bias, attn_mask=keep)
    return out.sum(-1), (out, out.argmax(-1))


_QUERY = torch.randn(2, 3, 5, 4, generator=torch.Generator().manual_seed(0))
_PROGRAMS: dict[str, tuple[Callable[..., object], tuple[Tensor, ...]]] = {
    "attention with a row that keeps no key": (_attend, (_QUERY, torch.ones(5, 5).tril(-1).bool())),
    "inputs that are not contiguous": (
        _attend,
        (_QUERY.transpose(0, 1).contiguous().transpose(0, 1), torch.ones(5, 5).bool()),
    ),
    "an input that is repeated": (lambda bias, x: x * bias, (torch.ones(3, 1).expand(3, 4),)),
    "an input within another tensor": (lambda bias, x: x * bias, (torch.arange(5.0)[1:],)),
    "bfloat16": (lambda _, x: x.softmax(-1), (torch.arange(6.0).view(2, 3).bfloat16(),)),
    "booleans, integers and no dimension": (
        lambda _, x, n: (x > n, x.long() + 1, n * 2),
        (torch.arange(4.0), torch.tensor(2.0)),
    ),
    "no element": (lambda bias, x: (x * bias, x.sum()), (torch.ones(0, 4),)),
}


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore")  # those of other software
@pytest.mark.parametrize("name", _NAMES)
def test_a_compiler_that_is_installed_computes_what_eager_does(name: str) -> None:
    compiler = COMPILERS[name]
    if problem := compiler.find_problem():
        pytest.skip(problem)
    for title, (function, inputs) in _PROGRAMS.items():
        module = _Module(function).eval()
        with torch.no_grad():
            program = torch.export.export(module, inputs)
            run = compiler.compile(program, inputs, **compiler.keywords)
            expected = torch.utils._pytree.tree_leaves(module(*inputs))
            for _ in range(2):
                found = torch.utils._pytree.tree_leaves(run(*inputs))
                assert [value.dtype for value in found] == [value.dtype for value in expected], title
                torch.testing.assert_close([*found], expected)


@pytest.mark.compiles
@pytest.mark.filterwarnings("ignore")  # those of other software
@pytest.mark.parametrize("name", _NAMES)
def test_a_compiler_that_is_installed_names_what_it_does_not_take(name: str) -> None:
    compiler = COMPILERS[name]
    if problem := compiler.find_problem():
        pytest.skip(problem)
    module, inputs = _Module(lambda _, x: torch.linalg.qr(x)[1]).eval(), (torch.eye(3),)
    with torch.no_grad(), pytest.raises(Exception, match="qr") as refused:  # noqa: PT011, RUF100
        compiler.compile(torch.export.export(module, inputs), inputs, **compiler.keywords)(*inputs)
    assert "linalg_qr" in (compiler.capabilities.find_refused(str(refused.value)) or "")
