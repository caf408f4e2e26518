"""The rules for shapes and dtypes of results that several operations share."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from generators.errors import require
from generators.program.case import TensorType
from generators.program.ops.spec import Operands, ShapeRule
from generators.program.sizes import Size, quotient, show
from generators.program.values import INTEGERS, RANGES, category, promote
from generators.reasons import Reason


def given_dtype(call: Operands) -> str:
    return str(call.attrs["dtype"])


def own_or_given_dtype(call: Operands) -> str:
    return call.attrs["dtype"] or call.args[0].dtype


def second_dtype(call: Operands) -> str:
    return call.args[1].dtype


def made_floating(call: Operands) -> str:
    """The dtype that the arguments promote to, or float32 in place of integers and booleans."""
    dtype = promote_all(call)
    return dtype if category(dtype) > 1 else "float32"


def common_number(call: Operands) -> str:
    """As `common_float`, and integers of a common dtype too."""
    dtypes = {arg.dtype for arg in call.args}
    return dtypes.pop() if len(dtypes) == 1 and dtypes <= {*INTEGERS} else common_float(call)


def common_float(call: Operands, args: Sequence[TensorType] = ()) -> str:
    """The dtype of a product of these arguments, by default of all.

    Raises CaseError unless they have the same floating dtype, or autocast casts them.
    """
    dtypes = [arg.dtype for arg in args or call.args]
    if call.autocast and "float64" not in dtypes and all(category(dtype) == 2 for dtype in dtypes):
        return call.autocast
    is_common = len(set(dtypes)) == 1 and category(dtypes[0]) == 2
    require(is_common, f"needs a common floating dtype, got {', '.join(dtypes)}")
    return dtypes[0]


def promote_all(call: Operands) -> str:
    """The dtype that the arguments and the numbers among the attributes promote to."""
    given = (call.attrs.get(name) for name in ("other", "value", "min", "max"))
    numbers = [number for number in given if isinstance(number, int | float)]
    return promote([(arg.dtype, arg.rank) for arg in call.args], numbers)


def broadcast(call: Operands) -> tuple[Size, ...]:
    """The shape that all arguments broadcast to; an operand may be the attribute `other` instead."""
    if "other" in call.attrs:
        alone = len(call.args) == 1
        require(
            alone == (call.attrs["other"] is not None),
            "takes two arguments, or an argument and 'other'",
            Reason.SPELLING,
        )
    return call.broadcast(*(arg.shape for arg in call.args))


def matrices(call: Operands) -> tuple[Size, ...]:
    """The shape of the first argument, which has at least two axes."""
    require(len(call.shape) >= 2, "needs at least two axes")
    return call.shape


def check_holds(dtype: str, value: object) -> None:
    """Raises CaseError unless a tensor of this dtype can hold the number."""
    least, most = RANGES[dtype if dtype in ("uint8", "int8", "int16") else "int32"]
    fits = category(dtype) == 2 or (isinstance(value, int) and least <= value <= most)
    require(fits, f"{dtype} can't hold {value}")


def with_axis(call: Operands) -> tuple[Size, ...]:
    """The shape of the first argument, which has an axis `dim`."""
    call.axis()
    return call.shape


def along(sizes: Callable[[Operands, Size], Sequence[Size]]) -> ShapeRule:
    """The shape of the first argument with `sizes(call, size)` in place of the size of the axis `dim`."""

    def infer(call: Operands) -> tuple[Size, ...]:
        axis = call.axis()
        return (*call.shape[:axis], *sizes(call, call.shape[axis]), *call.shape[axis + 1 :])

    return infer


def distinct_axes(call: Operands, axes: Sequence[int]) -> set[int]:
    """These axes counted from 0. Raises CaseError unless they are different axes of the first argument."""
    rank = len(call.shape)
    found = {axis % rank for axis in axes if -rank <= axis < rank}
    require(len(found) == len(axes), f"{[*axes]} are not different axes of a tensor of rank {rank}")
    return found


def check_weights(call: Operands, weights: Sequence[TensorType], shape: Sequence[Size]) -> None:
    """Raises CaseError unless the weights of a norm have this shape and the first argument's dtype."""
    dtype = call.args[0].dtype
    for weight in weights:
        # The product of autocast is normalised with weights that stay in float32.
        fits = weight.rank == len(shape) and weight.dtype in (dtype, "float32" if call.autocast else dtype)
        require(fits, f"needs weights of shape {show(shape)} and dtype {dtype}")
        for mine, size in zip(weight.shape, shape, strict=True):
            call.must_equal(mine, size, "normalised size")


def permutation(attrs: Mapping[str, Any], rank: int) -> list[int]:
    """The order that `dims` put the axes into, or `dim0` and `dim1`, by default the last two."""
    axes = list(range(rank))
    if "dims" in attrs:
        return [axis % rank if -rank <= axis < rank else axis for axis in attrs["dims"]]
    first, second = attrs.get("dim0", -2), attrs.get("dim1", -1)
    axes[first], axes[second] = axes[second], axes[first]
    return axes


def permute(call: Operands) -> tuple[Size, ...]:
    """The shape of the first argument with its axes in another order."""
    rank = len(call.shape)
    for name in call.attrs.keys() & {"dim0", "dim1"}:
        call.axis(name)
    require(rank >= 2 or bool(call.attrs), "needs at least two axes")
    axes = permutation(call.attrs, rank)
    require(sorted(axes) == list(range(rank)), f"dims {axes} are not a permutation of {rank} axes")
    return tuple(call.shape[axis] for axis in axes)


def slice_size(call: Operands, whole: Size) -> tuple[Size]:
    """The size of the slice `start:stop:step` of an axis."""
    start, stop, step = call.value("start"), call.value("stop"), call.attrs["step"]
    fits = 0 <= start <= stop <= whole.value(call.dims)
    require(fits, f"slice {start}:{stop} is outside axis {call.attrs['dim']} of {show(call.shape)}", Reason.SPELLING)
    require(step >= 1, f"step {step} is not positive")
    return (count_steps(call, call.attrs["start"], call.attrs["stop"], step),)


def count_steps(call: Operands, start: Size, stop: Size, step: int) -> Size:
    """How many of `start`, `start + step` and so on come before `stop`."""
    first, last = call.numbers((start, stop))
    count = -((first - last) // step)
    size = stop - start if step == 1 else quotient(stop, Size.of(step), count)
    return size if size.value(call.dims) == count else Size.of(count)


def count_windows(call: Operands, whole: Size, width: Size, step: Size) -> Size:
    """How many windows fit into an axis."""
    length, size, stride = call.numbers((whole, width, step))
    fits = stride >= 1 and 0 < size <= length
    require(fits, f"windows of {size} at steps of {stride} do not fit into an axis of {length}")
    return quotient(whole - width + step, step, (length - size) // stride + 1)


def put_indices(call: Operands, indices: Sequence[TensorType]) -> tuple[Size, ...]:
    """The shape of the first argument with the broadcast `indices` in place of consecutive axes from `dim` on."""
    axis = call.axis()
    require(all(index.dtype == "int64" for index in indices), "needs int64 indices")
    lead = call.broadcast(*(index.shape for index in indices))
    require(axis + len(indices) <= len(call.shape), f"{len(indices)} indices from axis {axis} on")
    return (*call.shape[:axis], *lead, *call.shape[axis + len(indices) :])


def given_places(call: Operands, _whole: Size) -> tuple[Size, ...]:
    """The size of the second argument, places along an axis."""
    index = call.args[1]
    require((index.dtype, index.rank) == ("int64", 1), "needs int64 indices of one axis")
    return index.shape


def one_index(call: Operands, whole: Size) -> tuple[()]:
    """No axis: the attribute `index` chooses a place along it."""
    index = call.attrs["index"]
    fits = 0 <= index < whole.value(call.dims)
    require(fits, f"index {index} is outside axis {call.attrs['dim']} of {show(call.shape)}", Reason.SPELLING)
    return ()
