"""Modules that torch.export turned into a graph ahead of time, run as they are or compiled by AOTInductor."""

import os
import tempfile
from collections.abc import Callable
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn

from fuzz.check.exceptions import SubjectError
from fuzz.check.settings import trace_flex_attention
from fuzz.check.torch_internals import require


class Exported:
    """`module`, exported when it is first called. `dynamic`: sizes are symbolic where the program allows it;
    `packaged`: AOTInductor compiles it. Calls raise `SubjectError` where it is not made for them."""

    def __init__(self, module: nn.Module, dynamic: bool | None, *, packaged: bool) -> None:
        self._module, self._dynamic, self._packaged = module, dynamic, packaged
        self._form: list[Any] | None = None
        self._call: Callable[..., Any] = module

    def __call__(self, *inputs: Tensor) -> Any:
        """Run the program."""
        if torch.is_grad_enabled() or self._module.training:
            raise SubjectError("exported programs are for inference")
        form = [(value.shape, value.stride(), value.dtype) for value in inputs]
        if self._form is None:
            self._form, self._call = form, self._export(inputs)
        if form != self._form:
            raise SubjectError("the program is exported for other sizes, strides or dtypes")
        return self._call(*inputs)

    def _export(self, inputs: tuple[Tensor, ...]) -> Callable[..., Any]:
        sizes = [[torch.export.Dim.AUTO] * value.dim() for value in inputs]
        with trace_flex_attention():
            program = torch.export.export(self._module, inputs, dynamic_shapes=sizes if self._dynamic else None)
        if not self._packaged:
            exported: Callable[..., Any] = program.module()
            return exported
        where = require("torch._inductor.runtime.cache_dir_utils", "cache_dir")()
        # It keeps a megabyte and a half of every program, in the directory that this names.
        with (
            tempfile.TemporaryDirectory(dir=where) as scratch,
            mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=scratch),
        ):
            # Without a dictionary of its own it writes into the one of torch's configuration.
            configs = {"aot_inductor.metadata": dict[str, str]()}
            path = torch._inductor.aoti_compile_and_package(
                program, package_path=f"{scratch}/module.pt2", inductor_configs=configs
            )
            loaded: Any = torch._inductor.aoti_load_package(path)
        buffers = dict(self._module.named_buffers())
        if buffers:
            # As the values it holds are copies, which nobody sees when they are written to.
            loaded.load_constants(buffers, check_full_update=False, user_managed=True)
        return loaded
