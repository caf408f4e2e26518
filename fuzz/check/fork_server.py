"""A process that imports torch once, and forks workers: a fork takes 0.05 s, the imports take 5 s.

    python -m fuzz.check.fork_server [--device cpu]

Standard input is a socket. Each message is a request: the `arguments` of fuzz.check.worker and its `environment`, as
JSON, and four descriptors: the standard input, output and error of the worker, and a pipe. The pipe gets a byte and a
C integer twice: `p` and the worker's pid when it leads a process group, `x` and its exit code when it has ended.

The server ends when the socket is closed. It also ends if an import has started a thread or CUDA, which a fork breaks.
Its workers end with it.
"""

import argparse
import gc
import importlib
import json
import os
import select
import signal
import socket
import struct
from contextlib import nullcontext, suppress
from pathlib import Path

from fuzz.check import worker

NOT_SAFE_CODE = 4
_REQUEST_BYTES = 1 << 20
_MODULES = (
    "fuzz.check.check",
    "torch._dynamo.backends.inductor",
    "torch._inductor.bounds",
    "torch._inductor.choices",
    "torch._inductor.compile_fx",
    "setuptools",
    "sympy.physics.units",
)
"""Modules that every worker imports by the end of its first compile."""

Request = tuple[list[str], dict[str, str], list[int]]
"""The arguments, environment and descriptors of a worker."""


def main() -> int:
    """Serve until the parent closes the socket. Returns the exit code: of the server, or of a worker in its process."""
    parser = argparse.ArgumentParser(prog="python -m fuzz.check.fork_server", description=__doc__.splitlines()[0])
    parser.add_argument("--device", default="cpu", choices=("cpu", "cuda"))
    requests = socket.socket(fileno=os.dup(0))
    device = parser.parse_args().device
    worker.prepare_environment(device)
    from fuzz.check.torch_api.torch_internals import intercept

    # torch assumes a GPU: Inductor counts GPUs when it is imported, which would start CUDA's driver.
    with intercept("torch._C", "_cuda_getDeviceCount", lambda _: 1) if device == "cuda" else nullcontext():
        for module in _MODULES:
            with suppress(ImportError):
                importlib.import_module(module)
    worker.find_cxx()
    gc.collect()
    gc.freeze()
    request = _serve(requests)
    if request is None:
        return 0 if _is_safe() else NOT_SAFE_CODE
    return _become_worker(request)


def _is_safe() -> bool:
    import torch

    return len([*Path("/proc/self/task").iterdir()]) == 1 and not torch.cuda.is_initialized()


def _serve(requests: socket.socket) -> Request | None:
    """Fork a worker for each request. Returns None in the server, and its request in a worker."""
    server, pipes = os.getpid(), dict[int, int]()
    wake, wakes = os.pipe()
    for end in (wake, wakes):
        os.set_blocking(end, False)
    signal.set_wakeup_fd(wakes)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    while _is_safe():
        ready, _, _ = select.select([requests.fileno(), wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            _report_ends(pipes)
        if requests.fileno() not in ready:
            continue
        message, descriptors, _, _ = socket.recv_fds(requests, _REQUEST_BYTES, 4)
        if not message:
            return None
        pid = os.fork()
        if pid:
            pipes[pid] = descriptors.pop()
            for descriptor in descriptors:
                os.close(descriptor)
            continue
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for descriptor in (*pipes.values(), wake, wakes):
            os.close(descriptor)
        requests.close()
        read = json.loads(message)
        return [*read["arguments"], "--parent", str(server)], read["environment"], descriptors
    return None


def _report_ends(pipes: dict[int, int]) -> None:
    with suppress(ChildProcessError):  # None is left.
        while (ended := os.waitpid(-1, os.WNOHANG))[0]:
            pipe = pipes.pop(ended[0])
            with suppress(BrokenPipeError):  # Nobody waits for this worker any more.
                os.write(pipe, struct.pack("=ci", b"x", os.waitstatus_to_exitcode(ended[1])))
            os.close(pipe)


def _become_worker(request: Request) -> int:
    arguments, environment, (*descriptors, pipe) = request
    os.setsid()
    os.write(pipe, struct.pack("=ci", b"p", os.getpid()))  # It raises if nobody waits for this worker any more.
    os.close(pipe)
    for number, descriptor in enumerate(descriptors):
        os.dup2(descriptor, number)
        os.close(descriptor)
    os.environ.update(environment)
    return worker.main(arguments)


if __name__ == "__main__":
    worker.end(main())
