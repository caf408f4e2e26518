"""[Inductor] torch.while_loop over a size that is marked dynamic and becomes a constant: compiling raises LoweringException, 'int' object has no attribute 'meta'

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
TORCH_COMPILE_BACKEND names the backend, by default inductor.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/while-loop-over-a-constant-size.case.yaml --subject inductor
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
from torch import nn

B, D = 3, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        B = x.size(0)
        D = x.size(1)
        total = x + y

        def block(total):
            total = total[None]
            out = total.exp()
            return out[0]

        def step(row, out):
            at = row.reshape(1)
            return row + 1, out.index_copy(0, at, block(total.index_select(0, at)[0])[None])

        zeros = torch.zeros((B, D), dtype=torch.float32, device=total.device)
        _, out = torch.while_loop(lambda row, _: row < B, step, (torch.zeros((), dtype=torch.int64, device=total.device), zeros))
        return out


def inputs(D=D):
    return [
        torch.randn((B, D), generator=rng(0)),
        torch.randn((B, D), generator=rng(1)),
    ]


def calls(module):
    yield inputs()
    given = inputs(D=5)
    torch._dynamo.maybe_mark_dynamic(given[0], 0)
    yield given


class Plain(Module):
    def forward(self, x, y):
        B = x.size(0)
        D = x.size(1)
        total = x + y

        def block(total):
            total = total[None]
            out = total.exp()
            return out[0]

        out = torch.stack([block(*rows) for rows in zip(total)])
        return out


# The program ends here. The rest runs it.
BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
Accused = Module


def prepare(module):
    return torch.compile(module, backend=BACKEND, dynamic=False)


NAMES = ["x", "y"]  # of the arguments
TRAINING = False
DEVICE = "cpu"


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


def raises():
    run(Module)
    try:
        run(Accused, prepare)
        if DEVICE != "cpu":
            torch.cuda.synchronize()  # raises the GPU's errors
    except Exception:
        traceback.print_exc()
        return True
    return False


def main(shows_bug):
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)


if __name__ == "__main__":
    main(raises)
