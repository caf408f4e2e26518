"""Attention blocks of released models in eager, compiled and float64 on the same tensors, compared by torch alone.

    python -m benchmarks.plain_models transformers/llama@eager transformers/t5 --run "training, left padding"

Shares with attnfuzz the factory of models (`fuzz.check.module.released_models`) and nothing that judges: it is the
second opinion on answers of "equal". Each block runs with the inputs that the whole model gives it in its first call.
A JSON line a block tells the largest errors of outputs and gradients against float64, in units of float32's rounding
of the largest magnitude of the tensor. Dropout is off.
"""

import argparse
import copy
import json
import re
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from fuzz.check.module.released_models import ModelError, build, list_runs

_Arguments = tuple[tuple[Any, ...], dict[str, Any]]


def copy_arguments(arguments: Any, dtype: torch.dtype | None = None) -> Any:
    """Copies of the tensors, which keep `requires_grad`; those of floating point become `dtype`."""

    def take(value: Tensor) -> Tensor:
        kept = value.detach().to(dtype) if dtype is not None and value.is_floating_point() else value.detach()
        return kept.clone().requires_grad_(value.requires_grad)

    return tree_map_only(Tensor, take, arguments)


def capture_blocks(name: str, run: str) -> Iterator[tuple[str, nn.Module, _Arguments]]:
    """The attention blocks of a model, with the arguments of the first call of each."""
    root, args, kwargs = build(name, run)
    for part in root.modules():  # without dropout
        named = "drop" if "Drop" not in type(part).__name__ else "drop|^p$"
        floats = [field for field, value in vars(part).items() if isinstance(value, float) and re.search(named, field)]
        vars(part).update(dict.fromkeys(floats, 0.0))
    blocks = {path: part for path, part in root.named_modules() if re.search("Att(entio)?n", type(part).__name__)}
    paths, pristine = {part: path for path, part in blocks.items()}, copy.deepcopy(blocks)
    found: dict[str, _Arguments] = {}

    def keep(part: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if paths[part] not in found:
            found[paths[part]] = copy_arguments((args, kwargs))

    for part in paths:
        part.register_forward_pre_hook(keep, with_kwargs=True)
    torch.manual_seed(0)
    with torch.set_grad_enabled(root.training):
        root(*args, **kwargs)
    yield from ((path, part, found[path]) for path, part in pristine.items() if path in found)


def run_block(block: nn.Module, arguments: _Arguments, call: Callable[[nn.Module], Any]) -> dict[str, Tensor]:
    """Outputs of a block and, in training, the gradients of parameters and inputs for the same random cotangents."""
    args, kwargs = arguments
    torch.manual_seed(0)
    with torch.set_grad_enabled(block.training):
        outputs = [leaf for leaf in tree_leaves(call(block)(*args, **kwargs)) if isinstance(leaf, Tensor)]
    values = {f"output {index}": output.detach() for index, output in enumerate(outputs)}
    used = [output for output in outputs if output.requires_grad]
    if block.training and used:
        drawn = torch.Generator().manual_seed(1)
        torch.autograd.backward(used, [torch.randn(one.shape, generator=drawn).to(one.dtype) for one in used])
        inputs = {f"input {index}": leaf for index, leaf in enumerate(tree_leaves(arguments))}
        for name, leaf in {**dict(block.named_parameters()), **inputs}.items():
            if isinstance(leaf, Tensor) and leaf.grad is not None:
                values[f"gradient of {name}"] = leaf.grad
    return values


def measure(values: dict[str, Tensor], exact: dict[str, Tensor]) -> tuple[float, str]:
    """The largest error, in units of rounding, and the tensor that has it; infinite where one is missing or NaN. A
    gradient that cancels to rounding, as that of a key's bias does, is measured by the largest gradient."""
    limits, worst = torch.finfo(torch.float32), (0.0, "")
    sizes = {
        name: float(one[one.isfinite()].abs().max()) if one.isfinite().any() else 0.0 for name, one in exact.items()
    }
    largest = max((size for name, size in sizes.items() if name.startswith("gradient")), default=0.0)
    for name in exact.keys() | values.keys():
        if name not in exact or name not in values or exact[name].shape != values[name].shape:
            return float("inf"), name
        value, right = values[name].double(), exact[name].double()
        kept = right.isfinite()
        if not torch.equal(kept, value.isfinite()):
            return float("inf"), name
        if kept.any():
            cancels = name.startswith("gradient") and sizes[name] < limits.eps * largest
            unit = limits.eps / 2 * max(largest if cancels else sizes[name], limits.tiny)
            worst = max(worst, (float((value - right)[kept].abs().max()) / unit, name))
    return worst


def compare_block(block: nn.Module, arguments: _Arguments) -> dict[str, Any]:
    """The errors of eager and compiled against float64, or of compiled against eager where float64 fails."""
    row: dict[str, Any] = {}
    eager = run_block(copy.deepcopy(block), copy_arguments(arguments), lambda one: one)
    try:
        exact = run_block(copy.deepcopy(block).double(), copy_arguments(arguments, torch.float64), lambda one: one)
        row["eager"], row["eager_at"] = measure(eager, exact)
    except Exception as error:  # noqa: BLE001 - code that fixes its dtype
        exact, row["float64"] = eager, f"{type(error).__name__}: {error}"[:200]
    torch.compiler.reset()
    try:
        compiled = run_block(copy.deepcopy(block), copy_arguments(arguments), torch.compile)
        row["compiled"], row["compiled_at"] = measure(compiled, exact)
    except Exception as error:  # noqa: BLE001 - an answer too
        row["raised"] = f"{type(error).__name__}: {error}"[:200]
    return row


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="+")
    parser.add_argument("--run", action="append", default=[], help="as `list_runs` names it; default: all")
    options = parser.parse_args()
    warnings.filterwarnings("ignore")
    for name in options.names:
        try:
            runs = [run for run in list_runs(name) if not options.run or run in options.run]
            found = ((run, *captured) for run in runs for captured in capture_blocks(name, run))
            for run, path, block, arguments in found:
                row = {"model": name, "run": run, "block": path, "type": type(block).__name__}
                print(json.dumps({**row, **compare_block(block, arguments), "torch": torch.__version__}), flush=True)
        except ModelError as error:
            print(json.dumps({"model": name, "error": str(error)}), flush=True)


if __name__ == "__main__":
    main()
