"""Reads views, splits, joins and indices."""

from typing import Any

from fuzz.importing.call import ImportedCall, Reader, TensorNumber, freeze
from fuzz.importing.program import Untranslatable
from generators.program.case import Attr


def _view_as(call: ImportedCall) -> list[str]:
    kind = call.function.removesuffix("_as")
    return [call.emit(kind, [call.take_tensor()], sizes=call.type(call.take("other")).shape)]


def _move(call: ImportedCall) -> list[str]:
    tensor, *ends = map(call.take, ("input", "source", "destination"))
    rank = call.type(tensor).rank
    source, target = (end if isinstance(end, list) else [end] for end in ends)
    places = {t % rank: s % rank for s, t in zip(source, target, strict=True)}
    rest = iter(axis for axis in range(rank) if axis not in places.values())
    dims = tuple(places[axis] if axis in places else next(rest) for axis in range(rank))
    return [call.emit("permute", [call.tensor(tensor)], dims=dims)]


def _turn(call: ImportedCall) -> list[str]:
    """The matrix transposed; of a vector `t` gives the vector."""
    tensor = call.take_tensor()
    if call.program.types[tensor].rank == 2:
        return [call.emit("transpose", [tensor], form=call.function)]
    return [call.emit("permute", [tensor], dims=tuple(reversed(range(call.program.types[tensor].rank))))]


def _squeeze(call: ImportedCall) -> list[str]:
    tensor, given = call.take_tensor(), call.take("dim")
    shape = call.program.types[tensor].sizes({})
    dims = given if isinstance(given, list) else range(len(shape)) if given is None else [given]
    for axis in sorted((dim % len(shape) for dim in dims), reverse=True):
        if shape[axis] == 1:
            tensor = call.emit("squeeze", [tensor], dim=axis)
    return [tensor]


def _split(call: ImportedCall) -> list[str]:
    """The parts, each an operation. Parts of one size are chunks."""
    dim, (tensor, *given) = call.take("dim"), call.take_rest()
    results, args = call.record.results, [call.tensor(tensor)]
    lengths = [call.program.recorded.tensors[number].shape[dim] for number in results if call.function != "unbind"]
    attrs: dict[str, Attr] = {"sizes": tuple(lengths)}
    kind = "split"
    if call.function == "unbind":
        kind, attrs = "unbind", {}
    elif call.function == "chunk" and len(set(lengths)) == 1 and given == [len(lengths)]:
        kind, attrs = "chunk", {"chunks": len(lengths)}
    elif call.function not in ("chunk", "tensor_split") and not isinstance(given[0], list):
        attrs = {"size": given[0]}
    return [call.emit(kind, args, **attrs, dim=dim, index=index) for index in range(len(results))]


def _join(call: ImportedCall) -> list[str]:
    names = [call.tensor(item) for item in call.take("tensors")]
    kind = "stack" if call.function == "stack" else "cat"
    if kind == "cat":  # which skips empty vectors
        names = [name for name in names if call.program.types[name].sizes({}) != (0,)] or names[:1]
    return [call.emit(kind, names, dim=call.take("dim"))]


def _repeat_interleave(call: ImportedCall) -> list[str]:
    tensor, repeats, dim = call.take_tensor(), call.take("repeats"), call.take("dim")
    call.take("output_size")
    if dim is None and call.program.types[tensor].rank != 1:
        tensor = call.emit("flatten", [tensor])
    several = repeats if isinstance(repeats, list) else [repeats]
    if len({*several}) == 1:
        return [call.emit("repeat_interleave", [tensor], repeats=several[0], dim=dim or 0)]
    places = call.emit("numbers", [], values=tuple(i for i, times in enumerate(several) for _ in range(times)))
    return [call.emit("index_select", [tensor, places], dim=dim or 0)]


def _list_tensors(call: ImportedCall) -> list[str]:
    """The tensors that a function takes one by one, or as a list."""
    tensors = call.take("tensors")
    return [call.tensor(item) for item in (tensors[0] if isinstance(tensors[0], list) else tensors)]


def _broadcast(call: ImportedCall) -> list[str]:
    names = _list_tensors(call)
    if not call.result.shape:
        return [call.emit("to_own_dtype", [name]) for name in names]
    return [call.emit("expand", [name], sizes=call.result.shape) for name in names]


def _grid(call: ImportedCall) -> list[str]:
    """The axes of a grid, each an operation."""
    names, indexing = _list_tensors(call), call.take("indexing") or "ij"
    axes = enumerate(names)
    return [call.emit("meshgrid", [x, *names[:i], *names[i + 1 :]], index=i, indexing=indexing) for i, x in axes]


Views = list[tuple[str, dict[str, Any]]]


def _read_index(call: ImportedCall, value: Any, index: Any) -> tuple[str, Views]:
    """The tensor, and the views that an index of numbers, slices, None and an ellipsis is made of."""
    tensor, sizes = call.tensor(value), list(call.type(value).sizes({}))
    axis, views = 0, Views()
    for part in _write_ellipsis_out(index, len(sizes)):
        if part is None:
            views.append(("unsqueeze", {"dim": axis}))
            sizes.insert(axis, 1)
            axis += 1
        elif isinstance(part, bool):
            raise Untranslatable("a truth value as index")
        elif isinstance(part, int):
            views.append(("select", {"dim": axis, "index": part % max(1, sizes[axis])}))
            del sizes[axis]
        elif isinstance(part, dict) and "slice" in part:
            start, stop, step = slice(*part["slice"]).indices(sizes[axis])
            if (start, stop, step) != (0, sizes[axis], 1):
                views.append(("narrow", {"dim": axis, "start": start, "stop": max(start, stop), "step": step}))
                sizes[axis] = len(range(start, stop, step))
            axis += 1
        else:
            views.append(("index", {"dim": axis, "by": _read_places(call, part)}))
            axis += 1
    return tensor, views


def _write_ellipsis_out(index: Any, rank: int) -> list[Any]:
    """The parts of an index with whole slices in place of its ellipsis, or at its end."""
    parts = index if isinstance(index, list) else [index]
    place = next((i for i, part in enumerate(parts) if isinstance(part, dict) and "ellipsis" in part), len(parts))
    before, after = parts[:place], parts[place + 1 :]
    used = sum(part is not None for part in (*before, *after))
    return [*before, *[{"slice": [None, None, None]}] * (rank - used), *after]


def _get_item(call: ImportedCall) -> list[str]:
    tensor, views = _read_index(call, *call.take_rest())
    indexed = [attrs for kind, attrs in views if kind == "index"]
    tensor = _emit_views(call, tensor, views)
    if indexed:
        # `dim` counts axes after the views are applied.
        tensor = call.emit("index", [tensor, *(attrs["by"] for attrs in indexed)], dim=indexed[0]["dim"])
    return [tensor if views else call.emit("view", [tensor], sizes=call.program.types[tensor].shape)]


def _read_places(call: ImportedCall, part: Any) -> str:
    """The tensor of indices along an axis."""
    if isinstance(part, dict) and "list" in part:
        return call.emit("numbers", [], values=freeze(part["list"]))
    if not isinstance(part, TensorNumber) or call.type(part).dtype == "bool":
        raise Untranslatable("a mask as index")
    return call.tensor(part)


def _emit_views(call: ImportedCall, tensor: str, views: Views) -> str:
    """The tensor under all views but indices. Raises `Untranslatable` for indices that are not read."""
    places = [attrs["dim"] for kind, attrs in views if kind == "index"]
    if places != list(range(min(places, default=0), min(places, default=0) + len(places))):
        raise Untranslatable("tensors as indices of axes that are apart")
    for kind, attrs in views:
        if kind != "index":
            tensor = call.emit(kind, [tensor], **attrs)
    return tensor


def _set_item(call: ImportedCall) -> list[str]:
    target, index, value = call.take_rest()
    value = int(value) if isinstance(value, bool) else freeze(value) if not isinstance(value, TensorNumber) else value
    number: dict[str, Attr] = {} if isinstance(value, TensorNumber) else {"other": value}
    written = [call.tensor(value)] if isinstance(value, TensorNumber) else []
    if isinstance(index, TensorNumber) and call.type(index).dtype == "bool" and number:
        mask, fill = call.tensor(index), call.number(number["other"], call.type(target))
        for _ in range(call.type(target).rank - call.type(index).rank):
            mask = call.emit("unsqueeze", [mask], dim=-1)
        return [call.emit("masked_fill_", [call.tensor(target), mask], value=fill)]
    tensor, views = _read_index(call, target, index)
    if not views:
        return [
            call.emit("copy_", [tensor, *written]) if written else call.emit("fill_", [tensor], value=number["other"])
        ]
    indexed = [attrs for kind, attrs in views if kind == "index"]
    if indexed:
        part, by = _emit_views(call, tensor, views), [attrs["by"] for attrs in indexed]
        made = call.emit("index_put_", [part, *by, *written], dim=indexed[0]["dim"], form="item", **number)
        return [made if part == tensor else tensor]
    *outer, (kind, attrs) = views
    if kind == "unsqueeze":
        raise Untranslatable("a new axis in an index")
    part = tensor
    for view, options in outer:
        part = call.emit(view, [part], **options)
    result = call.emit({"narrow": "set_slice", "select": "set_select"}[kind], [part, *written], **attrs, **number)
    return [tensor if outer else result]


READERS: dict[str, Reader] = {
    "view": lambda call: call.read(kind="view_dtype" if "dtype" in call.given else "view"),
    "diagonal": lambda call: call.read(dim0=call.take("dim1"), dim1=call.take("dim2")),
    **dict.fromkeys(("view_as", "reshape_as"), _view_as),
    **dict.fromkeys(("movedim", "moveaxis"), _move),
    **dict.fromkeys(("t", "T"), _turn),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "tensor_split", "unbind"), _split),
    **dict.fromkeys(("cat", "concat", "stack"), _join),
    "meshgrid": _grid,
    "broadcast_tensors": _broadcast,
    "squeeze": _squeeze,
    "narrow": lambda call: call.read(stop=call.given["start"] + call.take("length")),
    "repeat_interleave": _repeat_interleave,
    "__getitem__": _get_item,
    "__setitem__": _set_item,
}
"""By the last part of the function's name."""
