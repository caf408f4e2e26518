"""[Inductor] torch.logical_and, logical_or or logical_xor of numbers, an operand broadcast, the other permuted: other strides than eager's

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
TORCH_COMPILE_BACKEND names the backend, by default inductor.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay corpus/known/logical-of-numbers-strides.case.yaml --subject inductor
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

B, A, C = 2, 3, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, y):
        transposed = y.permute(2, 0, 1)
        out = torch.logical_and(x, transposed)
        return out


def inputs():
    return [
        torch.randn((B,), generator=rng(0)),
        torch.randn((A, B, C), generator=rng(1)),
    ]


# The program ends here. The rest runs it.
BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
Accused = Module
calls = lambda module: [inputs()]


def prepare(module):
    return torch.compile(module, backend=BACKEND, dynamic=False)


NAMES = ["x", "y"]  # of the arguments
TRAINING = False
DEVICE = "cpu"
ACCUSED = BACKEND  # the results that are compared
STATE = []  # of torch, which compiling has to keep


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


def describe_forms(make, prepare=None):
    values, forms = run(make, prepare, look=lambda value: value), {}
    is_fake = lambda value: isinstance(value, torch._subclasses.FakeTensor)  # its storage has no address
    memory = {name: 0 if is_fake(value) else value.untyped_storage().data_ptr() for name, value in values.items()}
    owners = {memory[n]: f"that of {n.removesuffix(' afterwards')}" for n in values if "afterwards" in n}
    for name, value in values.items():
        # The dimensions from the outermost in memory to the innermost decide, and the strides are shown.
        order = sorted((d for d in range(value.dim()) if value.size(d) > 1), key=lambda d: (-value.stride(d), d))
        owner = owners.get(memory[name] or None, "its own")
        seen = {"dtype": value.dtype, "device": value.device, "shape": [*value.shape], "memory": owner}
        seen["structure"] = "FakeTensor" if is_fake(value) else "tensor"
        forms |= {f"{name}: {aspect}": (form, form) for aspect, form in seen.items()}
        forms[f"{name}: strides"] = (order, [*value.stride()])
    for name in STATE:
        forms[name] = (operator.attrgetter(name.removeprefix("torch."))(torch),) * 2
    return forms


def has_other_forms():
    eager, accused = describe_forms(Module), describe_forms(Accused, prepare)
    absent = (None, "absent")
    differing = [n for n in eager | accused if eager.get(n, absent)[0] != accused.get(n, absent)[0]]
    for name in differing:
        print(f"{name}: eager {eager.get(name, absent)[1]}, {ACCUSED} {accused.get(name, absent)[1]}")
    return bool(differing)


def main(shows_bug):
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)


if __name__ == "__main__":
    main(has_other_forms)
