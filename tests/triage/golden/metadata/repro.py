"""[Inductor][CPU] add, exp: output 0: strides [3, 1] are in another order than eager's [1, 2]

Exits with 1 if the bug shows, 0 if it does not, 125 if the script can't tell, for `git bisect run`.
TORCH_COMPILE_BACKEND names the backend, by default inductor.
For the full verdict, in a checkout of attnfuzz: python -m fuzz.replay finding.case.yaml --subject inductor
"""
import os, sys, traceback

try:
    import torch
except Exception as error:
    sys.exit(print(f"can't run here: {error!r}", file=sys.stderr) or 125)
torch.set_num_threads(1)  # the number of threads selects kernels and splits sums

import torch
from torch import nn

B, S = 2, 3


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        sums = x + 1.0
        out = sums.exp()
        return out


def inputs():
    return [
        torch.randn((B, S), generator=rng(0)).transpose(-1, -2).contiguous().transpose(-1, -2),
    ]


# The program ends here. The rest runs it.
BACKEND = os.environ.get("TORCH_COMPILE_BACKEND", "inductor")


def run(module, compiled=False):
    module = module.train(False)
    torch.manual_seed(0)
    torch.set_grad_enabled(False)
    call = torch.compile(module, backend=BACKEND, dynamic=False) if compiled else module
    args = [a for a in inputs()]
    out = call(*args)
    values = {f"output {i}": o for i, o in enumerate(out if isinstance(out, tuple) else (out,))}
    return {n: v.detach() for n, v in values.items()}


def shows_bug():
    # The last part: dimensions from the outermost in memory to the innermost.
    order = lambda v: sorted((d for d in range(v.dim()) if v.size(d) > 1), key=lambda d: (-v.stride(d), d))
    form = lambda values: {n: (v.dtype, v.device, v.shape, order(v)) for n, v in values.items()}
    eager, compiled = form(run(Module())), form(run(Module(), compiled=True))
    for name in eager:
        if eager[name] != compiled.get(name):
            print(f"{name}: eager {eager[name]}, compiled {compiled.get(name)}")
    return eager != compiled


if __name__ == "__main__":
    try:
        sys.exit(1 if shows_bug() else 0)
    except Exception:  # not the bug: the script can't tell
        traceback.print_exc()
        sys.exit(125)
