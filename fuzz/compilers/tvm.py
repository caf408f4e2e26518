"""TVM on the CPU: its importer of exported programs into Relax, compiled by LLVM."""

from typing import TYPE_CHECKING, Any

from fuzz.compilers.interface import CompiledCall, Compiler, CompilerCapabilities, Package

if TYPE_CHECKING:
    from torch import Tensor
    from torch.export import ExportedProgram


def compile_program(program: "ExportedProgram", _inputs: "tuple[Tensor, ...]") -> CompiledCall:
    """The function "main" of a virtual machine."""
    import tvm
    from torch.utils.dlpack import from_dlpack
    from tvm import relax
    from tvm.relax.frontend.torch import from_exported_program

    machine = relax.VirtualMachine(tvm.compile(from_exported_program(program), "llvm"), tvm.cpu())

    def copy(value: "Tensor") -> Any:  # TVM takes no memory that is not aligned to 64 bytes
        made = tvm.runtime.empty(tuple(value.shape), str(value.dtype).removeprefix("torch."))
        from_dlpack(made).copy_(value.detach())
        return made

    def run(*given: "Tensor") -> "list[Tensor]":
        return [from_dlpack(value) for value in machine["main"](*map(copy, given))]

    return run


TVM = Compiler(
    "tvm",
    "tvm",
    "TVM, through its importer of exported programs",
    compile_program,
    packages=(Package("apache-tvm", (0, 27), (0, 28)),),
    capabilities=CompilerCapabilities(dynamic=True, refusals=(r"Unsupported function types \['([\w.]+)'",)),
    extra="tvm",
)
