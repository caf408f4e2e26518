"""Parts of Inductor switched off, changed or watched. A torch that lacks one raises `SubjectError` on entering."""

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch

from fuzz.check.coverage import rewrite_name
from fuzz.check.pattern_constants import Unlike, find_differences
from fuzz.check.torch_internals import wrap
from fuzz.protocol.controls import PatternMatched
from fuzz.protocol.rewrites import WrongRewrite


def refuse_matches(refuses: Callable[[Any, Any], bool]) -> AbstractContextManager[None]:
    """While entered, the pattern matcher of every pass skips a match where `refuses(entry, match)`."""

    def make(apply: Any) -> Any:
        def apply_refusing(self: Any, graph: Any) -> Any:
            entries = {id(entry): entry for listed in self.patterns.values() for entry in listed}
            checks = [(entry, entry.extra_check) for entry in entries.values()]
            for entry, check in checks:
                entry.extra_check = lambda match, entry=entry, check=check: not refuses(entry, match) and check(match)
            try:
                return apply(self, graph)
            finally:
                for entry, check in checks:
                    entry.extra_check = check

        return apply_refusing

    return wrap("torch._inductor.pattern_matcher", "PatternMatcherPass.apply", make)


def disable_rewrites(is_off: Callable[[str], bool]) -> AbstractContextManager[None]:
    """While entered, rewrites do not fire where `is_off(name)`."""
    return refuse_matches(lambda entry, _: is_off(rewrite_name(entry)))


def record_matches(record: Callable[[PatternMatched], None]) -> AbstractContextManager[None]:
    """While entered, records every match of a pattern of attention; changes nothing."""

    def refuses(entry: Any, match: Any) -> bool:
        name = rewrite_name(entry)
        if "sfdp" in name:
            values = {key: getattr(value, "meta", {}).get("val") for key, value in match.kwargs.items()}
            ranks = {key: value.dim() for key, value in values.items() if isinstance(value, torch.Tensor)}
            record(PatternMatched(name, ranks))
        return False

    return refuse_matches(refuses)


def compare_constants(record: Callable[[WrongRewrite], None] = lambda _: None) -> AbstractContextManager[None]:
    """While entered, no pattern of attention takes a program with other constants than its own; `record` is called with
    each that would."""

    def refuses(entry: Any, match: Any) -> bool:
        if "sfdp" not in rewrite_name(entry):
            return False
        outputs = {index: node for index, node in enumerate(match.output_nodes()) if node is not None}
        operands = {name: getattr(value, "meta", {}).get("val", value) for name, value in match.kwargs.items()}
        try:
            constants = tuple(find_differences(entry, operands, [*outputs], [*outputs.values()]))
        except Unlike:
            return False
        if constants:
            record(WrongRewrite(rewrite_name(entry), constants=constants))
        return bool(constants)

    return refuse_matches(refuses)


def fall_back_to_eager(operation: str) -> AbstractContextManager[None]:
    """While entered, calls of that operation ("relu") are not lowered: the compiled program calls eager's."""

    def make(original: Any) -> Any:
        def is_left_to_eager(node: Any, *args: Any, **options: Any) -> Any:
            packet = getattr(node.target, "overloadpacket", None)
            return str(packet).rpartition(".")[2] == operation or original(node, *args, **options)

        return is_left_to_eager

    return wrap("torch._inductor.graph", "fallback_node_due_to_unsupported_type", make)


@contextmanager
def keep_operations_apart() -> Iterator[None]:
    """While entered, every operation is a kernel of its own. Raises `SubjectError`."""

    def make(run_node: Any) -> Any:
        def run_and_realize(self: Any, node: Any) -> Any:
            result = run_node(self, node)
            # A view of another operation's memory has none.
            if type(getattr(result, "data", None)).__name__ == "StorageBox":
                result.realize()
            return result

        return run_and_realize

    def make_codegen(codegen_node: Any) -> Any:
        def codegen_and_flush(self: Any, node: Any) -> Any:
            result = codegen_node(self, node)
            self.flush()  # C++ loops that follow each other are one function
            return result

        return codegen_and_flush

    with (
        wrap("torch._inductor.scheduler", "Scheduler.can_fuse", lambda _: lambda *_args, **_options: False),
        wrap("torch._inductor.codegen.cpp", "CppScheduling.codegen_node", make_codegen),
        wrap("torch._inductor.graph", "GraphLowering.run_node", make),
    ):
        yield


def replace_sdpa(form: str) -> AbstractContextManager[None]:
    """While entered, replacements of attention compute `FORMS[form](sdpa, q, k, v, **options)` where they would call
    sdpa. Raises `SubjectError` where this torch calls it in another way."""
    name = "_scaled_dot_product_attention"
    return wrap("torch._inductor.fx_passes.fuse_attention", name, lambda sdpa: functools.partial(FORMS[form], sdpa))


def _shape(*shapes: Any) -> tuple[Any, ...]:
    return tuple(torch.broadcast_shapes(*shapes))


def mask_expanded(sdpa: Any, q: Any, k: Any, v: Any, *, attn_mask: Any = None, **options: Any) -> Any:
    """The mask is given the shape of the scores."""
    if attn_mask is not None:
        shape = (*_shape(q.shape[:-2], k.shape[:-2]), q.shape[-2], k.shape[-2])
        attn_mask = attn_mask.expand(_shape(attn_mask.shape, shape))
    return sdpa(q, k, v, attn_mask=attn_mask, **options)


def scale_as_tensor(sdpa: Any, q: Any, k: Any, v: Any, *, scale: Any = None, **options: Any) -> Any:
    """A scale that is a tensor is multiplied with the query: the fused call takes numbers alone."""
    if isinstance(scale, torch.Tensor):
        q, scale = (q * scale).to(q.dtype), 1.0
    return sdpa(q, k, v, scale=scale, **options)


def operands_copied(sdpa: Any, q: Any, k: Any, v: Any, **options: Any) -> Any:
    """Query, key and value are copied into contiguous memory first."""
    copies = (x.clone(memory_format=torch.contiguous_format) for x in (q, k, v))
    return sdpa(*copies, **options)


FORMS: dict[str, Callable[..., Any]] = {
    form.__name__: form for form in (mask_expanded, scale_as_tensor, operands_copied)
}
