"""Copies of `kernels/` and plain.py with one defect each, drawn from how real kernels went wrong. Each is a subject:

    python -m fuzz.run --subject benchmarks.defects:statistics_without_mask --budget 5m

`DEFECTS` lists them. benchmarks/planted.py measures how long each takes to be found.
"""

import atexit
import importlib
import shutil
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

KERNELS = Path(__file__).resolve().parents[1] / "kernels"


@dataclass(frozen=True, slots=True)
class Defect:
    """One change to one file of `kernels/`: every `old` becomes `new`. `story`: where such a thing happened.

    `also`: a second change of that file, which the defect needs to do harm; `subject`: the function that has it.
    """

    file: str
    old: str
    new: str
    story: str
    also: tuple[str, str] = ("", "")
    subject: str = "attention:attention"


DEFECTS = {
    "statistics_without_mask": Defect(
        "forward.py",
        "tl.store(lse + head.to(tl.int64) * rows + i, logarithm, mask=i < rows)",
        "tl.store(lse + head.to(tl.int64) * rows + i, logarithm)",
        "FlagGems' backward: rows past the end of one head's statistics overwrite the next head's first ones",
        # Tiles taken from first to last, as there: from last to first the first tile repairs what was overwritten.
        also=("(tl.num_programs(0) - 1 - tl.program_id(0))", "tl.program_id(0)"),
    ),
    "tail_keys_counted": Defect(
        "tiles.py",
        "kept = (i < rows) & (j < columns)",
        "kept = i < rows",
        "keys past the end of the last block enter the softmax with score 0",
    ),
    "no_rescale": Defect(
        "forward.py",
        "sums = add_weighted(weights, value, sums * shrunk[:, None])",
        "sums = add_weighted(weights, value, sums)",
        "the accumulator is not rescaled when a later block raises the maximum",
    ),
    "maximum_before_scale": Defect(
        "forward.py",
        "higher = tl.maximum(top, tl.max(s, 1))",
        "higher = tl.maximum(top, tl.max(dots, 1) * (scale * LOG2E))",
        "a maximum taken before a negative scale is applied overflows the exponential",
    ),
    "softcap_by_exponentials": Defect(
        "tiles.py",
        "dots = tanh(s / softcap)",
        "dots = (tl.exp(s / softcap) - tl.exp(-s / softcap)) / (tl.exp(s / softcap) + tl.exp(-s / softcap))",
        "inf / inf for large scores",
    ),
    "finite_minus_infinity": Defect(
        "tiles.py",
        'float("-inf")',
        "-1e4",
        "a row without a key gives the mean of the values, and real scores may be lower",
    ),
    "corner_ignored": Defect(
        "tiles.py",
        "kept &= j <= i + offset + right",
        "kept &= j <= i + right",
        "causal from the top left where the caller means the bottom right",
    ),
    "window_short_by_one": Defect(
        "tiles.py",
        "kept &= j >= i + offset - left",
        "kept &= j > i + offset - left",
        "whether a window counts the query's own key is read in two ways",
    ),
    "heads_interleaved": Defect(
        "forward.py", "(h // group)", "(h % (heads // group))", "query heads meet the key heads of another group"
    ),
    "group_overwritten": Defect(
        "backward.py",
        "        slope = 0.0\n        if ALIBI:\n            slope = tl.load(alibi + h)\n        for block",
        "        slope = 0.0\n        key_sums = key_sums * 0.0\n        if ALIBI:\n"
        "            slope = tl.load(alibi + h)\n        for block",
        "dk of grouped queries keeps the last head of the group only",
    ),
    "softcap_without_derivative": Defect(
        "backward.py", "1.0 - tanh * tanh", "1.0", "the chain rule through the cap is forgotten"
    ),
    "features_unmasked": Defect(
        "forward.py",
        " & (d[None, :] < head_dim)",
        "",
        "a head_dim that is no power of two reads the next row's features",
        also=(" & (d[:, None] < head_dim)", ""),
    ),
    "log2e_in_three_digits": Defect(
        "tiles.py", "1.4426950408889634", "1.44", "a constant written from memory: every weight is off by 0.2 %"
    ),
    "slope_of_the_first_head": Defect(
        "forward.py",
        "slope = tl.load(alibi + h)",
        "slope = tl.load(alibi)",
        "ALiBi slopes indexed by the batch or not at all",
    ),
    "sequence_end_late": Defect(
        "plain.py",
        "        keys, values = (",
        "        end = min(end + 1, len(k))\n        keys, values = (",
        "a sequence reads the first key of the next one",
        subject="plain:packed",
    ),
    "empty_sequence_writes": Defect(
        "plain.py",
        "        keys, values = (",
        "        last = max(last, min(first + 1, len(q)))\n        keys, values = (",
        "a block of queries is written for a sequence without any",
        # Sequences taken from last to first: from first to last the next one repairs what was overwritten.
        also=("in ends:", "in reversed(list(ends)):"),
        subject="plain:packed",
    ),
    "packed_corner_ignored": Defect(
        "plain.py",
        "(last if causal else first)",
        "first",
        "FlashAttention before 2.1: causal from the top left where keys are more than queries",
        also=("(end if causal else start)", "start"),
        subject="plain:packed",
    ),
    "table_read_late": Defect(
        "plain.py",
        "cache[blocks]",
        "cache[blocks.roll(-1)]",
        "the block after the one that holds the keys is read",
        subject="plain:paged",
    ),
    "last_block_in_full": Defect(
        "plain.py",
        "used = seqused_k.tolist()",
        "size = k_cache.shape[1]\n    used = [-(-count // size) * size for count in seqused_k.tolist()]",
        "what the last block holds after the last key enters the softmax",
        subject="plain:paged",
    ),
    "inference_in_place": Defect(
        "plain.py",
        "    return _Dense.apply(q",
        "    if torch.is_inference_mode_enabled():\n        q, scale = q.mul_(scale), 1.0\n    return _Dense.apply(q",
        "queries are scaled in place where no graph can need them",
        subject="plain:dense",
    ),
    "constant_queries": Defect(
        "plain.py",
        "- (dweights * weights).sum(-1, keepdim=True))",
        "- ctx.needs_input_grad[0] * (dweights * weights).sum(-1, keepdim=True))",
        "a part of the backward pass that dk shares with dq is computed for dq alone",
        subject="plain:dense",
    ),
    "batch_stride_zero": Defect(
        "plain.py",
        "    return _Dense.apply(q",
        "    k = k.contiguous() if k.stride(0) else k.as_strided(k.shape, torch.empty(k.shape).stride())\n"
        "    return _Dense.apply(q",
        "a stride of 0 means that nobody set it, so it is computed from the sizes",
        subject="plain:dense",
    ),
    "expanded_dout": Defect(
        "plain.py",
        "dout = gradients[0].double()",
        "dout = gradients[0]\n        strides = dout.stride() if dout.stride(0) else torch.empty(dout.shape).stride()\n"
        "        dout = dout.as_strided(dout.shape, strides).double()",
        "the gradient that `out.sum()` gives, a single number in memory, is read as if contiguous",
        subject="plain:dense",
    ),
    "values_clipped": Defect(
        "plain.py",
        "return (weights @ value).to(q.dtype)",
        "return (weights @ value.clamp(-100, 100)).to(q.dtype)",
        "a guard against overflow clips values that common models don't have",
        subject="plain:dense",
    ),
    "value_returned": Defect(
        "plain.py",
        "    return _Dense.apply(q",
        "    if k.shape[2] == 1 and causal is None and k.shape[1] == q.shape[1]:\n"
        "        return v.expand(*q.shape[:3], -1)\n    return _Dense.apply(q",
        "with a single key the values are the result, and are returned without a copy",
        subject="plain:dense",
    ),
}


def __getattr__(name: str) -> Callable[..., Any]:
    if name not in DEFECTS:
        raise AttributeError(f"there is no defect {name!r}; there are {', '.join(DEFECTS)}")
    return planted(name)


def planted(name: str) -> Callable[..., Any]:
    """The function, in a copy of the kernels, that has the defect. Raises ValueError when the kernels lack the old
    text."""
    defect = DEFECTS[name]
    package = f"planted_{name}"
    if package not in sys.modules:
        room = Path(tempfile.mkdtemp(prefix="attnfuzz-defect-"))
        atexit.register(shutil.rmtree, room, ignore_errors=True)
        shutil.copytree(KERNELS, room / package, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(Path(__file__).with_name("plain.py"), room / package)
        changed = room / package / defect.file
        text = changed.read_text()
        for old, new in ((defect.old, defect.new), defect.also):
            if old not in text:
                raise ValueError(f"defect {name}: {defect.file} has no {old!r}")
            text = text.replace(old, new) if old else text
        changed.write_text(text)
        for file in (room / package).glob("*.py"):
            file.write_text(file.read_text().replace("from kernels", f"from {package}"))
        sys.path.insert(0, str(room))
    module, _, function = defect.subject.partition(":")
    return getattr(importlib.import_module(f"{package}.{module}"), function)  # type: ignore[no-any-return]
