"""Operations whose results torch leaves open, and a mode that gives another result that it permits."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from fuzz.check.judge.operations import OperationMode, bind, names, take

CallArguments = dict[str, Any]
OrderGenerator = torch.Generator | None
"""Draws an order; None: the reversed order."""
Rearrange = Callable[[CallArguments, OrderGenerator], CallArguments]
"""The arguments that change for another order, from all arguments; empty if the arguments leave no order open."""


@dataclass(frozen=True)
class Open:
    """A property of operations that torch leaves open."""

    operations: frozenset[str]
    """Their names in graphs, without underscores around."""
    what: str
    """`ties`: the places of equal elements. `writes`: which of several writes into one place is the last. `sums`: the
    order in which terms are added, which only rounds."""
    sentence: str
    """As the documentation says."""
    source: str
    rearrange: Rearrange | None = None


def _order(count: int, like: Tensor, draw: OrderGenerator) -> Tensor:
    if draw is None:
        return torch.arange(count - 1, -1, -1, device=like.device)
    return torch.randperm(count, generator=draw).to(like.device)


def _rearrange_ties(given: CallArguments, draw: OrderGenerator) -> CallArguments:
    values: Tensor = given["self"]
    if not values.dim() or given.get("stable"):
        return {}
    axis = given.get("dim", -1)
    if draw is None:
        backwards = _order(values.shape[axis], values, draw)
        order = backwards.view(*(-1 if at == axis % values.dim() else 1 for at in range(values.dim()))).expand_as(
            values
        )
    else:
        order = torch.rand(values.shape, generator=draw).argsort(axis).to(values.device)
    return {"self": values.gather(axis, order), "order": order}


def _rearrange_rows(given: CallArguments, draw: OrderGenerator) -> CallArguments:
    """Of `index_copy`, and of `put`, which has no axis: its index and source count as flat."""
    index, source = (one if "dim" in given else one.flatten() for one in (given["index"], given["source"]))
    if given.get("accumulate") or not index.dim() or not _repeats(index):
        return {}
    order = _order(index.numel(), index, draw)
    return {"index": index[order], "source": source.index_select(given.get("dim", 0), order)}


def _rearrange_puts(given: CallArguments, draw: OrderGenerator) -> CallArguments:
    if given.get("accumulate") or any(index is None or index.dtype is torch.bool for index in given["indices"]):
        return {}
    places = torch.broadcast_tensors(*given["indices"])
    if not places[0].dim() or not _repeats(torch.stack([one.flatten() for one in places], -1)):
        return {}
    written = given["self"].shape[len(places) :]
    values = given["values"].expand(*places[0].shape, *written).flatten(0, places[0].dim() - 1)
    order = _order(places[0].numel(), places[0], draw)
    return {"indices": [one.flatten()[order] for one in places], "values": values[order]}


def _rearrange_scattered(given: CallArguments, draw: OrderGenerator) -> CallArguments:
    index, source = given["index"], given.get("src")
    if not isinstance(source, Tensor) or given.get("reduce") or not index.dim() or not index.numel():
        return {}
    axis = given["dim"]
    ordered = index.sort(axis).values
    if not bool((ordered.diff(dim=axis) == 0).any()):
        return {}
    order = _order(index.size(axis), index, draw)
    part = source[tuple(slice(size) for size in index.shape)]
    return {"index": index.index_select(axis, order), "src": part.index_select(axis, order)}


def _repeats(places: Tensor) -> bool:
    return bool(places.numel()) and len(places.unique(dim=0)) < len(places)


_PAGE = "https://docs.pytorch.org/docs/stable/generated/torch."


OPEN = (
    Open(
        names("sort"),
        "ties",
        "If False, the relative order of values which compare equal is not guaranteed.",
        f"{_PAGE}argsort.html",
        _rearrange_ties,
    ),
    Open(
        names("topk"),
        "ties",
        "the indices of tied elements are not guaranteed to be stable and may vary across different invocations.",
        f"{_PAGE}topk.html",
        _rearrange_ties,
    ),
    Open(
        names("index_copy"),
        "writes",
        "If index contains duplicate entries, multiple elements from tensor will be copied to the same index of self. "
        "The result is nondeterministic since it depends on which copy occurs last.",
        f"{_PAGE}Tensor.index_copy_.html",
        _rearrange_rows,
    ),
    Open(
        names("index_put unsafe_index_put index_put_impl"),
        "writes",
        "If accumulate is False, the behavior is undefined if indices contain duplicate elements.",
        f"{_PAGE}Tensor.index_put_.html",
        _rearrange_puts,
    ),
    Open(
        names("put"),
        "writes",
        "If accumulate is False, the behavior is undefined if index contain duplicate elements.",
        f"{_PAGE}Tensor.put_.html",
        _rearrange_rows,
    ),
    Open(
        names("scatter"),
        "writes",
        "When indices are not unique, the behavior is non-deterministic (one of the values from src will be picked "
        "arbitrarily)",
        f"{_PAGE}Tensor.scatter_.html",
        _rearrange_scattered,
    ),
    Open(
        names("kthvalue"),
        "ties",
        "When input is a CUDA tensor and there are multiple valid k th values, this function may nondeterministically "
        "return indices for any of them.",
        f"{_PAGE}kthvalue.html",
        _rearrange_ties,
    ),
    Open(
        names("median"),
        "ties",
        "indices does not necessarily contain the first occurrence of each median value found, unless it is unique.",
        f"{_PAGE}median.html",
        _rearrange_ties,
    ),
    Open(
        names("convolution convolution_backward index_add scatter_add scatter_reduce"),
        "sums",
        "The following normally-nondeterministic operations will act deterministically when mode=True",
        f"{_PAGE}use_deterministic_algorithms.html",
    ),
)
"""Defined, so that no row names them: the places of equal elements in `argmax`, `argmin`, `max` and `min`, "the indices
of the first maximal value are returned". Not in this table: sums of which torch warns in deterministic mode, such as
`cumsum` and `histc` on CUDA (`doubt.is_documented`)."""
_ROWS = {name: row for row in OPEN for name in row.operations}
HAVE_ANOTHER_ALGORITHM = frozenset(name for name, row in _ROWS.items() if row.what in ("writes", "sums"))
"""Operations with another algorithm in deterministic mode, by their names in graphs without underscores around."""


def find_open(func: Any) -> Open | None:
    """The row of an operation that can run in another order."""
    row = _ROWS.get(func.overloadpacket.__name__.strip("_"))
    return row if row is not None and row.rearrange is not None else None


def run_in_another_order(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any], draw: OrderGenerator) -> Any:
    """The result in another order; None if the arguments leave no order open.

    Which of several writes comes last is drawn for each element: on CUDA, each is a race of its own.
    """
    row, given = find_open(func), bind(func, args, kwargs)
    # `median` and the like without an axis return no places.
    if row is None or row.rearrange is None or (row.what == "ties" and len(func._schema.returns) < 2):
        return None
    if row.what == "ties":
        return _run_with_ties(func, given, row.rearrange(given, draw))
    before = given["self"].clone()
    results = []
    for _ in range(1 if draw is None else 2):
        changed = row.rearrange(given, draw)
        if not changed:
            return None
        if func._schema.is_mutable:
            given["self"].copy_(before)
        result = func(**given | changed)
        results.append(result.clone())
    if draw is not None:
        result.copy_(torch.where(torch.rand(result.shape, generator=draw).to(result.device) < 0.5, *results))
    return result


def _run_with_ties(func: Any, given: CallArguments, changed: CallArguments) -> Any:
    if not changed:
        return None
    order, axis = changed.pop("order"), given.get("dim", -1)
    values, places = func(**given | changed)
    return values, take(order, axis, places)


class AnotherOrder(OperationMode):
    """Runs the operations of `OPEN` in another order: 0 reverses it, other numbers draw it.

    `met`: whether there was an operation whose arguments leave an order open.
    """

    def __init__(self, number: int) -> None:
        super().__init__()
        self._draw = torch.Generator().manual_seed(number) if number else None
        self.met = False

    def _run(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        result = run_in_another_order(func, args, kwargs, self._draw) if find_open(func) is not None else None
        self.met |= result is not None
        return func(*args, **kwargs) if result is None else result
