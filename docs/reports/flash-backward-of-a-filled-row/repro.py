"""[CPU] attention (sdpa) in training: eager is off from float64 (aten._scaled_dot_product_flash_attention_for_cpu_backward)

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay finding.case.yaml --subject eager
"""
import operator, os, sys, traceback
from contextlib import nullcontext

try:
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # the number of threads selects kernels and splits sums

import torch
import torch.nn.functional as F
from torch import nn

B, H, S, T, D = 1, 1, 2, 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    without_gradient = ['mask']

    def forward(self, q, k, v, mask):
        out = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return out


def inputs():
    return [
        torch.randn((B, H, S, D), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
        torch.randn((B, H, T, D), generator=rng(2)),
        torch.full((S, T), -3.4028234663852886e+38),
    ]


# The program ends here. The rest runs it.
Accused = Module
Plain = Module
calls = lambda module: [inputs()]


def prepare(module):
    return module


NAMES = ["q", "k", "v", "mask"]  # of the arguments
TRAINING = True
DEVICE = "cpu"
ACCUSED = "eager"  # the results that are compared
BASELINE = "float64"  # the results that they are compared with; "float64" if eager is accused
DTYPE = torch.float32  # the least precise of the program
FACTOR = 0  # of the baseline's error, and
SHARE = 0.0005  # of the largest magnitude: an error up to their sum is rounding
EMPTY_ROWS = None  # the result for a row without a key; None: NaN in eager, so it does not count
IS_RANDOM = False  # runs draw their own dropout, so only NaN and infinity are wrong
RUNS = 0  # further runs, which have to give equal bits


def move(value, exact=None):  # in place and with its strides: a tensor that two calls get stays one tensor
    if exact or DEVICE != "cpu":
        flat = value.data.as_strided([value.untyped_storage().nbytes() // value.element_size()], [1], 0).to(DEVICE)
        flat = flat.double() if exact and flat.is_floating_point() else flat
        value.data = flat.as_strided(value.shape, value.stride(), value.storage_offset())
    return value


def run(make, prepare=None, look=lambda value: value.detach().clone(), exact=None):
    module = make().to(DEVICE).train(TRAINING)
    module = module.double() if exact else module
    torch.manual_seed(0)
    torch.set_grad_enabled(TRAINING)
    call, seen = None, {}
    for number, arguments in enumerate(calls(module), 1):
        if call is None:  # after the changes before a first call
            call = prepare(module) if prepare else module
        named = {name: move(value, exact) for name, value in zip(NAMES, arguments)}
        leaves = {**named, **dict(module.named_parameters())}
        constants = getattr(module, "without_gradient", [])
        for name, value in named.items() if torch.is_grad_enabled() else ():
            value.requires_grad_(value.is_floating_point() and name not in constants)
        with exact or nullcontext():
            out = call(*named.values())
            values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
            outs = [o for o in values.values() if o.requires_grad]
            if outs and torch.is_grad_enabled():
                torch.manual_seed(1)
                is_sum = getattr(module, "loss", "") == "sum"
                drawn = (o.new_ones(()).expand(o.shape) if is_sum else torch.randn(o.shape).to(o) for o in outs)
                torch.autograd.backward(outs, [*drawn])
                grad = lambda leaf: torch.zeros_like(leaf) if leaf.grad is None else leaf.grad
                values |= {f"grad of {name}": grad(leaf) for name, leaf in leaves.items() if leaf.requires_grad}
        values |= {f"{name} afterwards": value for name, value in [*named.items(), *module.named_buffers()]}
        seen |= {f"call {number}: {name}" if number > 1 else name: look(value) for name, value in values.items()}
    return seen


class Float64(torch.utils._python_dispatch.TorchDispatchMode):  # casts in the program become casts to float64
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if getattr(kwargs.get("dtype"), "is_floating_point", False) and any(torch.is_tensor(arg) for arg in args):
            kwargs["dtype"] = torch.float64
        double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v
        return torch.utils._pytree.tree_map(double, func(*args, **kwargs))


def has_wrong_values():
    with sdpa_kernel(SDPBackend.MATH):
        exact = run(Plain, exact=Float64())
    base = run(Plain) if BASELINE == "eager" else exact
    accused = run(Accused, prepare)
    again = [run(Accused, prepare) for _ in range(RUNS)]
    wrong = any(not torch.equal(one[n].nan_to_num(), v.nan_to_num()) for one in again for n, v in accused.items())
    print("runs on equal inputs differ\n" if wrong else "", end="")
    largest = lambda value: max(value.abs().nan_to_num(torch.inf, torch.inf).tolist(), default=0.0)
    top = max([largest(x[x.isfinite()]) for name, x in exact.items() if "grad of" in name], default=0.0)
    for name, x in exact.items():
        b, x, a = (value.double() for value in (base[name], x, accused[name]))
        if EMPTY_ROWS is not None:
            b, x, a = (value.nan_to_num(EMPTY_ROWS) for value in (b, x, a))
        counts = b.isfinite() & (x.abs() < 0.99 * torch.finfo(DTYPE).max)
        scale, off_base, off = (largest(value[counts]) for value in (x, b - x, a - x))
        limit = FACTOR * off_base + SHARE * (top if "grad of" in name else scale)
        is_wrong = off == torch.inf if IS_RANDOM else off > limit
        wrong |= is_wrong
        if is_wrong or "afterwards" not in name:
            words = f"error: {BASELINE} {off_base:.2g}, {ACCUSED} {off:.2g}{'; wrong' * is_wrong}"
            print(f"{name}: values up to {scale:.2g}; {words}")
    return wrong


def main(shows_bug):
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)


if __name__ == "__main__":
    main(has_wrong_values)
