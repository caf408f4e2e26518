"""Whether a fork server lasts: workers are started and killed, and the server too.

    python -m benchmarks.forks [--forks 1000] [--kills 200] [--servers 20] [--python PYTHON]

Starts workers from one server, kills some of them, then kills the server several times. Each worker judges a case
first. Prints the server's memory after each tenth of the workers, the seconds of a start and a case, and processes that
are left. Returns 1 if a result is lost, a process is left, or the server's memory grows by a tenth. A worker may start
without a server that is just being killed, and is counted.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from pathlib import Path
from statistics import median

from fuzz.ask.question import Question, build_check
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig
from fuzz.ask.worker_process import WorkerProcess
from fuzz.protocol import Verdict
from generators.program.case import Case, Input
from generators.program.ops import make_op
from generators.program.sizes import Size

CHECK = build_check(
    Question(
        Case((("S", 2),), (Input("x", (Size.of("S"),), "float32"),), (make_op("y", "relu", ["x"], {}),), ("y",)),
        ("passes",),
    )
)


def main() -> int:
    """Start, kill and print. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--forks", type=int, default=1000, help="workers that are started")
    parser.add_argument("--kills", type=int, default=200, help="workers that are killed")
    parser.add_argument("--servers", type=int, default=20, help="kills of the server")
    parser.add_argument("--python", default=sys.executable, help="interpreter of the workers")
    options = parser.parse_args()
    workers, servers, seconds, memory, lost, alone = set[int](), set[int](), list[float](), list[int](), 0, 0
    with tempfile.TemporaryDirectory(prefix="attnfuzz-forks-") as scratch:
        config = WorkerConfig(python=options.python, cache=Path(scratch, "cache"), log=Path(scratch, "log"))
        process = WorkerProcess(config, PipeTransport())
        for number in range(options.forks):
            started = time.monotonic()
            worker = process.start().pid
            server = _read_parent(worker)
            is_alone = server in (1, os.getpid())
            alone += is_alone
            process.send(CHECK)
            lost += process.receive().results[0].verdict is not Verdict.OK
            seconds.append(time.monotonic() - started)
            workers.add(worker)
            if not is_alone:
                servers.add(server)
            if not is_alone and number % max(options.forks // 10, 1) == 0:
                memory.append(_read_mib(server))
                print(f"worker {number}: server of {memory[-1]} MiB", flush=True)
            if number < options.kills:
                os.kill(worker, signal.SIGKILL)
            elif number >= options.forks - options.servers and not is_alone:
                os.kill(server, signal.SIGKILL)
            process.replace()
        process.close()
    deadline = time.monotonic() + 10.0
    while (left := [pid for pid in workers | servers if _is_left(pid, servers)]) and time.monotonic() < deadline:
        time.sleep(0.1)
    print(f"{len(workers)} workers from {len(servers)} servers, {alone} started without one, {lost} results lost")
    print(f"processes left: {left or 'none'}")
    print(f"seconds from start to result, median and largest: {median(seconds):.2f}, {max(seconds):.2f}")
    return 1 if lost or left or alone > options.servers or memory[-1] > 1.1 * memory[0] else 0


def _read_parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


def _read_mib(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") >> 20


def _is_left(pid: int, servers: set[int]) -> bool:
    """Whether a process runs, and is not the server that ends with this process."""
    try:
        return _read_parent(pid) != os.getpid() or pid not in servers
    except FileNotFoundError:
        return False


if __name__ == "__main__":
    sys.exit(main())
