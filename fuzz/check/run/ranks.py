"""Ranks on this machine, two or a mesh of 2 x 2, which talk by gloo. Python's fork server, which has torch, forks them.

Each rank gets a `RankProgram`, and answers with its `Execution`, or with the `SubjectResult` of an exception. The end
of a rank is a `SubjectResult` too. Ranks live on, unless a rank raises, ends or hangs alone. They end with the worker.
"""

import faulthandler
import math
import multiprocessing
import os
import pickle
import socket
import traceback
from contextlib import suppress
from dataclasses import replace
from datetime import timedelta
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from signal import SIGKILL
from tempfile import NamedTemporaryFile
from typing import IO, Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from fuzz.check.run.program import Execution, Program
from fuzz.check.run.sharded import RankProgram, find_refusal, run_part
from fuzz.check.torch_api import exceptions, settings
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.lifetime import end_with
from fuzz.check.torch_api.torch_places import find_raising
from fuzz.protocol import StepsTaken, SubjectResult, Verdict
from fuzz.protocol.exits import explain_exit
from fuzz.protocol.failures import NotTaken, Process, ProcessLost, Raised, Refusal

_PATIENCE_SECONDS = 2.0
"""How long ranks may run on when another rank has raised: they may wait for its data."""
_LOST_PEER = "by peer"
"""Part of gloo's error when another rank has ended."""

_TRIES = 2
"""How often a part is run if somebody kills its ranks."""
_KILLED = SubjectResult("", Verdict.WORKER_DIED, failure=ProcessLost(Process.SIGNAL, SIGKILL.name))

_FORKS = multiprocessing.get_context("forkserver")
_FORKS.set_forkserver_preload([__name__])

RankAnswer = tuple[Execution | SubjectResult, list[StepsTaken]]


def run_on_ranks(part: RankProgram) -> list[RankAnswer]:
    """The answers of the ranks, first the answer that counts. There is more than one only if no rank failed.

    Raises RuntimeError, with its traceback, for an exception of attnfuzz in a rank.
    """
    for _ in range(_TRIES):
        ranks = _idle.pop(part.mesh, None) or _Ranks(part.mesh)
        answers = ranks.ask(pickle.dumps(part))
        if _are_in_step(answers):
            _idle[part.mesh] = ranks
            break
        ranks.end()
        if not any(answer and answer[0] == _KILLED for answer in answers):
            if ranks.fault:
                raise RuntimeError(ranks.fault)
            break
    return _choose(answers)


class _Ranks:
    """The processes of the ranks, a mesh of these sizes."""

    def __init__(self, mesh: tuple[int, ...]) -> None:
        self._processes = dict[Connection, ForkServerProcess]()
        self._dumps = dict[Connection, IO[str]]()  # files to which faulthandler writes where a rank crashes
        self.fault = ""  # the traceback of an exception of attnfuzz in a rank
        with socket.create_server(("127.0.0.1", 0)) as listener:
            for rank in range(math.prod(mesh)):
                mine, theirs = multiprocessing.Pipe()
                dump = self._dumps[mine] = NamedTemporaryFile("r")  # noqa: SIM115 - `end` closes it
                self._processes[mine] = _FORKS.Process(target=_be_rank, args=(rank, mesh, theirs, listener, dump.name))
                self._processes[mine].start()
                theirs.close()

    def ask(self, part: bytes) -> list[RankAnswer | None]:
        """The answers of the ranks to a `RankProgram`; None of a rank that was not waited for."""
        for connection in self._processes:
            with suppress(OSError):
                connection.send_bytes(part)
        answers: dict[Connection, RankAnswer] = {}
        while left := [connection for connection in self._processes if connection not in answers]:
            is_failing = any(isinstance(answer, SubjectResult) for answer, _ in answers.values())
            ready = wait(left, _PATIENCE_SECONDS if is_failing else None)
            if not ready:
                break
            for connection in left:
                if connection in ready:
                    answers[connection] = self._receive(connection)
        return [answers.get(connection) for connection in self._processes]

    def _receive(self, connection: Connection) -> RankAnswer:
        try:
            answer: RankAnswer | str = pickle.loads(connection.recv_bytes())  # noqa: S301 - from a process of this worker
        except (EOFError, OSError):
            process = self._processes[connection]
            process.join()
            lost = explain_exit(process.exitcode or 0, self._dumps[connection].readlines())
            return SubjectResult("", Verdict.WORKER_DIED, failure=lost), []
        if isinstance(answer, str):
            self.fault = answer
            return SubjectResult("", Verdict.WORKER_DIED), []
        return answer

    def end(self) -> None:
        """End the processes."""
        for connection, process in self._processes.items():
            process.kill()
            process.join()
            connection.close()
            self._dumps[connection].close()


_idle = dict[tuple[int, ...], _Ranks]()  # ranks that can go on, by their mesh


def _be_rank(rank: int, sizes: tuple[int, ...], connection: Connection, listener: socket.socket, dump: str) -> None:
    """Answer until the connection ends, and end the process."""
    end_with(os.getppid())
    try:
        faulthandler.enable(Path(dump).open("w", encoding="utf-8"))  # noqa: SIM115 - it stays open
        settings.configure_torch()
        os.environ["GLOO_SOCKET_IFNAME"] = "lo"
        port, first = listener.getsockname()[1], dict[str, Any]() if rank else {"master_listen_fd": listener.detach()}
        store = dist.TCPStore("127.0.0.1", port, math.prod(sizes), is_master=not rank, **first)  # type: ignore[attr-defined]
        # The worker's time limit is the limit of a rank that waits.
        dist.init_process_group("gloo", store=store, rank=rank, world_size=math.prod(sizes), timeout=timedelta(days=1))
        mesh = init_device_mesh("cpu", sizes)
        while True:
            connection.send_bytes(pickle.dumps(_answer(pickle.loads(connection.recv_bytes()), mesh)))  # noqa: S301
    except Exception:
        connection.send_bytes(pickle.dumps(traceback.format_exc()))
    finally:
        os._exit(1)


def _answer(part: RankProgram, mesh: DeviceMesh) -> RankAnswer:
    program, taken = Program(part.request.source), list[Any]()
    try:
        return run_part(part, program, mesh, taken.append), taken
    except Exception as error:
        limit = find_refusal(error)
        if limit:
            refusal = error.refusal if isinstance(error, SubjectError) else Refusal.UNSUPPORTED
            return SubjectResult("", Verdict.SKIPPED, failure=NotTaken(refusal, limit)), taken
        place, (verdict, failure) = find_raising(exceptions.find_root(error)), exceptions.blame(error)
        if place and isinstance(failure, Raised) and not failure.text:
            failure = replace(failure, place=f"{place.function} ({place.file.rpartition('/')[2]})")
        return SubjectResult("", verdict, failure=failure, raised_at=place), taken
    finally:
        torch._dynamo.reset()
        program.close()


def _choose(answers: list[RankAnswer | None]) -> list[RankAnswer]:
    """The answer of a rank that failed by itself, else all answers."""
    given = [answer for answer in answers if answer is not None]
    failed = [answer for answer in given if isinstance(answer[0], SubjectResult)]
    return sorted(failed, key=lambda answer: _is_of_peer(answer[0]))[:1] or given


def _is_of_peer(answer: Execution | SubjectResult) -> bool:
    failure = answer.failure if isinstance(answer, SubjectResult) else None
    return isinstance(failure, Raised) and _LOST_PEER in failure.text


def _are_in_step(answers: list[RankAnswer | None]) -> bool:
    """Whether all ranks have run the program to its end, or to the same exception."""
    results = [answer and answer[0] for answer in answers]
    raised = [result for result in results if isinstance(result, SubjectResult)]
    if any(result.verdict is Verdict.WORKER_DIED for result in raised):
        return False
    is_alike = len(raised) == len(results) and all(result == raised[0] for result in raised)
    return is_alike or all(isinstance(result, Execution) for result in results)
