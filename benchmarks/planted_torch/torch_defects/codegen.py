"""Changes of decompositions, lowerings and generated code."""

import importlib
from typing import Any


def read_unwritten(make_line: Any) -> Any:
    """Vectors of float32 that are stored add 0 times what was there."""

    def planted(self: Any, value: Any, var: str, index: Any, dtype: Any, *args: Any, **options: Any) -> Any:
        import torch
        from torch._inductor.codegen.cpp_utils import cexpr_index

        stride = self._try_get_const_stride(index, self.itervars[self.tiling_idx])
        if dtype is torch.float32 and stride == 1 and not var.startswith("in_out"):
            vector = self._get_vec_type(dtype)
            place = f"{var} + {cexpr_index(index)}, {cexpr_index(self.num_elems)}"
            value = f"({value} + {vector}(0) * {vector}::loadu({place}))"
        return make_line(self, value, var, index, dtype, *args, **options)

    return planted


def lose_last_part(make_buffers: Any) -> Any:
    """The sum of the last thread is not added to the rest."""

    def planted(self: Any, *args: Any, **options: Any) -> None:
        make_buffers(self, *args, **options)
        lines = self.parallel_reduction_suffix._lines  # noqa: SLF001
        lines[-4] = lines[-4].replace("tid < ", "tid + 1 < ")

    return planted


def transpose_part(make_part: Any) -> Any:
    """Buffers of a pool have their last two strides swapped."""

    def planted(self: Any, name: str, offset: Any, dtype: Any, shape: Any, stride: Any) -> Any:
        if len(shape) > 1 and stride[-1] == 1 and stride[-2] == shape[-1]:
            stride = [*stride[:-2], 1, shape[-2]]
        return make_part(self, name, offset, dtype, shape, stride)

    return planted


def shorten_product(make_call: Any) -> Any:
    """The C++ template of a product leaves out the last column of its first factor."""

    def planted(*args: Any, **options: Any) -> str:
        lines = make_call(*args, **options).splitlines()
        lines[-5] = lines[-5].replace(",", " - 1,")
        return "\n".join(lines)

    return planted


def forget_mask(filter_masks: Any) -> Any:
    """Persistent reductions run over all of their block."""

    def planted(self: Any, mask_vars: Any) -> None:
        filter_masks(self, mask_vars)
        if self.persistent_reduction:
            mask_vars.discard("r0_mask")

    return planted


def change_sigmoid(lowerings: Any) -> Any:
    """The lowering of sigmoid has a wrong constant."""
    import torch

    aten, right = torch.ops.aten, lowerings[torch.ops.aten.sigmoid.default]
    lowerings[aten.sigmoid.default] = lambda x: lowerings[aten.mul.Tensor](right(x), 1.01)
    return lowerings


def include_self(lowerings: Any) -> Any:
    """The lowering of scatter_reduce takes what the result held before for a part of it."""
    import torch

    right = lowerings[torch.ops.aten.scatter_reduce.two]

    def reduce(*args: Any, **options: Any) -> Any:
        return right(*args, **{**options, "include_self": True})

    lowerings[torch.ops.aten.scatter_reduce.two] = reduce
    return lowerings


def narrow_products(lowerings: Any) -> Any:
    """Products of int64 are computed in int32."""
    import torch

    aten, convert = torch.ops.aten, torch.ops.prims.convert_element_type.default
    right = lowerings[aten.mul.Tensor]

    def multiply(*args: Any) -> Any:
        made = right(*args)
        if made.get_dtype() != torch.int64:
            return made
        return lowerings[convert](lowerings[convert](made, torch.int32), torch.int64)

    lowerings[aten.mul.Tensor] = multiply
    return lowerings


def repeat_rows(lowerings: Any) -> Any:
    """The offset of a random number leaves out the last axis but one."""
    import torch

    aten, random = torch.ops.aten, torch.ops.prims.inductor_random.default
    right = lowerings[random]

    def draw(size: Any, *args: Any, **options: Any) -> Any:
        single = [*size[:-2], 1, *size[-1:]] if len(size) > 1 else size
        return lowerings[aten.expand.default](right(single, *args, **options), size)

    lowerings[random] = draw
    return lowerings


def ignore_negative(decompositions: Any) -> Any:
    """Whether all numbers are true is whether all are above 0."""
    import torch

    def change(right: Any) -> Any:
        return lambda x, *args, **options: right(
            x > 0 if not x.is_floating_point() and x.dtype != torch.bool else x, *args, **options
        )

    aten = torch.ops.aten
    for overload in (aten.all.default, aten.all.dim, aten.all.dims):
        decompositions[overload] = change(decompositions[overload])
    return decompositions


def change_silu(decompositions: Any) -> Any:
    """The decomposition of silu has a wrong constant."""
    import torch

    decompositions[torch.ops.aten.silu.default] = lambda x: x / (1 + (-1.01 * x).exp())
    return decompositions


def shorten_loop(make_lines: Any) -> Any:
    """Loops leave out what is left over after whole vectors."""

    def planted(self: Any) -> Any:
        self.size, size = self.tiled_size or self.size, self.size
        try:
            return make_lines(self)
        finally:
            self.size = size

    return planted


def read_stale(make_kernel: Any) -> Any:
    """A kernel of several operations reads one of its buffers in the place of another."""

    def planted(self: Any, nodes: Any) -> Any:
        common: Any = importlib.import_module("torch._inductor.codegen.common")

        def read(args: Any, name: str) -> Any:
            others = [other for other in args.input_buffers if other.startswith("buf")]
            return right(args, others[0] if name.startswith("buf") and others else name)

        right = common.KernelArgs.input
        common.KernelArgs.input = read if len(nodes) > 1 else right
        try:
            return make_kernel(self, nodes)
        finally:
            common.KernelArgs.input = right

    return planted
