"""The bundled kernels: every feature within its budget of float64; adapters name what is missing."""

import importlib.util
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import SubjectError
from kernels.attention import SCHEDULES, Settings, attention, attention_forward
from tests.command import run_command
from tests.kernels.reference import math_attention
from tests.kernels.trial import DEVICE, NAMES, Trial, with_few_heads

FEATURES: dict[str, dict[str, Any]] = {
    "plain": {},
    "causal": {"causal": "top_left"},
    "bottom right": {"causal": "bottom_right", "rows": 40, "columns": 130},
    "more queries than keys": {"causal": "bottom_right", "rows": 90, "columns": 33},
    "window": {"window": (20, 7), "rows": 130, "columns": 130},
    "left window": {"window": (5, -1), "causal": "bottom_right", "rows": 65, "columns": 129},
    "softcap": {"softcap": 3.0},
    "large scores under softcap": {"softcap": 20.0, "scale": 40.0},
    "alibi": {"alibi": (2,)},
    "sinks": {"sinks": (2,)},
    "negative scale": {"scale": -0.7},
    "zero scale": {"scale": 0.0},
    "grouped": {"heads": 4, "kv_heads": 2, "causal": "top_left"},
    "other value_dim": {"dim": 40, "value_dim": 7},
    "dropout": {"dropout": (0.3, 5)},
}
SHAPE = ("heads", "kv_heads", "rows", "columns", "dim", "value_dim")

#: Of the table in FlagGems' pull request on the backward of attention: heads, kv_heads, length, head_dim.
FLAGGEMS = [
    *((8, 8, length, 64) for length in (128, 127, 120, 64, 129, 255)),
    *((8, 4, length, 64) for length in (128, 127, 120, 129)),
    *((8, 8, length, 128) for length in (128, 127, 120, 64)),
]


def trial(dtype: torch.dtype, **features: Any) -> Trial:
    sizes = {name: features.pop(name) for name in SHAPE if name in features}
    options = {
        name: torch.rand(value, device=DEVICE) if name in ("alibi", "sinks") else value
        for name, value in features.items()
    }
    make = Trial if sizes.keys() & {"heads"} or features.keys() & {"alibi", "sinks", "dropout"} else with_few_heads
    return make(**sizes, dtype=dtype, options=options)


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("feature", FEATURES)
def test_a_feature_is_within_its_budget(feature: str, dtype: str) -> None:
    assert trial(NAMES[dtype], **FEATURES[feature]).holds()


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("shape", FLAGGEMS, ids=str)
def test_the_shapes_that_another_kernel_failed_on(shape: tuple[int, int, int, int]) -> None:
    heads, kv_heads, length, dim = shape
    if DEVICE == "cpu":
        heads, kv_heads = heads // 4, kv_heads // 4
    made = Trial(heads, kv_heads, length, length, dim, dim)
    assert made.holds()


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("length", [1, 2, 15, 16, 17, 31, 33, 63, 64, 65, 129])
def test_lengths_around_tiles(length: int) -> None:
    causal = {"causal": "top_left"}
    assert with_few_heads(rows=length, columns=length, dtype=torch.bfloat16, options=causal).holds()
    assert with_few_heads(rows=5, columns=length).holds()
    assert with_few_heads(rows=length, columns=5).holds()


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("dtype", ["float32", "float16"])
@pytest.mark.parametrize("dim", [1, 3, 17, 80, 128, 200, 256])
def test_head_dims(dim: int, dtype: str) -> None:
    sizes: dict[str, Any] = {"rows": 20, "columns": 20, "dim": dim, "value_dim": dim, "dtype": NAMES[dtype]}
    assert with_few_heads(**sizes).holds()
    bias = torch.randn(20, 20, device=DEVICE)
    assert with_few_heads(**sizes, options={"bias": bias, "mask": bias < 1}).holds()


@pytest.mark.triton_interpreter
@pytest.mark.parametrize(("dim", "value_dim"), [(40, 7), (31, 4), (100, 16), (16, 80), (5, 130)])
def test_values_of_another_width(dim: int, value_dim: int) -> None:
    assert with_few_heads(dim=dim, value_dim=value_dim, dtype=torch.bfloat16).holds()


def agree(made: Trial, mine: dict[str, Any], exact: dict[str, Any]) -> None:
    """The gradient of the first option is the reference's in float64."""
    name = next(iter(mine))
    out = attention(made.q, made.k, made.v, scale=0.25, **mine)
    wide = math_attention(made.q.double(), made.k.double(), made.v.double(), scale=0.25, **exact)
    got = torch.autograd.grad(out, mine[name], made.dout)[0]
    expected = torch.autograd.grad(wide, exact[name], made.dout.double())[0]
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.triton_interpreter
def test_slopes_and_sinks_of_any_strides_and_dtypes() -> None:
    slopes = torch.tensor([0.5, 9.0, 0.1, 9.0], device=DEVICE)
    assert Trial(options={"alibi": slopes[::2], "sinks": slopes[::2]}).holds()
    assert Trial(options={"alibi": slopes[:1].expand(2), "sinks": slopes.double()[1::2]}).holds()


@pytest.mark.triton_interpreter
def test_a_window_as_large_as_any_number_keeps_all() -> None:
    made = with_few_heads(rows=70, columns=66)
    expected = made.run()
    for window in ((2**31 - 1, 2**31 - 1), (2**63 - 1, 2**63 - 1), (2**40, -1), (-1, 2**63 - 1)):
        made.options["window"] = window
        values = made.run()
        assert all(torch.equal(values[name], expected[name]) for name in values)


BROADCASTS = [(65, 65), (65, 1), (1, 65), (2, 1, 65), (1, 2, 65, 65), (1, 1, 1, 65), (65,)]


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("shape", BROADCASTS, ids=str)
def test_bias_and_mask_broadcast_and_the_bias_has_its_gradient(shape: tuple[int, ...]) -> None:
    bias = torch.randn(shape, device=DEVICE)
    make = Trial if 2 in shape else with_few_heads
    made = make(options={"mask": torch.rand(shape, device=DEVICE) < 0.8, "bias": bias, "softcap": 4.0})
    assert made.holds()
    mine, exact = bias.clone().requires_grad_(), bias.double().requires_grad_()
    agree(made, {"bias": mine, "softcap": 4.0}, {"bias": exact, "softcap": 4.0})


@pytest.mark.triton_interpreter
def test_sinks_have_their_gradient() -> None:
    made = Trial(heads=4, kv_heads=2)
    mine = torch.randn(4, device=DEVICE).requires_grad_()
    exact = mine.detach().double().requires_grad_()
    agree(made, {"sinks": mine}, {"sinks": exact})


def laid_out(value: Tensor, layout: str) -> Tensor:
    if layout == "heads inside":
        return value.transpose(1, 2).contiguous().transpose(1, 2)
    if layout == "features first":
        return value.transpose(-1, -2).contiguous().transpose(-1, -2)
    return torch.nn.functional.pad(value, (3, 2, 1, 4))[:, :, 1:-4, 3:-2]


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("layout", ["heads inside", "features first", "inside a larger tensor"])
def test_strides_change_nothing(layout: str) -> None:
    made = Trial(dtype=torch.float16, options={"causal": "top_left"})
    expected = made.run()
    made.q, made.k, made.v, made.dout = (laid_out(x, layout) for x in (made.q, made.k, made.v, made.dout))
    values = made.run()
    assert not made.judged(values).verdict.is_finding
    # A GPU's compiler may sum in another order where loads are of another width.
    assert DEVICE == "cuda" or all(torch.equal(values[name], expected[name]) for name in values)


@pytest.mark.triton_interpreter
def test_expanded_keys_and_values() -> None:
    made = Trial(heads=4, kv_heads=1)
    wide = [x.expand(1, 4, 65, 16) for x in (made.k, made.v)]
    assert torch.equal(attention(made.q, *wide, scale=0.25), attention(made.q, made.k, made.v, scale=0.25))


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("sizes", [(0, 5), (5, 0), (0, 0)], ids=str)
def test_nothing_to_attend_to_or_from(sizes: tuple[int, int]) -> None:
    made = Trial(rows=sizes[0], columns=sizes[1])
    values = made.run()
    assert all((value == 0).all() for value in values.values())
    lse = logsumexp(made)
    assert lse.shape == (1, 2, sizes[0]) and (lse == -torch.inf).all()


@pytest.mark.triton_interpreter
def test_a_row_without_a_key_gives_0_and_finite_gradients() -> None:
    mask = torch.rand(65, 65, device=DEVICE) < 0.8
    mask[7] = mask[64] = False
    made = Trial(options={"mask": mask})
    values = made.run()
    assert (values["out"][:, :, [7, 64]] == 0).all() and (values["dq"][:, :, [7, 64]] == 0).all()
    assert not made.judged(values).verdict.is_finding
    assert (logsumexp(made, mask=mask.expand(1, 2, 65, 65))[:, :, 7] == -torch.inf).all()


def logsumexp(made: Trial, *, mask: Tensor | None = None, softcap: float = 0.0, right: int = -1) -> Tensor:
    settings = Settings(0.25, softcap, -1, right, 0, 0.0, 1.0, 0)
    return attention_forward(made.q, made.k, made.v, None, mask, None, None, settings)[1]


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("options", [{}, {"right": 0}, {"softcap": 2.0}], ids=str)
def test_logsumexp_is_natural(options: dict[str, Any]) -> None:
    made = Trial()
    scores = 0.25 * (made.q.double() @ made.k.double().mT)
    if "softcap" in options:
        scores = 2 * torch.tanh(scores / 2)
    if "right" in options:
        scores = scores.masked_fill(~torch.ones_like(scores, dtype=torch.bool).tril(), -torch.inf)
    lse = logsumexp(made, **options)
    assert lse.dtype == torch.float32
    torch.testing.assert_close(lse.double(), scores.logsumexp(-1), rtol=1e-6, atol=1e-6)


@pytest.mark.triton_interpreter
def test_repeats_are_equal_bit_for_bit() -> None:
    made = Trial(heads=2, kv_heads=1, dtype=torch.bfloat16, options={"dropout": (0.5, 3)})
    first, second = made.run(), made.run()
    assert all(torch.equal(first[name], second[name]) for name in first)


@pytest.mark.triton_interpreter
@pytest.mark.parametrize("sides", [(16, 32), (32, 16)])
def test_another_tile_shape_is_within_budget_too(sides: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    tile = dict(zip(("BLOCK_I", "BLOCK_J"), sides, strict=True))
    monkeypatch.setitem(SCHEDULES, DEVICE, SCHEDULES[DEVICE] | tile)
    assert with_few_heads(rows=50, columns=50, options={"window": (9, 3)}).holds()


@pytest.mark.triton_interpreter
def test_dropout_depends_on_positions_and_the_seed_alone() -> None:
    made = Trial(rows=40, columns=16, value_dim=16, options={"dropout": (0.4, 11)})
    made.v = torch.eye(16, device=DEVICE).expand(1, 2, 16, 16)
    given = (made.q, made.k, made.v)
    kept = attention(*given, **made.options) != 0
    assert torch.equal(kept, attention(*given, scale=0.0, dropout=(0.4, 11)) != 0)
    assert 0.5 < kept.float().mean() < 0.7
    assert not torch.equal(kept, attention(*given, scale=0.0, dropout=(0.4, 12)) != 0)


@pytest.mark.triton_interpreter
def test_dropping_everything_gives_0() -> None:
    values = Trial(options={"dropout": (1.0, 0)}).run()
    assert all((value == 0).all() for value in values.values())


BAD: list[tuple[dict[str, Any], str]] = [
    ({"causal": "left"}, "causal is 'left', expected one of top_left, bottom_right"),
    ({"softcap": -1.0}, "softcap is -1.0"),
    ({"window": (-2, 0)}, "window is"),
    ({"dropout": (1.5, 0)}, "dropout probability is 1.5"),
    ({"mask": torch.ones(3, 65, 65, dtype=torch.bool)}, "mask .* does not broadcast"),
    ({"mask": torch.ones(65, 65)}, "mask is torch.float32, expected torch.bool"),
    ({"bias": torch.ones(65, dtype=torch.int64)}, "bias is torch.int64"),
    ({"sinks": torch.ones(3)}, r"sinks has shape \[3\], expected \[2\]"),
]


@pytest.mark.triton_interpreter
@pytest.mark.parametrize(("options", "message"), BAD, ids=[case[1] for case in BAD])
def test_arguments_that_do_not_fit_are_refused(options: dict[str, Any], message: str) -> None:
    made = Trial()
    options = {name: value.to(made.q.device) if isinstance(value, Tensor) else value for name, value in options.items()}
    with pytest.raises(ValueError, match=message):
        attention(made.q, made.k, made.v, scale=0.25, **options)


ADAPTED = {
    "flaggems": ("flag_gems", "flag-gems"),
    "fla": ("fla", "fla-core"),
    "vllm": ("conch", "conch-triton-kernels"),
}


def subject_that_lacks_its_package(adapter: str) -> str:
    if importlib.util.find_spec(ADAPTED[adapter][0]):
        pytest.skip("it is installed")
    return f"kernels.adapters.{adapter}:attention"


@pytest.mark.parametrize("adapter", ADAPTED)
def test_a_missing_package_is_named(adapter: str) -> None:
    subject = subject_that_lacks_its_package(adapter)
    with pytest.raises(SubjectError) as caught:
        find(subject)
    assert ADAPTED[adapter][1] in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.worker
def test_a_campaign_over_a_missing_package_is_one_line_and_exit_code_2(tmp_path: Path) -> None:
    subject = subject_that_lacks_its_package("fla")
    done = run_command("fuzz.run", "--budget", "1x", "--subject", subject, "--out", tmp_path / "run", "-q")
    assert done.returncode == 2
    # A busy machine may first be told that the worker takes its time to start.
    assert sum(line.startswith("error:") for line in done.stderr.splitlines()) == 1
