"""How far right attention functions are from what the oracles without a reference demand of them, over sampled calls.

    .venv/bin/python -m benchmarks.oracles identities --function math --calls 1000
    .venv/bin/python -m benchmarks.oracles relations --function sdpa_flash --calls 1000

`identities` prints the largest ratio of each gradient identity by dtype, and the calls it comes from; `relations` what
breaks, and how often each relation that holds in real numbers holds bit for bit. A function is `math`
(kernels.reference, gradients by autograd), or an attention subject: triton, sdpa_math, sdpa_flash. Known to be wrong
and left out: sdpa_flash with `causal` and a negative scale, which gives NaN or zeros in torch 2.13.0 on CPU.
"""

import argparse
import os
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import replace
from random import Random
from typing import Any

os.environ.setdefault("TRITON_INTERPRET", "1")

import torch
from torch import Tensor

from fuzz.check.attention.function import fill_matters
from fuzz.check.oracle.attention.call import Call
from fuzz.check.oracle.attention.identities import identities
from fuzz.check.oracle.attention.metamorphic import broken
from fuzz.check.oracle.attention.refusals import Unsupported
from fuzz.check.oracle.attention.relation_table import RELATIONS
from fuzz.check.program import Program
from fuzz.check.subjects import available
from fuzz.protocol.render import describe_failure
from generators.program.attention_stub import emit_attention_stub
from generators.sampling.sample import sample
from kernels.reference import math_attention

MOST_TILES = 24
"""What Triton's interpreter is asked for, in tiles of 64 x 64 scores."""

Sampled = tuple[int, Tensor, Tensor, Tensor, dict[str, Any]]


def main() -> None:
    """Print the table asked for."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oracle", choices=("identities", "relations"))
    parser.add_argument("--function", default="math")
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--calls", type=int, default=1000, help="cases sampled; a function takes only some")
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    function = _function(options.function)
    measure = _identities if options.oracle == "identities" else _relations
    print(f"{options.function}: {measure(function, _calls(options.seed, options.calls))} calls")


def _function(name: str) -> Callable[..., Tensor]:
    if name == "math":
        return _by_autograd
    attention = available("cpu")[name].attention
    if attention is None:
        raise SystemExit(f"{name} is no attention subject")
    loaded = attention.loaded()

    def attend(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Tensor:
        loaded.check(q, k, v, options, training=False)
        tiles = q.shape[0] * q.shape[1] * -(-q.shape[2] // 64) * -(-k.shape[2] // 64)
        if name == "triton" and tiles > MOST_TILES:
            raise Unsupported("too large for the interpreter")
        if name == "sdpa_flash" and options.get("causal") and options["scale"] < 0:
            raise Unsupported("known to be wrong")
        out: Tensor = loaded.function(q, k, v, **options)
        return out

    return attend


def _by_autograd(
    q: Tensor, k: Tensor, v: Tensor, *, dropout: tuple[float, int] | None = None, **options: Any
) -> Tensor:
    p, seed = dropout or (0.0, 0)
    shape = (*q.shape[:3], k.shape[2])
    kept = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) >= p
    return math_attention(q, k, v, dropout_p=p, dropout_mask=kept, **options)


def _calls(seed: int, count: int) -> Iterator[Sampled]:
    for index in range(count):
        text = emit_attention_stub(sample(seed, index, contracted=True))
        found: list[Sampled] = []

        def attend(
            q: Tensor, k: Tensor, v: Tensor, *, fill: float = float("-inf"),
            found: list[Sampled] = found, index: int = index, **options: Any,
        ) -> Tensor:  # fmt: skip
            if not fill_matters(fill, options.get("mask"), options.get("causal"), k.shape[2]):
                found.append((index, q, k, v, options))
            return q.new_zeros((*q.shape[:3], v.shape[3]))

        assert text is not None
        program = Program(text, "cpu", {"attend": attend})
        try:
            with torch.no_grad():
                program.module(training=False)(*program.inputs())
        except RuntimeError:  # the text around it needs other strides
            continue
        finally:
            program.close()
        yield from found


def _cotangent(out: Tensor, index: int) -> Tensor:
    """Normal, with outliers, of ones, tiny, or large."""
    drawn = torch.randn(out.shape, generator=torch.Generator().manual_seed(index))
    kinds = (drawn, drawn * torch.where(drawn > 2.0, 20.0, 1.0), torch.ones_like(drawn), drawn * 1e-3, drawn * 30)
    return kinds[index % len(kinds)].to(out.dtype)


def _identities(function: Callable[..., Tensor], calls: Iterator[Sampled]) -> int:
    ratios: dict[tuple[str, str], list[tuple[float, int]]] = defaultdict(list)
    count = 0
    for index, *tensors, options in calls:
        leaves = [x.detach().clone().requires_grad_() for x in tensors]
        named = dict(options)
        if named.get("bias") is not None:
            leaves.append(named["bias"].detach().clone().requires_grad_())
            named["bias"] = leaves[3]
        try:
            out = function(*leaves[:3], **named)
        except (Unsupported, NotImplementedError):
            continue
        dout = _cotangent(out, index)
        gradients = torch.autograd.grad(out, leaves, dout, allow_unused=True)
        if any(grad is None for grad in gradients):
            continue
        count += 1
        plain = [x.detach() for x in (*leaves[:3], out)]
        named_gradients = dict(zip(("dq", "dk", "dv", "dbias"), gradients, strict=False))
        call = Call(plain[0], plain[1], plain[2], options, plain[3], dout, named_gradients)
        for one in identities(call):
            ratios[one.sums, str(out.dtype)].append((one.worst, index))
    for key, values in sorted(ratios.items()):
        worst = ", ".join(f"{ratio:.2f} (call {index})" for ratio, index in sorted(values)[:-4:-1])
        print(f"{key[0]:26} {key[1]:16} {len(values):5}   {worst}")
    return count


def _relations(function: Callable[..., Tensor], calls: Iterator[Sampled]) -> int:
    applied: Counter[str] = Counter()
    bitwise: Counter[str] = Counter()
    count = 0
    for index, q, k, v, given in calls:
        options = {name: value for name, value in given.items() if name != "dropout"}
        try:
            function(q, k, v, **options)
        except (Unsupported, NotImplementedError):
            continue
        count += 1
        for relation in RELATIONS:
            asked: list[int] = []

            def attend(*tensors: Tensor, asked: list[int] = asked, **named: Any) -> Tensor:
                out = function(*tensors, **named)
                asked.append(1)
                return out

            exactly = replace(relation, exact=True)
            differs = broken(attend, Call(q, k, v, options), Random(index), 1, exact=True, relations=(exactly,))
            applied[relation.name] += bool(asked)
            bitwise[relation.name] += bool(asked) and not differs
            for failure in broken(function, Call(q, k, v, options), Random(index), 1, relations=(relation,)):
                print(f"call {index}: {describe_failure(failure)}")
    for relation in RELATIONS:
        print(f"{relation.name:42} bit for bit in {bitwise[relation.name]:5} of {applied[relation.name]:5}")
    return count


if __name__ == "__main__":
    main()
