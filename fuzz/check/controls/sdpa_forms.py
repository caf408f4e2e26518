"""Other ways to compute what replacements of attention compute with F.scaled_dot_product_attention."""

import functools
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from fuzz.check.torch_internals import wrap


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
