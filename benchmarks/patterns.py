"""The attention patterns that this torch has, and which of them stand for others."""

import importlib
import inspect
from dataclasses import dataclass
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

from fuzz.check.torch_api.coverage import rewrite_name


@dataclass(frozen=True)
class Pattern:
    """An attention pattern of torch.

    `same_as`: the pattern registered first with the same graph; `after`: the pattern tried earlier whose forward graph
    covers this one; `refuses_cuda`: its check refuses CUDA.
    """

    name: str
    same_as: str = ""
    after: str = ""
    refuses_cuda: bool = False


def registered_patterns(device: str) -> list[Pattern]:
    """All attention patterns for `device`, in the order in which they are tried.

    Raises ImportError or AttributeError naming what is missing, in a torch that keeps them elsewhere.
    """
    where = torch.device(device)
    joint = importlib.import_module("torch._inductor.fx_passes.joint_graph")
    fuse = importlib.import_module("torch._inductor.fx_passes.fuse_attention")
    joint.lazy_init(where)
    registered = {rewrite_name(entry) for entries in joint.patterns.patterns.values() for entry in entries}
    earlier: dict[str, Any] = {}
    skipped: dict[str, str] = {}
    found = []
    with FakeTensorMode():
        listed = list(fuse._get_sfdp_patterns(where))  # noqa: SLF001 - there is no public one
    for name, how in listed:
        module = importlib.import_module(f"torch._inductor.fx_passes.serialized_patterns.{how['search_fn'].__name__}")
        graph = getattr(module, name)
        text = importlib.import_module("torch._inductor.pattern_matcher").PatternPrettyPrinter.run(graph)
        first = skipped.setdefault(text, name)
        after = next((other for other, before in earlier.items() if _covers(before, graph)), "")
        if name in registered:
            earlier[name] = graph
        found.append(
            Pattern(
                name,
                same_as="" if name in registered else first,
                after=after if name in registered else "",
                refuses_cuda=bool(inspect.getclosurevars(how["extra_check"]).nonlocals.get("disable_cuda")),
            )
        )
    return found


def _covers(general: Any, special: Any) -> bool:
    """Whether the graph of one pattern, forwards, is found wherever that of another is."""
    return _stands_for(_forward(general), _forward(special), {}, root=True)


def _forward(pattern: Any) -> Any:
    return pattern.outputs[0] if hasattr(pattern, "outputs") else pattern


def _stands_for(general: Any, special: Any, bound: dict[str, Any], *, root: bool = False) -> bool:
    kind = type(general).__name__
    if kind == "Ignored":
        return True
    if kind == "KeywordArg":
        # One name stands for one value, and a name for a name.
        key = f"name {special.name}" if type(special).__name__ == "KeywordArg" else id(special)
        return bool(bound.setdefault(general.name, key) == key)
    if not hasattr(general, "fns"):
        return type(general) is type(special) and bool(general == special)
    if type(general) is not type(special) or general.fns != special.fns or len(general.args) != len(special.args):
        return False
    if general.kwargs.keys() != special.kwargs.keys() or not (root or general.users == special.users):
        return False
    pairs = [*zip(general.args, special.args, strict=True)]
    pairs += [(value, special.kwargs[key]) for key, value in general.kwargs.items()]
    return all(_stands_for(one, other, bound) for one, other in pairs)
