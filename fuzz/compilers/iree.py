"""IREE on the CPU, through the importer of exported programs of iree-turbine."""

import io
from typing import TYPE_CHECKING

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package
from fuzz.compilers.tensors import to_numpy, to_torch

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def compile_program(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]") -> CompiledCall:
    """The function "main" of a module that iree-compile makes."""
    import ml_dtypes
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
        arrays = (to_numpy(value, ml_dtypes.bfloat16) for value in given)
        results = main(*(runtime.asdevicearray(config.device, array) for array in arrays))
        made = (one.to_host() for one in (results if isinstance(results, (list, tuple)) else [results]))
        return [to_torch(array, is_bfloat16=array.dtype.name == "bfloat16") for array in made]

    return run


_FLAGS = ["--iree-llvmcpu-target-cpu=host", "--iree-input-demote-f64-to-f32=false"]

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
