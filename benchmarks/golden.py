"""Causes, flipping experiments and clusters of every case in corpus/known, as recorded before a change and now.

    python -m benchmarks.golden (--record FILE | --compare FILE) [--python PYTHON] [--device cpu]

A run takes some ten minutes on a core. benchmarks/measured/golden-VERSION.json holds the recorded data of a torch.
--compare prints a line for each difference, and exits with 1 if there is one.
"""

import argparse
import json
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from corpus.causes import Stage
from corpus.ledger import Ledger
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.root_cause import RootCause
from fuzz.experiments import OtherSubject
from triage.cluster.clusters import cluster
from triage.cluster.findings import attribute_findings, gather

KNOWN = Path(__file__).resolve().parent.parent / "corpus" / "known"


def main() -> int:
    """Record or compare. Returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    action = parser.add_mutually_exclusive_group(required=True)
    action.add_argument("--record", type=Path, metavar="FILE", help="write the data of this torch")
    action.add_argument(
        "--compare", type=Path, metavar="FILE", help="compare the data of this torch with a recorded one"
    )
    parser.add_argument("--python", help="interpreter, and so torch version, of the worker")
    parser.add_argument("--device", default="", choices=("cpu", "cuda"), help="default: that of each case")
    options = parser.parse_args()
    config = WorkerConfig(python=options.python or sys.executable, device=options.device, timeout=120.0)
    found = measure(config)
    if options.record:
        options.record.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", encoding="utf-8")
        return 0
    differences = list_differences(json.loads(options.compare.read_text(encoding="utf-8")), found)
    print("\n".join([*differences, f"{len(found)} cases, {len(differences)} differences"]))
    return int(bool(differences))


def measure(config: WorkerConfig) -> dict[str, dict[str, Any]]:
    """The cause, the experiments that flip, and the cluster of each case, by the name of its file.

    A cluster is named after the first of its cases, so that new words for a cause change no name.
    """
    with tempfile.TemporaryDirectory() as directory:
        findings = [replace(finding, run=Path(directory)) for finding in gather([KNOWN])]
        attributed = list(attribute_findings(findings, config, (), config.device))
        clusters = cluster(attributed, Ledger(Path("/dev/null")))
    names = {
        finding.id: min(_name(other.path) for other in one.findings) for one in clusters for finding in one.findings
    }
    return {
        _name(one.finding.path): {
            "cause": describe_cause(one.cause) if one.cause else "open",
            "flips": list_flips(one.cause) if one.cause else [],
            "cluster": names[one.finding.id],
        }
        for one in attributed
    }


def describe_cause(cause: RootCause) -> list[str]:
    """Who is at fault, the stage, the part and the mechanism."""
    return [cause.who, str(cause.stage), cause.part, str(cause.mechanism)]


def list_flips(cause: RootCause) -> list[str]:
    """The experiments that decide the cause: subjects that fail, changes without which the case passes, and proofs."""
    is_function = cause.stage is Stage.KERNEL
    return [
        f"{tried.experiment} {tried.argument}".strip()
        for tried in cause.evidence
        if (tried.experiment == "exact" or tried.flips)
        and not (is_function and isinstance(tried.row.change, OtherSubject))
    ]


def list_differences(recorded: dict[str, dict[str, Any]], found: dict[str, dict[str, Any]]) -> list[str]:
    """A line for each field of each case that differs."""
    return [
        f"{name}: {field}: {before.get(field)} -> {after.get(field)}"
        for name in sorted(recorded.keys() | found.keys())
        for before, after in [(recorded.get(name, {}), found.get(name, {}))]
        for field in ("cause", "flips", "cluster")
        if before.get(field) != after.get(field)
    ]


def _name(path: Path) -> str:
    return path.name.partition(".")[0]


if __name__ == "__main__":
    sys.exit(main())
