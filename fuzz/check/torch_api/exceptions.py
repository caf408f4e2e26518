"""Verdicts and failures of exceptions."""

import linecache
import os
import re
import sys
import traceback
from collections.abc import Collection
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

import torch

from fuzz.compilers.interface import CompilerCapabilities
from fuzz.own_packages import OWN_PACKAGES
from fuzz.protocol import Verdict
from fuzz.protocol.failures import DeviceError, Failure, Raised, Refusal
from fuzz.protocol.render import describe_failure

_LONGEST = 280
"""Characters of an exception's text that are kept."""
_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|Cannot allocate memory", re.IGNORECASE
)
_COMPILERS = (
    "torch/_dynamo/convert_frame.py",
    "torch/_inductor/compile_fx.py",
    "torch/_dynamo/output_graph.py",
    "torch/export/_trace.py",
)
_NOISE = re.compile(
    r"^(Set TORCH|You can suppress|The above exception|Hint:|from user code|"
    # of OpenVINO, whose next lines say what failed
    r"Exception from src/|Check 'false' failed at|FrontEnd API failed|Model wasn't fully converted|Summary:|"
    r"While validating node|\[ \w+ \] *$|$)"
)
_OF_CONVERSION = re.compile(r"-- (\S+) with a message:.*?([^\n]+)\n+Summary:", re.DOTALL)
"""The operation that OpenVINO fails to convert, and the last line of what it says about that."""
_OF_FAKE_KERNEL = re.compile(r": got (\w+)\((['\"])(.*)\2\)")
"""The exception of a fake kernel: a TorchRuntimeError has it only in its text."""
_NOT_OF_USERS = frozenset({"torch", "triton", "sympy", "fuzz", "case", "__main__", *sys.stdlib_module_names})
_LAUNCHERS = ("triton.runtime.", "torch._inductor.runtime.", "torch._ops")


def blame(error: BaseException) -> tuple[Verdict, Failure]:
    """The verdict on a subject that raised, and the failure."""
    if fault := find_device_fault():
        # Without blocking launches, a call returns before its kernel runs, and a later call raises.
        launch = (_find_kernel(error), find_user_line(error)) if os.environ.get("CUDA_LAUNCH_BLOCKING") == "1" else ()
        return Verdict.DEVICE_ERROR, DeviceError(fault, *launch)
    failure = as_failure(error)
    if is_out_of_memory(error):
        return Verdict.OUT_OF_MEMORY, failure
    return Verdict.COMPILE_ERROR if _from_compiler(error) else Verdict.RUNTIME_ERROR, failure


_LIMITS = (
    "NYI: embedding dimension of the query, key, and value must be",
    "Q and KV block size must be divisible by BLOCK_M and BLOCK_N",
    "Number of shared query heads sharing the same KV head must be power of 2",
    "aot_autograd() does not yet handle",
    "does not have a sharding strategy registered",
    "There was no rule registered for HOP",
    "as_strided not supported with DTensor",
    "unevenly sharded tensor",
    "would remove or reshape sharded dimension",
    "It cannot be performed without redistribution",
    "in-place operations that require placement changes are not supported",
)
"""Documented limits in the words of compiled flex_attention (torch/_inductor/kernel/flex), AOTAutograd
(runtime_wrappers.py) and DTensor (torch/distributed/tensor: _dispatch.py, _sharding_prop.py, _ops/_view_ops.py)."""


def find_limit(error: BaseException) -> str:
    """The documented limit that torch raises `error` for; "" for any other error."""
    return next((line(link) for link in _chain(error) if any(limit in str(link) for limit in _LIMITS)), "")


def find_device_fault() -> str:
    """Why CUDA refuses all work of this process; "" if it does not."""
    try:
        if torch.cuda.is_initialized():
            torch.cuda.synchronize()
    except RuntimeError as error:
        return as_failure(error).text.removeprefix("CUDA error: ")
    return ""


def is_out_of_memory(error: BaseException) -> bool:
    return any(isinstance(link, MemoryError) or _MEMORY.search(str(link)) for link in _chain(error))


class SubjectError(Exception):
    """A subject does not exist, can't be imported, does not take a case, or needs a name that this torch lacks; the
    text is one line. `operator`: that its compiler does not take; "" if it names none."""

    def __init__(self, text: str, refusal: Refusal = Refusal.UNSUPPORTED, operator: str = "") -> None:
        super().__init__(text)
        self.refusal, self.operator = refusal, operator


class CompilingFailed(Exception):
    """A compiler of fuzz/compilers raised while it compiled; the cause says why."""


class DeviceLost(Exception):
    """The GPU was lost to an attention function that was called again."""


def find_refusal(error: Exception, declared: Collection[str]) -> SubjectError | None:
    """The refusal of a case by an attention function; None if the exception is no refusal.

    `declared`: names of the exceptions, besides NotImplementedError, that mean a refusal.
    """
    if isinstance(error, SubjectError):
        return SubjectError(str(error))
    if not _is_refusal(error, declared) or is_out_of_memory(error) or find_device_fault():
        return None
    return SubjectError(f"it says {' '.join(str(error).split()) or find_user_line(error) or type(error).__name__}")


def _is_refusal(error: BaseException, declared: Collection[str]) -> bool:
    names = {f"{kind.__module__}.{kind.__qualname__}".removeprefix("builtins.") for kind in type(error).__mro__}
    return not names.isdisjoint({"NotImplementedError", *declared})


_OPERATOR = re.compile(r"\b(?:aten|prims)\.\w+")
"""An operator of torch in the text of a refusal."""


def find_refused(error: BaseException, capabilities: CompilerCapabilities) -> SubjectError | None:
    """The refusal of a case by a compiler, with what it says; None if the exception is no refusal."""
    if is_out_of_memory(error):
        return None
    links = _chain(error)
    named = (capabilities.find_refused(str(link)) for link in links)
    operator = next((one for one in named if one is not None), None)
    if operator is None and not any(_is_refusal(link, capabilities.refuses) for link in links):
        return None
    if not operator:
        found = next(filter(None, (_OPERATOR.search(str(link)) for link in links)), None)
        operator = found.group() if found else ""
    return SubjectError(line(error), operator=operator)


class SuppressOutOfMemory(AbstractContextManager["SuppressOutOfMemory"]):
    """If an allocation fails inside, the block ends without an exception. `line` is then its text."""

    line = ""

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if not isinstance(error, Exception) or not is_out_of_memory(error):
            return False
        self.line = line(error)
        return True


def as_failure(error: BaseException) -> Raised:
    """The innermost cause, with the first informative line of its text."""
    cause = find_root(error)
    lines = [text.strip() for text in str(cause).splitlines()]
    if type(cause).__name__ == "CompilationError":  # of Triton: the source up to where it fails, and why
        lines.reverse()
    said = [text.partition("error: ")[2] for text in lines if " error: " in text]
    first = next((text for text in said or lines if not _NOISE.match(text)), "")
    name = type(cause).__name__
    if name == "InternalTorchDynamoError":  # "TYPE: TEXT" of the exception that Dynamo met
        name, _, first = first.partition(": ")
    if name == "TorchRuntimeError" and (found := _OF_FAKE_KERNEL.search(str(cause))):
        name, _, first = found.groups()
    if told := _OF_CONVERSION.search(str(cause)):
        first = ": ".join(told.groups())
    # The rest names the code that met the end of the stack, which varies.
    first = re.sub(r"(?<=^maximum recursion depth exceeded) .*", "", first)
    cut = first if len(first) <= _LONGEST else f"{first[:_LONGEST].rpartition(' ')[0]} …"
    return Raised(name, cut, find_user_line(error))


def find_root(error: BaseException) -> BaseException:
    """The innermost cause of an exception. Of the C++ compiler's, its own has only the command line."""
    chain = _chain(error)
    return next((link for link in chain if type(link).__name__ == "CppCompileError"), chain[-1])


def line(error: BaseException) -> str:
    return describe_failure(as_failure(error))


def advise_on_import(error: BaseException, module: str) -> str:
    """Advice for a user whose module, or a package around it, is not found; "" for other errors."""
    missing = error.name if isinstance(error, ModuleNotFoundError) else None
    is_own = missing and f"{module}.".startswith(f"{missing}.")
    if not is_own:
        return ""
    if module.partition(".")[0] in OWN_PACKAGES:
        return f"no module {missing}: {module.partition('.')[0]} is a package of attnfuzz here; give yours another name"
    return f"no module {missing}: run in its directory, or set PYTHONPATH, and name it without .py"


def find_user_line(error: BaseException) -> str:
    """`FILE:LINE: SOURCE` of the innermost line outside of attnfuzz, torch, Triton and Python; "" without such a
    line."""
    for frame, number in _walk_outwards(error):
        file = frame.f_code.co_filename
        source = "" if file.startswith("<") else linecache.getline(file, number).strip()  # "<eval_with_key>": a graph
        if source and frame.f_globals.get("__name__", "").partition(".")[0] not in _NOT_OF_USERS:
            return f"{Path(file).name}:{number}: {source}"[:_LONGEST]
    return ""


def _find_kernel(error: BaseException) -> str:
    """The Triton kernel or operator of torch that was called last; "" without a name."""
    for frame, _ in _walk_outwards(error):
        caller: Any = frame.f_locals.get("self")
        if type(caller).__module__.startswith(_LAUNCHERS):
            while hasattr(caller, "fn"):
                caller = caller.fn
            if name := getattr(caller, "__name__", ""):
                return str(name)
    return ""


def _walk_outwards(error: BaseException) -> list[tuple[FrameType, int]]:
    return list(traceback.walk_tb(_chain(error)[-1].__traceback__))[::-1]


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and its causes, outermost first. Wrappers of torch keep a cause in `inner_exception`."""
    links = [error]
    while True:
        last = links[-1]
        cause = getattr(last, "inner_exception", None) or last.__cause__
        if not isinstance(cause, BaseException) or cause in links:
            return links
        links.append(cause)


def _from_compiler(error: BaseException) -> bool:
    for link in _chain(error):
        if isinstance(link, CompilingFailed):
            return True
        if type(link).__module__.startswith(("torch._dynamo.exc", "torch._inductor.exc")):
            return True
        if any(frame.f_code.co_filename.endswith(_COMPILERS) for frame, _ in traceback.walk_tb(link.__traceback__)):
            return True
    return False
