"""IREE on the CPU, through the importer of exported programs of iree-turbine."""

import io
from typing import TYPE_CHECKING, Any

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def compile_program(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]") -> CompiledCall:
    """The function "main" of a module that iree-compile makes."""
    from iree import runtime
    from iree.compiler import compile_str
    from iree.turbine import aot

    text = io.BytesIO()
    # The importer takes no program that writes into its values.
    aot.export(program.run_decompositions()).mlir_module.write_bytecode(text)
    # It runs a process of its own: within this one, IREE's compiler prints its diagnostics and does not return them.
    made = compile_str(text.getvalue(), target_backends=["llvm-cpu"], extra_args=_FLAGS)
    config = runtime.Config("local-sync")  # without threads
    context = runtime.SystemContext(config=config)
    context.add_vm_module(runtime.VmModule.copy_buffer(config.vm_instance, made))
    main = context.modules.module["main"]

    def run(*given: "Tensor") -> "list[Tensor]":
        results = main(*(_to_iree(value, config.device) for value in given))
        return [_to_torch(value) for value in (results if isinstance(results, (list, tuple)) else [results])]

    return run


_FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false"]


def _to_iree(value: "Tensor", device: Any) -> Any:
    import ml_dtypes
    import torch
    from iree import runtime

    value = value.detach().contiguous()
    if value.dtype is torch.bfloat16:  # torch gives NumPy no such array
        return runtime.asdevicearray(device, value.view(torch.int16).numpy().view(ml_dtypes.bfloat16))
    return runtime.asdevicearray(device, value.numpy())


def _to_torch(result: Any) -> "Tensor":
    import torch

    array = result.to_host().copy()
    if array.dtype.name == "bfloat16":
        return torch.from_numpy(array.view("int16")).view(torch.bfloat16)
    return torch.from_numpy(array)


IREE = Compiler(
    "iree",
    "iree",
    "IREE, through iree-turbine",
    compile_program,
    packages=tuple(Package(f"iree-{name}", (3, 9), (4,)) for name in ("turbine", "base-compiler", "base-runtime")),
    capabilities=CompilerCapabilities(
        dynamic=True,
        refusals=(
            r'failed to legalize operation .*?name = "(?:torch\.)?([\w.]+)"',
            r"failed to legalize operation 'torch\.([\w.]+)'",
            r"error: unimplemented: ",
            r"Higher-order operation '(\w+)' not implemented",
        ),
    ),
    extra="iree",
)
