"""Why a case is turned away: the closed table of reasons, which every `require` names. docs/coverage.md lists them."""

from collections.abc import Mapping
from enum import Enum, unique
from typing import NamedTuple


class Refuser(Enum):
    """Who turns a case away."""

    FILE = "no program"
    TORCH = "torch refuses"
    OPEN = "torch leaves open"
    OURS = "our limit"
    DRAW = "the draw"


class Why(NamedTuple):
    """A row: a reason to turn a case away."""

    refuser: Refuser
    words: str  # what is turned away
    source: str = ""  # an error or a page of torch, or our need; "": none is known, which is a fault
    lost: str = ""  # the right programs that are turned away too, which is a fault


_FILE, _TORCH, _OPEN, _OURS, _DRAW = Refuser
_CAPTURED = "of the function: UncapturedHigherOrderOpError"


@unique
class Reason(Enum):
    """A reason, by name. Errors of torch are those of 2.13.0 and 2.15.0."""

    MALFORMED = Why(_FILE, "unknown names and words, numbers outside of their range", "the error tells the range")
    CONTRACT = Why(_FILE, "a contract that does not describe the attention", "a contract is no part of the program")
    RUN = Why(_FILE, "a region that is no run of operations, or computes nothing", "a function has consecutive lines")
    SPELLING = Why(
        _FILE,
        "attributes that exclude each other, indices from the end or beyond it",
        "another call, or an index from 0, says the same",
    )
    UNLIKE_FIRST = Why(_FILE, "a gradient in the place of a value of another type", "a gradient has its input's type")

    TYPES = Why(_TORCH, "shapes, dtypes and attributes that an operation does not take", "torch's errors, listed below")
    LEAF = Why(
        _TORCH,
        "a write into a value that needs a gradient",
        '"a leaf Variable that requires grad is being used in an in-place operation"',
    )
    SAVED = Why(
        _TORCH,
        "a write into a value that a gradient needs",
        '"one of the variables needed for gradient computation has been modified by an inplace operation"',
        "a write after which no gradient flows through the value",
    )
    CROWDED = Why(
        _TORCH,
        "a write into elements that share memory",
        '"more than one element of the written-to tensor refers to a single memory location"',
        "masked writes and copies of equal numbers, which eager takes",
    )
    ONE_OF_VIEWS = Why(
        _TORCH,
        "a write into one of several views of a call, in training",
        '"Such functions do not allow the output views to be modified inplace"',
    )
    OVERLAP = Why(
        _TORCH,
        "a write into a value of which it also reads",
        '"some elements of the input tensor and the written-to tensor refer to a single memory location"',
        "parts that lie apart in another way than as parts of an axis",
    )
    GRAPH_KEPT = Why(
        _TORCH, "a buffer that keeps a graph between calls", '"Trying to backward through the graph a second time"'
    )
    NO_PARAMETERS = Why(_TORCH, "an optimizer without parameters", '"optimizer got an empty parameter list"')
    FLEX_TRAINS = Why(
        _TORCH, "flex_attention that trains in some calls", '"FlexAttention does not support backward on CPU"'
    )
    HOOKED = Why(
        _TORCH,
        "a hook that does not fit the module",
        '"cannot register a hook on a tensor that doesn\'t require gradient"; backward hooks refuse writes',
        "backward hooks beside integers and writes that they take",
    )
    UNBACKED = Why(_TORCH, "an unbacked size of 0 or 1", "documentation of mark_unbacked: taken for 2 or more")
    SCATTERED_GRADIENT = Why(
        _TORCH,
        "a drawn scatter whose source is larger than its index",
        "documentation of scatter_: backward is implemented only for src.shape == index.shape",
        "these programs in inference",
    )
    INDEX = Why(_TORCH, "indices beyond an axis", '"index out of range"; on CUDA an assertion that ends the process')
    NESTED = Why(
        _TORCH,
        "a region in a region that does not take it",
        f'{_CAPTURED}; grad and jvp of checkpoint: "don\'t yet support saved tensor hooks"; of jvp: '
        '"Nested forward mode AD is not supported"',
        "grad of vmap, of compile_region and of jvp, which eager and aot_eager take",
    )
    REGION_WRITES = Why(
        _TORCH,
        "a region that writes into an operand",
        f"cond, map and scan {_CAPTURED}",
        "the same under vmap, checkpoint and jvp, and custom operations in training",
    )
    REGION_ARGUMENT = Why(
        _TORCH,
        "a region without arguments",
        'vmap: "got no inputs"; jvp: "Expected primals to contain at least one Tensor"; cond and map: IndexError',
        "the same under checkpoint and compile_region",
    )
    REGION_ALIAS = Why(
        _TORCH,
        "a region that returns memory of another value",
        f'cond, map, scan and compile_region {_CAPTURED}; custom_op: "may not alias"',
        "the same under vmap, checkpoint and jvp",
    )
    REGION_SHARED = Why(_TORCH, "a region whose arguments share memory", f"cond, map and compile_region {_CAPTURED}")
    REGION_FLOATS = Why(
        _TORCH,
        "a region whose result is no floating value",
        '"only Tensors of floating point dtype can require gradients"',
        "cond with integers",
    )
    REGION_RANDOM = Why(
        _TORCH,
        "dropout, flex_attention or a second derivative of attention in a region",
        'vmap: "called random operation while in randomness error mode"; "derivative for '
        'aten::_scaled_dot_product_flash_attention_for_cpu_backward is not implemented"',
        "dropout in compile_region and checkpoint",
    )
    SCANNED = Why(
        _TORCH,
        "a scan beside checkpoint, in a custom operation or in a transform",
        'checkpoint: TorchRuntimeError; grad: "Expected FakeTensor"',
    )
    CARRIED = Why(
        _TORCH, "a loop that hands on a value of another type", 'scan: "Expected init and carry to have same metadata"'
    )
    REGION_ROWS = Why(_TORCH, "a loop whose results have no row for each of its rows", "a row of the result is missing")
    FROZEN = Why(
        _TORCH, "freezing beside changes of the module", "documentation of freezing: parameters become constants"
    )

    STRIDES = Why(
        _OPEN,
        "a read by strides where memory is not known",
        "documentation of as_strided: it reads the memory, whose layout kernels choose",
        "a case with regions that do not touch what is read",
    )
    VIEW_OR_COPY = Why(
        _OPEN,
        "a write into what may be a view or a copy",
        'documentation of reshape: "you should not depend on the copying vs. viewing behavior"',
    )
    WRITTEN_TWICE = Why(
        _OPEN,
        "several writes into one place",
        "documentation of scatter_, index_copy_ and index_put_: which is the last is undefined",
    )
    UNSORTED = Why(_OPEN, "boundaries of buckets that may not rise", "documentation of bucketize: otherwise undefined")
    UNGROUPED = Why(_OPEN, "ends of groups that may leave rows out", "grouped_mm leaves the rows of no group unwritten")
    ANY_ORDER = Why(_OPEN, "topk and unique without order", "documentation of topk: sorted=False")
    CAST_RANGE = Why(
        _OPEN,
        "a drawn cast of floating values to integers",
        'documentation of Tensor.to: "undefined when the value is outside of the range"',
        "casts of clamped values, by this draw",
    )
    RECOMPUTED_WRITE = Why(
        _OPEN,
        "a write in a checkpointed case",
        "documentation of checkpoint: the recomputed forward has to be the same",
        "writes into results of the case",
    )
    CAST_KEPT = Why(
        _OPEN,
        "a write into a weight whose cast autocast caches, a step or a change between calls that share casts",
        "eager reads the cast of the weight as it was (`cached_cast` of aten/src/ATen/autocast_mode.cpp)",
    )

    SIZE = Why(_OURS, "2^26 elements, 8 axes, 2000 lines, 8 calls; for draws 2^16 elements", "512 MiB in the reference")
    CONTRACTED = Why(
        _OURS,
        "a contract beside writes, calls, changes, autocast",
        "a kernel in its place computes the arguments alone",
    )
    COMPLEX = Why(
        _OURS,
        "a complex result of the case or of a region, or a complex operand of a region",
        "a case returns the same numbers by view_as_real",
        "complex operands of map, vmap, scan, checkpoint and jvp",
    )
    ARGUMENTLESS = Why(_OURS, "a module without arguments", "the first argument tells the device")
    EARLIER = Why(_OURS, "earlier cases of earlier cases", "a list of earlier cases tells them all")
    VARIES = Why(_OURS, "other sizes of what a parameter shares", "parameters keep their sizes")
    REGION_BESIDE = Why(
        _OURS,
        "a region beside contracts or checkpoint, a custom operation that trains under autocast",
        "gradients reach a custom operation outside of autocast, where it computes again",
        "all kinds of regions in a checkpointed case that eager takes",
    )
    NUMBERS = Why(
        _OURS,
        "a varying number in a region or an active dropout, or of which the text has no place",
        "numbers are arguments of forward, which its own lines read",
        "regions whose functions take numbers",
    )
    REGION_STATE = Why(_OURS, "layers and random operations in a custom operation", "it takes tensors, no module")
    REGION_SIZES = Why(_OURS, "varying sizes in a custom operation", "its text has numbers", "sizes of its arguments")
    REGION_EMPTY = Why(_OURS, "cond and jvp of empty values", lost="both, which eager and aot_eager take")
    OVERWRITTEN = Why(
        _OURS, "an in-place form on a value with another use", "such writes are operations of their own, as add_"
    )
    BUFFER_CAST = Why(
        _OURS,
        "a cast of a buffer that the case writes into",
        "the reference computes in float64, and writes of other dtypes than the buffer's raise",
        "writes that convert, as copy_ and add_",
    )
    REDRAWN = Why(
        _OURS,
        "a dropout that a change of mode would switch on",
        "its mask is not the reference's",
        "a dropout of probability 0 or 1, and what no result shows",
    )

    NOTHING = Why(_DRAW, "no value to start from, or no arguments that fit", "the draw ends, no program is lost")
    UNREAD = Why(_DRAW, "an operation whose result nothing reads", "pruning removes it")

    @property
    def why(self) -> Why:
        return self.value


DEFAULTS: Mapping[str, Reason] = {
    "program/ops/": Reason.TYPES,
    "program/contracts.py": Reason.CONTRACT,
    "program/given.py": Reason.MALFORMED,
    "program/numbers.py": Reason.MALFORMED,
    "program/settings.py": Reason.MALFORMED,
    "program/sizes.py": Reason.MALFORMED,
    "program/type_check.py": Reason.MALFORMED,
    "sampling/": Reason.NOTHING,
}
"""The reasons of places that name none, by the beginnings of their files' paths."""
