"""Kill worker processes, actors and nodes of a local Ray cluster while a campaign runs on it.

    python -m benchmarks.chaos_ray [--nodes 4] [--minutes 15] [--every 40] [--seed 1]

Each node runs one worker. Every `--every` seconds (0: never) a worker process, an actor or a node is killed, drawn at
random; another node replaces a killed node. Workers are fakes: each case takes a second and passes, so that few CPUs
run many workers. Prints cases per second in all and around each kill. Then continues the campaign. Exits with 1 if a
case was lost, judged twice or failed, or if a process is left.
"""

import argparse
import os
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.chaos import LATE_SECONDS, MARK, Campaign, Round
from fuzz.ask.worker_config import ROOT
from fuzz.run_store import read_events

PROCESSES = "fake_worker.py", "ray::WorkerHost"
"""Workers and their actors, in their command lines."""


class Nodes:
    """A Ray cluster of local nodes, each with a place for one worker, and a head without."""

    def __init__(self, count: int) -> None:
        from ray.cluster_utils import Cluster

        self._cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False})
        self._nodes: list[Any] = []
        self.address = self._cluster.address
        for _ in range(count):
            self.add()

    def add(self) -> None:
        """One more."""
        self._nodes.append(self._cluster.add_node(num_cpus=1))

    def kill(self, index: int) -> None:
        """End one and all that it runs."""
        self._cluster.remove_node(self._nodes.pop(index), allow_graceful=False)

    def close(self) -> None:
        """End all."""
        self._cluster.shutdown()


def main() -> int:
    """Run a campaign on local nodes while they, actors and workers are killed. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--nodes", type=int, default=4)
    parser.add_argument("--minutes", type=float, default=15.0)
    parser.add_argument("--every", type=float, default=40.0, help="seconds between two kills")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    directory, rng, mark = (
        Path(tempfile.mkdtemp(prefix="attnfuzz-chaos-")),
        random.Random(options.seed),
        str(os.getpid()),
    )
    os.environ[MARK] = mark
    nodes, campaign, kills = Nodes(options.nodes), Campaign("torch", directory), list[tuple[float, str]]()
    python = directory / "python"
    python.write_text(
        f"#!/bin/sh\nexec {sys.executable} {ROOT / 'tests/campaign/fake_worker.py'} '{{\"seconds\": 1}}'\n"
    )
    python.chmod(0o755)
    command = [sys.executable, "-m", "fuzz.run", "--engine=random", f"--python={python}", f"--out={campaign.out}"]
    command += [f"--corpus={campaign.found}", "--subject=passes", "--memory=1000", f"--ray={nodes.address}"]

    def begin(budget: str, seconds: float) -> Round:
        given = [*command, f"--budget={budget}", f"--workers={options.nodes}"]
        return Round(given, campaign.log, campaign.out, seconds=seconds, mark=mark, rng=rng, disk=None)

    run = begin(f"{60 * options.minutes:.0f}s", 60 * options.minutes)
    while not run.began and run.seconds_left() > 0 and run.wait(0.2):
        pass
    while run.seconds_left() > LATE_SECONDS:
        pause = min(options.every or options.minutes * 60, run.seconds_left() - LATE_SECONDS)
        if not run.wait(max(pause, 0.1)) or not options.every:
            break
        if run.seconds_left() <= LATE_SECONDS:
            continue
        kind = rng.choice([*PROCESSES, "node"])
        victims = find_processes(run, kind)
        if kind == "node":
            nodes.kill(rng.randrange(options.nodes))
        elif victims:
            os.kill(rng.choice(victims), signal.SIGKILL)
        kills.append((time.time(), kind))
        if kind == "node":
            run.wait(options.every / 4)
            nodes.add()
    run.parent.wait(2 * LATE_SECONDS)
    faults = [f"exit code {run.parent.returncode}"] if run.parent.returncode not in {0, 1} else []
    faults += [f"{name} is left" for name in PROCESSES if find_processes(run, name)]
    judged = read_events(campaign.out, "CaseJudged")
    print_rates([line["time"] for line in judged], kills)
    # The next run first judges what this one left.
    begin(f"{2 * options.nodes}x", 600.0).parent.wait(600)
    counted = Counter(line["index"] for line in read_events(campaign.out, "CaseJudged"))
    nodes.close()
    faults += [
        f"case {index} is lost" for index in range(1 + max(line["index"] for line in judged)) if index not in counted
    ]
    faults += [f"case {index} was judged {count} times" for index, count in counted.items() if count > 1]
    accused = Counter(verdict for line in judged for verdict in line["verdicts"].values())
    faults += [f"{verdict}: {count}" for verdict, count in accused.items() if verdict != "ok"]
    print(f"{len(judged)} cases, {sum(bool(line['rejected']) for line in judged)} refused, verdicts {dict(accused)}")
    print(f"{len(kills)} kills, {len(faults)} faults", *faults, sep="\n  ")
    return 1 if faults else 0


def find_processes(run: Round, word: str) -> list[int]:
    """The processes of a run, and of its cluster, with this word in their command line."""
    found = []
    for pid in run.processes():
        try:
            if word.encode() in Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" "):
                found.append(pid)
        except OSError:
            continue
    return found


def print_rates(judged: list[float], kills: list[tuple[float, str]]) -> None:
    """Cases a second in all, and around each kill."""

    def rate(begin: float, end: float) -> float:
        return sum(begin <= when < end for when in judged) / (end - begin)

    print(f"{len(judged)} cases, {rate(judged[0], judged[-1]):.2f} a second")
    spans = ((-20, 0), (0, 10), (10, 20), (20, 30), (30, 40))
    print("kill of             " + "".join(f"{f'{begin} to {end} s':>14}" for begin, end in spans))
    for when, kind in kills:
        print(f"{kind:20}" + "".join(f"{rate(when + begin, when + end):14.2f}" for begin, end in spans), flush=True)


if __name__ == "__main__":
    sys.exit(main())
