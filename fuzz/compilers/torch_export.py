"""Programs of torch.export: as they are, and packaged by AOTInductor."""

import os
import tempfile
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from unittest import mock

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def run_program(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]", *, decomposes: bool = False) -> CompiledCall:
    """The program as a module. `decomposes`: after torch's decompositions."""
    return (program.run_decompositions() if decomposes else program).module()


def package(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]") -> CompiledCall:
    """The package that AOTInductor makes of it, loaded."""
    import torch
    from torch._inductor.runtime.cache_dir_utils import cache_dir

    # AOTInductor leaves 1.5 MB of every program in the directory of this variable.
    with (
        tempfile.TemporaryDirectory(dir=cache_dir()) as scratch,
        mock.patch.dict(os.environ, TORCHINDUCTOR_CACHE_DIR=scratch),
    ):
        # Without this dictionary it writes into torch's configuration.
        configs = {"aot_inductor.metadata": dict[str, str]()}
        path = torch._inductor.aoti_compile_and_package(
            program, package_path=f"{scratch}/module.pt2", inductor_configs=configs
        )
        loaded: Any = torch._inductor.aoti_load_package(path)
    held = {**program.constants, **program.state_dict}
    buffers = {name: held[name] for name in program.graph_signature.buffers}
    if buffers:
        # The package copies its constants, so writes to them would not be visible.
        loaded.load_constants(buffers, check_full_update=False, user_managed=True)
    return loaded


# Of torch/_functorch/_aot_autograd/runtime_wrappers.py, AOTSyntheticBaseWrapper.pre_compile (torch 2.15, line 1908).
_REFUSED = (
    r"aliased inputs that are mutated in the graph you are trying to export\.\s+This functionality is currently not"
)
_CAPABILITIES = CompilerCapabilities(state=True, random=True, strides=True, refusals=(_REFUSED,))
EXPORT = Compiler("export", "pytorch", "a program of torch.export", run_program, capabilities=_CAPABILITIES)
EXPORT_DECOMPOSED = replace(
    EXPORT, name="export_decomposed", words="the same after its decompositions", keywords={"decomposes": True}
)
AOT_INDUCTOR = Compiler(
    "aot_inductor", "pytorch", "such a program, packaged by AOTInductor", package, capabilities=_CAPABILITIES
)
