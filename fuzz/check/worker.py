"""A worker reads cases from standard input and checks them (see fuzz/protocol).

    python -m fuzz.check.worker [--device cpu] [--subject package.module:function] [--memory-limit MIB] [--parent PID]

Standard output carries only the protocol. Exit codes: 0 finished, 2 can't work here, 3 a fault of attnfuzz.
"""

import argparse
import atexit
import faulthandler
import functools
import gc
import os
import platform
import resource
import subprocess
import sys
import traceback
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NoReturn

from fuzz import protocol
from fuzz.check.torch_api.lifetime import end_with
from fuzz.protocol import Check, Exit, Fault, Hello, Message, ProtocolError, StageStarted, Unusable, from_json
from fuzz.protocol.capabilities import Capabilities
from fuzz.protocol.recording import KeepValues, LoadModule, RecordSubmodule, Repeat

if TYPE_CHECKING:
    from fuzz.check.module.module_session import ModuleSession
    from fuzz.check.run.subject_builder import Subject

OLDEST_TORCH = (2, 11)
UNUSABLE_CODE, FAULT_CODE = 2, 3

#: Libraries read these when torch is imported. By default oneDNN keeps code for 1024 shapes, a tenth of a MiB each.
ENVIRONMENT = {"OMP_NUM_THREADS": "1", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "64", "TORCHINDUCTOR_COMPILE_THREADS": "1"}

#: Triton reads this variable when a kernel is defined, and then interprets the kernel: it compiles none for a CPU.
INTERPRETER_ENVIRONMENT = {"TRITON_INTERPRET": "1"}

MessageHandler = Callable[[Message], Message]
Serve = Callable[[BinaryIO, BinaryIO, MessageHandler], int]
"""Takes the streams of requests and of results, and the function that answers a request. Returns the exit code."""


class ProcessUnusable(Exception):
    """The process can't check anything; the text is one line."""


def _serve(requests: BinaryIO, wire: BinaryIO, answer: MessageHandler) -> int:
    while (message := read_request(requests)) is not None:
        send(wire, answer(message))
    return 0


def main(arguments: list[str] | None = None, before: Callable[[], None] = lambda: None, serve: Serve = _serve) -> int:
    """Answer checks until the parent ends the process. Returns the exit code.

    before: called before torch is imported; may raise `ProcessUnusable`
    serve: reads checks and sends their results until the parent ends the process
    """
    options = _options(arguments)
    if options.parent:
        end_with(options.parent)
    wire = os.fdopen(os.dup(1), "wb", buffering=0)
    requests = os.fdopen(os.dup(0), "rb")
    os.dup2(2, 1)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    # A process that a function forks must not answer.
    os.register_at_fork(after_in_child=wire.close)
    faulthandler.enable()
    prepare_environment(options.device)
    try:
        if options.memory_limit:
            # RLIMIT_DATA bounds writable memory; RLIMIT_AS would count the address space CUDA reserves.
            resource.setrlimit(resource.RLIMIT_DATA, (options.memory_limit << 20, options.memory_limit << 20))
        before()
        subjects = _start(options, lambda step: send(wire, StageStarted(0, step)))
    except ProcessUnusable as reason:
        send(wire, Unusable(str(reason)))
        return UNUSABLE_CODE
    send(wire, StageStarted(0, "importing torch._inductor"))
    cxx = find_cxx()
    gc.collect()
    gc.freeze()
    send(wire, _hello(options, subjects, cxx))
    usable = subjects if cxx or options.device != "cpu" else {n: s for n, s in subjects.items() if not s.spec.needs_cxx}

    sessions: list[ModuleSession] = []
    shown = {protocol.EAGER}  # subjects whose own code was seen to decide

    def answer(message: Message) -> Message:
        from fuzz.check import control
        from fuzz.check.check import check
        from fuzz.check.module.module_session import ModuleSession
        from fuzz.check.torch_api import compilation

        sessions[:] = sessions or [ModuleSession(options.device)]
        if not isinstance(message, Check):
            return sessions[0].answer(message)
        compilers = [usable[name] for name in message.subjects if name in usable and usable[name].compiles]
        if compilers and (switch := compilation.find_switch()):
            refuse(switch)
        result = check(
            message,
            usable,
            options.device,
            lambda stage, *observed: send(wire, StageStarted(message.id, stage, observed)),
            sessions[0].open,
        )
        for one in result.results if not result.unfit else ():
            if control.is_doubted(one) and (one.subject not in shown or control.is_idle(one)):
                send(wire, StageStarted(message.id, one.subject))
                if fault := control.find_fault(usable[one.subject], options.device):
                    refuse(f"{one.subject} {fault}")
                shown.add(one.subject)
        return replace(result, rss_mib=_rss_mib())

    def refuse(reason: str) -> NoReturn:
        send(wire, Unusable(reason))
        end(UNUSABLE_CODE)

    try:
        return serve(requests, wire, answer)
    except Exception:
        send(wire, Fault(traceback.format_exc()))
        return FAULT_CODE


def prepare_environment(device: str) -> None:
    """Set the variables that libraries read when they are imported, unless they are set."""
    for name, value in {**ENVIRONMENT, **(INTERPRETER_ENVIRONMENT if device == "cpu" else {})}.items():
        os.environ.setdefault(name, value)


def _options(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m fuzz.check.worker", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"), help="where cases run (default: cpu)")
    parser.add_argument(
        "--subject", action="append", default=[], help="a function to import, or a subject to load; may be repeated"
    )
    parser.add_argument("--memory-limit", type=int, default=0, help="limit of memory in MiB; 0 for none (default)")
    parser.add_argument("--parent", type=int, default=0, help="the process that starts this; end when it ends")
    return parser.parse_args(arguments)


def _start(options: argparse.Namespace, announce: Callable[[str], None]) -> "dict[str, Subject]":
    announce("importing torch")
    try:
        import torch
    except ImportError as error:
        raise ProcessUnusable(f"{sys.executable} can't import torch: {error}") from error
    version = tuple(int(part) for part in torch.__version__.split("+")[0].split(".")[:2])
    if version < OLDEST_TORCH:
        oldest = ".".join(map(str, OLDEST_TORCH))
        raise ProcessUnusable(f"{sys.executable} has torch {torch.__version__}; {oldest} or later is needed")
    if options.device == "cuda" and not torch.cuda.is_available():
        raise ProcessUnusable(f"torch {torch.__version__} in {sys.executable} sees no CUDA device")
    from fuzz.check.run.subject_builder import available, find
    from fuzz.check.torch_api import settings
    from fuzz.check.torch_api.exceptions import SubjectError

    settings.configure_torch()
    subjects = available(options.device)
    try:
        for name in options.subject:
            announce(f"importing {name.partition(':')[0]}")
            subject = find(name)
            if problem := subject.compiler.find_problem() if subject.compiler else "":
                raise ProcessUnusable(f"subject {name!r} can't run: {problem}")
            if ":" in name or name in subjects:
                subjects[name] = subject
            if subject.spec.is_foreign:
                # What its runtime and torch's exporter build at their first use is then frozen with the rest.
                subject.warm_up()
    except SubjectError as error:
        raise ProcessUnusable(str(error)) from error
    return subjects


def _hello(options: argparse.Namespace, subjects: "dict[str, Subject]", cxx: str | None) -> Hello:
    import torch

    from fuzz.check.torch_api.compilation import find_switch
    from fuzz.check.torch_api.coverage import missing_hooks
    from fuzz.check.torch_api.exceptions import SubjectError
    from fuzz.check.torch_api.torch_places import HOME
    from fuzz.compilers.table import COMPILERS

    functions = {name: subject.attention for name, subject in sorted(subjects.items()) if subject.attention}
    attention = dict.fromkeys(functions, Capabilities())
    for name in functions.keys() & {*options.subject}:
        with suppress(SubjectError):  # Its cases say why it can't be loaded.
            attention[name] = functions[name].capabilities
    compilers = [*COMPILERS.values(), *(subjects[name].compiler for name in options.subject if name in subjects)]
    return Hello(
        torch=torch.__version__,
        python=platform.python_version(),
        device=options.device,
        cxx=cxx,
        pid=os.getpid(),
        device_name=torch.cuda.get_device_name() if options.device == "cuda" else platform.machine(),
        subjects=tuple(sorted(subjects)),
        attention=attention,
        abilities={
            name: tuple(sorted(subject.compiler.capabilities.abilities))
            for name, subject in subjects.items()
            if ":" in name and subject.compiler
        },
        home=HOME,
        missing_hooks=missing_hooks(),
        switch=find_switch(),
        versions={name: told for row in compilers if row for name, told in row.versions.items() if told},
    )


@functools.cache
def find_cxx() -> str | None:
    """The version line of Inductor's C++ compiler; None without a compiler."""
    from torch._inductor import cpp_builder, exc

    try:
        compiler = cpp_builder.get_cpp_compiler()
        shown = subprocess.run([compiler, "--version"], capture_output=True, text=True, check=True, timeout=30)
    except (exc.InvalidCxxCompiler, OSError, subprocess.SubprocessError, RuntimeError):
        return None
    return shown.stdout.splitlines()[0].strip() if shown.stdout else str(compiler)


def read_request(requests: BinaryIO) -> Message | None:
    """The next request; None when the parent ends the process. Raises `ProtocolError`."""
    line = requests.readline()
    message = from_json(line) if line else Exit()
    if isinstance(message, Exit):
        return None
    if not isinstance(message, (Check, KeepValues, LoadModule, RecordSubmodule, Repeat)):
        raise ProtocolError(f"a parent does not send {message.kind!r}")
    return message


def _rss_mib() -> float:
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return round(pages * resource.getpagesize() / 2**20, 1)


def send(wire: BinaryIO, message: Message) -> None:
    """Write a message. The process ends if it is forked, or if its output is closed."""
    if wire.closed:
        os._exit(0)
    try:
        wire.write(message.to_json().encode() + b"\n")
    except OSError:
        os._exit(protocol.OUTPUT_CLOSED_CODE)


def end(code: int) -> NoReturn:
    """End the process without Python's teardown: it takes 0.3 s, in which it copies the memory shared with a server."""
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    end(main())
