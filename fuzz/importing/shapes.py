"""Reads views, splits, joins and indices."""

from typing import Any

from fuzz.importing.call import ImportedCall, Reader, TensorNumber, freeze
from fuzz.importing.program import Untranslatable
from fuzz.importing.signatures import HARMLESS
from generators.program.case import Attr


def _list_numbers(call: ImportedCall) -> list[str]:
    """Reads sizes or axes that follow the tensor as a list or one by one; `view` also takes a dtype."""
    first, *rest = [*call.args, *(v for k, v in call.kwargs.items() if k not in HARMLESS)]
    rest = rest[0] if len(rest) == 1 and isinstance(rest[0], list) else rest
    if call.function == "view" and len(rest) == 1 and isinstance(rest[0], dict) and "dtype" in rest[0]:
        return [call.emit("view_dtype", [call.tensor(first)], dtype=rest[0]["dtype"])]
    name = "dims" if call.function in ("permute", "flip") else "sizes"
    if not all(isinstance(item, int) for item in rest):
        raise Untranslatable(f"{name} {rest}")
    kind = "expand" if call.function == "broadcast_to" else call.function
    return [call.emit(kind, [call.tensor(first)], **{name: tuple(rest)})]


def _view_as(call: ImportedCall) -> list[str]:
    given = call.bind("input", "other")
    kind = call.function.removesuffix("_as")
    return [call.emit(kind, [call.tensor(given["input"])], sizes=call.type(given["other"]).shape)]


def _move(call: ImportedCall) -> list[str]:
    given = call.bind("input", "source", "destination")
    rank = call.type(given["input"]).rank
    source, target = (
        given[name] if isinstance(given[name], list) else [given[name]] for name in ("source", "destination")
    )
    places = {t % rank: s % rank for s, t in zip(source, target, strict=True)}
    rest = iter(axis for axis in range(rank) if axis not in places.values())
    dims = tuple(places[axis] if axis in places else next(rest) for axis in range(rank))
    return [call.emit("permute", [call.tensor(given["input"])], dims=dims)]


def _turn(call: ImportedCall) -> list[str]:
    """The matrix transposed; of a vector `t` gives the vector."""
    tensor = call.tensor(call.args[0])
    if call.program.types[tensor].rank == 2:
        return [call.emit("transpose", [tensor], form=call.function)]
    return [call.emit("permute", [tensor], dims=tuple(reversed(range(call.program.types[tensor].rank))))]


def _squeeze(call: ImportedCall) -> list[str]:
    given = call.bind("input", "dim")
    tensor, shape = call.tensor(given["input"]), call.type(given["input"]).sizes({})
    dims = given["dim"] if isinstance(given["dim"], list) else [given["dim"]]
    if given["dim"] is None:
        dims = [axis for axis, size in enumerate(shape) if size == 1]
    for axis in sorted((dim % len(shape) for dim in dims), reverse=True):
        if shape[axis] == 1:
            tensor = call.emit("squeeze", [tensor], dim=axis)
    return [tensor]


def _split(call: ImportedCall) -> list[str]:
    """The parts, each an operation. Parts of one size are chunks."""
    given = call.bind("input", "size", "dim")
    tensor, dim = call.tensor(given["input"]), given["dim"] or 0
    if call.function == "unbind":
        dim = given["size"] if given["size"] is not None else dim
        return [call.emit("unbind", [tensor], dim=dim, index=i) for i in range(len(call.record.results))]
    results = range(len(call.record.results))
    lengths = [call.program.recorded.tensors[number].shape[dim] for number in call.record.results]
    if call.function == "chunk" and len(set(lengths)) == 1 and given["size"] == len(lengths):
        return [call.emit("chunk", [tensor], chunks=len(lengths), dim=dim, index=index) for index in results]
    sizes: dict[str, Attr] = {"size": given["size"]}
    if call.function in ("chunk", "tensor_split") or isinstance(given["size"], list):
        sizes = {"sizes": tuple(lengths)}
    return [call.emit("split", [tensor], **sizes, dim=dim, index=index) for index in results]


def _narrow(call: ImportedCall) -> list[str]:
    given = call.bind("input", "dim", "start", "length")
    stop = given["start"] + given["length"]
    return [call.emit("narrow", [call.tensor(given["input"])], dim=given["dim"], start=given["start"], stop=stop)]


def _join(call: ImportedCall) -> list[str]:
    given = call.bind("tensors", "dim")
    names = [call.tensor(item) for item in given["tensors"]]
    dim = given["dim"] or 0
    kind = "stack" if call.function == "stack" else "cat"
    if kind == "cat":  # which skips empty vectors
        names = [name for name in names if call.program.types[name].sizes({}) != (0,)] or names[:1]
    return [call.emit(kind, names, dim=dim)]


def _repeat_interleave(call: ImportedCall) -> list[str]:
    given = call.bind("input", "repeats", "dim", "output_size")
    tensor, dim = call.tensor(given["input"]), given["dim"]
    if dim is None and call.type(given["input"]).rank != 1:
        tensor = call.emit("flatten", [tensor])
    several = given["repeats"] if isinstance(given["repeats"], list) else [given["repeats"]]
    if len({*several}) == 1:
        return [call.emit("repeat_interleave", [tensor], repeats=several[0], dim=dim or 0)]
    places = call.emit("numbers", [], values=tuple(i for i, times in enumerate(several) for _ in range(times)))
    return [call.emit("index_select", [tensor, places], dim=dim or 0)]


def _broadcast(call: ImportedCall) -> list[str]:
    tensors = map(call.tensor, call.args[0] if isinstance(call.args[0], list) else call.args)
    if not call.result.shape:
        return [call.emit("to_own_dtype", [tensor]) for tensor in tensors]
    return [call.emit("expand", [tensor], sizes=call.result.shape) for tensor in tensors]


def _grid(call: ImportedCall) -> list[str]:
    """The axes of a grid, each an operation."""
    tensors = call.args[0] if isinstance(call.args[0], list) else call.args
    names, indexing = [call.tensor(item) for item in tensors], call.kwargs.get("indexing", "ij")
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
    tensor, views = _read_index(call, call.args[0], call.args[1])
    indexed = [attrs for kind, attrs in views if kind == "index"]
    tensor = _view(call, tensor, views)
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


def _view(call: ImportedCall, tensor: str, views: Views) -> str:
    """The tensor under all views but indices. Raises `Untranslatable` for indices that are not read."""
    places = [attrs["dim"] for kind, attrs in views if kind == "index"]
    if places != list(range(min(places, default=0), min(places, default=0) + len(places))):
        raise Untranslatable("tensors as indices of axes that are apart")
    for kind, attrs in views:
        if kind != "index":
            tensor = call.emit(kind, [tensor], **attrs)
    return tensor


def _set_item(call: ImportedCall) -> list[str]:
    target, index, value = call.args
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
        part, by = _view(call, tensor, views), [attrs["by"] for attrs in indexed]
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
    **dict.fromkeys(("view", "reshape", "expand", "broadcast_to", "repeat", "tile", "permute", "flip"), _list_numbers),
    **dict.fromkeys(("view_as", "reshape_as"), _view_as),
    **dict.fromkeys(("movedim", "moveaxis"), _move),
    **dict.fromkeys(("t", "T"), _turn),
    **dict.fromkeys(("chunk", "split", "split_with_sizes", "tensor_split", "unbind"), _split),
    **dict.fromkeys(("cat", "concat", "stack"), _join),
    "meshgrid": _grid,
    "broadcast_tensors": _broadcast,
    "squeeze": _squeeze,
    "narrow": _narrow,
    "repeat_interleave": _repeat_interleave,
    "__getitem__": _get_item,
    "__setitem__": _set_item,
}
"""By the last part of the function's name."""
