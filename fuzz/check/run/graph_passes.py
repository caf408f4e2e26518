"""A backend that runs Inductor's graph passes, and then the resulting graph operation by operation.

The backend calls pre-grad, joint, partition and post-grad passes as Inductor does. Lowering, scheduling and code
generation, which take the C++ compiler, are left out. Matches of post-grad patterns for lowerings (fused matmul
templates) are not applied.

If possible, the torch-level graph is recorded in one run, without Dynamo. The module of a case is straight-line code
with constant sizes, so its calls of torch form its graph. As Dynamo does, the recording makes parameters, buffers and
arguments inputs in the order of first use, marks parameters and buffers static, and leaves out results that are inputs.
Dynamo traces other programs, as with several calls, symbolic sizes, layers of torch (which choose a fast path),
`_LEFT_TO_DYNAMO`, nested_compile_region, modes entered in the module, values read in Python, or changed attributes.
"""

import copy
import importlib
import operator
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.fx.node import map_aggregate
from torch.overrides import TorchFunctionMode
from torch.utils import _python_dispatch

from fuzz.check.run.tensor_memory import MemoryMap
from fuzz.check.torch_api import compilation, settings
from fuzz.check.torch_api.torch_internals import intercept, require

_PIPELINE, _MATCHER = "torch._inductor.compile_fx", "torch._inductor.pattern_matcher"
_LEFT_TO_DYNAMO = frozenset({"checkpoint", "flex_attention"})
_LEFT_TO_DYNAMO |= {"cond", "func", "map_rows", "scan", "vmap", "while_loop"}
_LEFT_TO_DYNAMO |= {"associative_sum", "scan_sum", "scan_sum_constant"}
"""Functions in `forward` that a recorded list of calls can't represent, by name."""
_ATTRIBUTES = ("shape", "device", "dtype", "layout", "ndim", "requires_grad", "is_leaf")
_FORM = {getattr(Tensor, name).__get__ for name in _ATTRIBUTES}
_FORM |= {Tensor.size, Tensor.dim, Tensor.stride, Tensor.numel, Tensor.is_contiguous, Tensor.is_floating_point}
_FORM |= {Tensor.is_complex, Tensor.__len__, torch.is_floating_point, torch.is_complex, torch.numel}
"""Functions that read the form of a tensor, which is constant."""
_VIEWS = {getattr(Tensor, name).__get__: name for name in ("T", "mT", "H", "mH", "real", "imag")}
_ITEMS = {Tensor.__getitem__: operator.getitem, Tensor.__setitem__: operator.setitem}


def compile_module(
    module: nn.Module, dynamic: bool | None, around: Callable[[], AbstractContextManager[Any]] = nullcontext
) -> Callable[..., Any]:
    """The module under Inductor's graph passes; `dynamic` as for torch.compile, `around` as for the backend."""
    passes = backend(around)
    is_plain, traced = settings.is_compiled_plainly(), settings.compile_module(module, backend=passes, dynamic=dynamic)
    has_layers = any(next(layer.parameters(), None) is not None for layer in module.children())
    if (
        not is_plain
        or dynamic is not False
        or has_layers
        or not _LEFT_TO_DYNAMO.isdisjoint(type(module).forward.__code__.co_names)
    ):
        return traced
    compiled: dict[Any, Callable[..., Any]] = {}

    def call(*inputs: Any) -> Any:
        form = tuple(map(_form_of, inputs))
        if form not in compiled:
            try:
                compiled[form] = Recording(module, inputs).compile(passes)
            except GraphNotCaptured:
                compiled[form] = traced
        return compiled[form](*inputs)

    return call


def _form_of(value: Any) -> Any:
    """What a recorded graph is for: the form of a tensor, or another value itself."""
    if isinstance(value, Tensor):
        return value.shape, value.stride(), value.dtype, value.requires_grad
    return repr(value)


class GraphNotCaptured(Exception):
    """A run does not show the graph; the text is the reason."""


def _refuse_regions() -> AbstractContextManager[Any]:
    """While entered, a call of a `nested_compile_region`, which only Dynamo makes a graph of its own, raises."""

    def refuse(*_: Any, **__: Any) -> Any:
        raise GraphNotCaptured("a nested_compile_region")

    return intercept("torch._higher_order_ops.invoke_subgraph", "invoke_subgraph_placeholder", refuse)


def is_recording() -> bool:
    """Whether a `Recording` reads the program that calls this."""
    modes = require("torch.overrides", "_get_current_function_mode_stack")()
    return any(isinstance(mode, Recording) for mode in modes)


class Recording(TorchFunctionMode):
    """The graph of a module called with `inputs`, both of which stay unchanged.

    Raises `GraphNotCaptured`, also if the module raises. Dynamo then compiles the module, and raises itself.
    """

    def __init__(self, module: nn.Module, inputs: tuple[Any, ...]) -> None:
        super().__init__()
        self._module, self._graph = module, fx.Graph()
        self._nodes: dict[int, fx.Node] = {}  # by the id of their results
        self._results: list[Any] = []  # kept, so that their ids stay taken
        self._modes = _read_modes()
        self._given = {id(value): (name, value) for name, value in reversed(list(_list_tensors(module, inputs)))}
        values = [value for _, value in self._given.values()]
        copies = MemoryMap(Tensor.clone)([value.detach() for value in values])
        memo = {id(value): mine.requires_grad_(value.requires_grad) for value, mine in zip(values, copies, strict=True)}
        self._originals = {id(mine): key for key, mine in memo.items()}
        self._read: dict[fx.Node, tuple[str, Tensor]] = {}
        own = copy.deepcopy(module, dict(memo))
        before = dict(vars(own))
        devices = [torch.cuda.current_device()] if torch.cuda.is_initialized() else []
        try:
            with torch.random.fork_rng(devices), _refuse_regions(), self:
                result = own(*(memo.get(id(value), value) for value in inputs))
        except Exception as error:
            raise GraphNotCaptured(f"{type(error).__name__}: {error}") from error
        self._kind, outputs = type(result), list(result) if isinstance(result, (tuple, list)) else [result]
        if vars(own) != before or not all(isinstance(one, Tensor) for one in outputs):
            raise GraphNotCaptured("attributes change, or something else than tensors is returned")
        self._outputs = [self._find(one) for one in outputs]

    def compile(self, backend: Callable[..., Any]) -> Callable[..., Any]:
        outputs, kind, module = self._outputs, self._kind, self._module
        read = {node: name for node, (name, _) in self._read.items()}
        computed = list(dict.fromkeys(node for node in outputs if node not in read))
        self._graph.output(tuple(computed))
        graph = fx.GraphModule(nn.Module(), self._graph)
        # With this key AOTAutograd reads Dynamo's marks of inputs.
        graph.meta["dynamo_compile_id"] = None
        graph._param_name_to_source = {}  # type: ignore[assignment]
        source = require("torch._dynamo.source", "LocalSource")
        for node, (name, _) in self._read.items():
            node._dynamo_source = source(name)
            node.meta["tensor_dict"] = {} if name.isdecimal() else {"_dynamo_static_input_type": "unguarded"}
        examples = [value for _, value in self._read.values()]
        # Like Dynamo's, this ShapeEnv has no symbols for numbers that are read from tensors.
        sizes = require("torch.fx.experimental.symbolic_shapes", "ShapeEnv")(
            allow_scalar_outputs=torch._dynamo.config.capture_scalar_outputs,
            allow_dynamic_output_shape_ops=torch._dynamo.config.capture_dynamic_output_shape_ops,
        )
        fakes = require("torch._subclasses.fake_tensor", "FakeTensorMode")(shape_env=sizes)
        # AOTAutograd would make the sizes of other fake tensors symbolic.
        static = [fakes.from_tensor(value, static_shapes=True) for value in examples]
        with require("torch._guards", "tracing")(require("torch._guards", "TracingContext")(fakes)):
            try:
                compiled = backend(graph, examples)
            except require("torch._dynamo.exc", "exceptions_allowed_to_be_fallback") as error:
                raise GraphNotCaptured("Dynamo breaks the graph where it can't be traced") from error
        del static
        if sizes.guards:
            raise GraphNotCaptured("a pass takes a number for a size, of which Dynamo makes a guard")

        def call(*inputs: Any) -> Any:
            given = dict(_list_tensors(module, inputs))
            results = dict(zip(computed, compiled(*(given[name] for name in read.values())), strict=True))
            values = [results[node] if node in results else given[read[node]] for node in outputs]
            return kind(values) if issubclass(kind, (tuple, list)) else values[0]

        return call

    def __torch_function__(
        self, function: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        result = function(*args, **kwargs)
        if function in _FORM:
            return result
        name = getattr(function, "__name__", "")
        is_given = id(result) in self._nodes or id(result) in self._originals
        if is_given and not name.endswith("_") and isinstance(result, Tensor):
            # Eager returns an argument, as dropout with p = 0 does; in a graph the result is another value.
            result = torch.ops.aten.alias(result)
        if function in _VIEWS:
            node = self._graph.call_function(getattr, (self._lift(args[0]), _VIEWS[function]))
        elif name in ("__get__", "__set__") or _read_modes() != self._modes:
            raise GraphNotCaptured(f"{function} is read, written, or called in a mode")
        elif function not in _ITEMS and getattr(Tensor, name, None) is function:
            node = self._graph.call_method(name, self._lift(args), self._lift(kwargs))
        else:
            node = self._graph.call_function(_ITEMS.get(function, function), self._lift(args), self._lift(kwargs))
        if function is not Tensor.__setitem__:
            self._keep(result, node)
        return result

    def _keep(self, result: Any, node: fx.Node) -> None:
        self._results.append(result)
        # Passes before AOTAutograd read it.
        node.meta["example_value"] = result
        if isinstance(result, Tensor):
            # A tensor that is written in place keeps its first node.
            if id(result) not in self._originals:
                self._nodes.setdefault(id(result), node)
        elif isinstance(result, (tuple, list)) and result:
            for index, one in enumerate(result):
                self._keep(one, self._graph.call_function(operator.getitem, (node, index)))
        else:
            raise GraphNotCaptured(f"{node.target} gives {type(result).__name__}")

    def _lift(self, values: Any) -> Any:
        return map_aggregate(values, lambda one: self._find(one) if isinstance(one, Tensor) else one)

    def _find(self, value: Tensor) -> fx.Node:
        node = self._nodes.get(id(value))
        if node is None:
            if id(value) not in self._originals:
                raise GraphNotCaptured("a tensor comes from elsewhere")
            name, original = self._given[self._originals[id(value)]]
            last = next(reversed(self._read), None)
            with self._graph.inserting_after(last) if last is not None else self._graph.inserting_before(None):
                node = self._nodes[id(value)] = self._graph.placeholder(f"input_{name}".replace(".", "_"))
            self._read[node] = name, original
            node.meta["example_value"] = value
        return node


def _list_tensors(module: nn.Module, inputs: tuple[Any, ...]) -> Iterator[tuple[str, Tensor]]:
    """Parameters and buffers by name, then the tensors among `inputs` by number."""
    yield from module.named_parameters()
    yield from module.named_buffers()
    yield from ((str(index), value) for index, value in enumerate(inputs) if isinstance(value, Tensor))


def _read_modes() -> tuple[object, ...]:
    casts = ((torch.is_autocast_enabled(name), torch.get_autocast_dtype(name)) for name in ("cpu", "cuda"))
    return torch.is_grad_enabled(), torch.is_inference_mode_enabled(), *casts


def backend(around: Callable[[], AbstractContextManager[Any]] = nullcontext) -> Callable[..., Any]:
    """The backend for torch.compile. The resulting graph runs within `around()`.

    Raises `SubjectError` if this torch lacks a part of the pipeline.
    """
    for name in ("compile_fx", "fake_tensor_prop", "view_to_reshape", "_recursive_post_grad_passes", "V"):
        require(_PIPELINE, name)
    require(_MATCHER, "LoweringPatternEntry.apply")
    return partial(require(_PIPELINE, "compile_fx"), inner_compile=partial(_interpret, around))


def _interpret(
    around: Callable[[], AbstractContextManager[Any]], graph: fx.GraphModule, inputs: Sequence[Any], **options: Any
) -> Callable[[list[Any]], Any]:
    # Mirrors _InProcessFxCompile.codegen_and_compile up to GraphLowering.
    pipeline: Any = importlib.import_module(_PIPELINE)
    with _python_dispatch._disable_current_modes():
        pipeline.view_to_reshape(graph)
        with torch.no_grad():
            fake_mode = pipeline.fake_tensor_prop(graph, inputs)
        strides = _read_output_strides(graph)
        left_out = intercept(_MATCHER, "LoweringPatternEntry.apply", lambda *_: None)
        with pipeline.V.set_fake_mode(fake_mode), left_out:
            pipeline._recursive_post_grad_passes(graph, is_inference=options.get("is_inference", False))
    interpreter = fx.Interpreter(graph)
    interpreter.extra_traceback = False

    def run(arguments: list[Any]) -> Any:
        compilation.note_run(compilation.GRAPH_AFTER_PASSES)
        with around():
            outputs = list(interpreter.boxed_run(arguments))
        for index, wanted in strides.items():
            outputs[index] = _restride(outputs[index], wanted)
        return outputs

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _read_output_strides(graph: fx.GraphModule) -> dict[int, tuple[int, ...]]:
    """The strides of outputs that users see, which lowering restores after passes change them. torch 2.15 takes the
    strides before the joint passes, earlier versions after them."""
    require(_PIPELINE, "record_original_output_strides")(graph)
    output = graph.graph.output_node()
    strides = output.meta.get("original_output_strides", ())
    seen = {index: tuple(strides[index] or ()) for index in output.meta.get("user_visible_output_idxs", ()) if strides}
    return {index: own for index, own in seen.items() if all(type(step) is int and step for step in own)}


def _restride(value: Any, strides: tuple[int, ...]) -> Any:
    if not isinstance(value, Tensor) or len(strides) != value.dim():
        return value
    if all(size < 2 or own == wanted for size, own, wanted in zip(value.shape, value.stride(), strides, strict=True)):
        return value  # as Inductor, which ignores the stride of an axis of size 1
    return value.new_empty_strided(value.shape, strides).copy_(value)
