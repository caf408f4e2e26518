"""`pytest` here also replays the case files of the corpus. Without a GPU, Triton interprets its kernels."""

import atexit
import os
import shutil
import tempfile

import pytest
import torch
from packaging.specifiers import SpecifierSet

pytest_plugins = ["fuzz.pytest_plugin", "pytester"]

if not torch.cuda.is_available():
    # Read whenever a module that has kernels is imported, Triton's own among them: earlier than by any test.
    os.environ["TRITON_INTERPRET"] = "1"

# As in workers: Inductor's pool of compiling processes imports torch once more.
os.environ["TORCHINDUCTOR_COMPILE_THREADS"] = "1"

if "TORCHINDUCTOR_CACHE_DIR" not in os.environ:
    # One for all processes of the run: Inductor's first compile into a new directory takes 20 s.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = tempfile.mkdtemp(prefix="attnfuzz-tests-")
    atexit.register(shutil.rmtree, os.environ["TORCHINDUCTOR_CACHE_DIR"], ignore_errors=True)


def pytest_report_header() -> str:
    """What was tested, for a reader of the log."""
    return f"torch {torch.__version__}"


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Skip what only other versions of torch have."""
    for marker in item.iter_markers("torch"):
        if not SpecifierSet(marker.args[0]).contains(torch.__version__.partition("+")[0], prereleases=True):
            pytest.skip(f"only torch {marker.args[0]} {marker.args[1]}")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Replay known bugs of AOTAutograd, eager and graph passes under `passes`, since C++ takes seconds.

    The first is compiled all the same, as are cases of a GPU.
    """
    from corpus import ledger
    from corpus.causes import Stage
    from fuzz.pytest_plugin import CaseItem  # a plugin of this run: pytest imports it first

    if config.getoption("case_subject") or not any(isinstance(item, CaseItem) for item in items):
        return
    bugs = ledger.load(ledger.LEDGER)
    early = {Stage.DYNAMO, Stage.DECOMPOSITION, Stage.JOINT_PASSES, Stage.GRAPH_PASSES, Stage.OPERATION}
    causes = ((bug, bug.cause) for bug in bugs.bugs)
    # `passes` captures most programs without Dynamo, and has no guards that choose between compiled calls.
    needs_dynamo = {"calls_apart"}
    shown = [
        bug
        for bug, cause in causes
        if cause.stage in early and cause.who != "dynamo" and needs_dynamo.isdisjoint(dict(bug.decided_by))
    ]
    paths = {path for bug in shown for path in bugs.examples(bug)}
    is_compiled = False
    for number, item in enumerate(items):
        if not isinstance(item, CaseItem) or item.parent is None or item.subjects != ("inductor",):
            continue
        if item.entry.device == "cpu" and item.path in paths:
            if is_compiled:
                items[number] = CaseItem.from_parent(item.parent, name="passes", entry=item.entry, subjects=("passes",))
            is_compiled = True
