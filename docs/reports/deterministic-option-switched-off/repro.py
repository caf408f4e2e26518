"""[Dynamo] torch._inductor.config.deterministic, also as TORCHINDUCTOR_DETERMINISTIC=1, is switched off by the first compilation

TORCH_COMPILE_BACKEND names the backend, by default inductor.
Exits with 0 without the bug, 125 if it can't run, 1 with the bug.
"""
import os, sys

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # as where it was found: kernels are chosen, and sums split, by the number of threads

import torch
from torch import nn

S, D = 4, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        out = x.softmax(dim=-1)
        return out


def inputs():
    return [
        torch.randn((S, D), generator=rng(0)),
    ]


# The program ends here; what follows runs it.
from torch._inductor import config

BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")
config.fallback_random = True
config.deterministic = True
double = lambda v: v.double() if torch.is_tensor(v) and v.is_floating_point() else v


def run(module, exact=False, backend=None):
    module = module.train(False)
    module = module.double() if exact else module
    call = torch.compile(module, backend=backend, dynamic=False) if backend else module
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    args = [double(a) if exact else a for a in inputs()]
    out = call(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {name: value.detach() for name, value in values.items()}


def test_fn() -> bool:
    torch._dynamo.reset()
    read = lambda: [torch._inductor.config.deterministic]
    before = read()
    run(Module(), backend=BACKEND)
    for name, was, now in zip(['torch._inductor.config.deterministic'], before, read()):
        print(f"{name}: {was} before compiling, {now} afterwards")
    return before == read()


if __name__ == "__main__":
    sys.exit(0 if test_fn() else 1)
