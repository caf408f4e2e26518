"""Settings of cases: what they switch on, and what a torch that lacks one says."""

import json
import operator
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch._inductor import config, cpu_vec_isa
from torch._inductor.runtime import cache_dir_utils

from benchmarks.planted_torch.torch_defects import FUNCTIONS
from fuzz.check.run.subject_builder import Subject, find
from fuzz.check.torch_api import kernel_builds, settings
from fuzz.check.torch_api.exceptions import SubjectError
from fuzz.check.torch_api.torch_internals import require, wrap
from fuzz.protocol import CoverageItem, CoverageKind, Verdict
from fuzz.protocol.failures import NotTaken, Refusal
from generators.program.settings import SWITCHES, list_available
from tests.check.client import ROOT, Asker
from tests.check.generated_code import list_shown
from tests.check.in_process import changing, plain, run_subject, source

AVAILABLE = {device: list_available(torch.__version__, device) for device in ("cpu", "cuda")}
OPTIONS = [(device, name) for device, table in AVAILABLE.items() for name in table if name not in SWITCHES]


@pytest.mark.parametrize(("device", "name"), OPTIONS)
def test_a_setting_and_those_that_it_needs_exist_and_are_no_defaults(device: str, name: str) -> None:
    setting = AVAILABLE[device][name]
    assert operator.attrgetter(name)(config) not in setting.values
    for needed, value in setting.needs:
        assert value in AVAILABLE[device][needed].values


@pytest.mark.compiles
@pytest.mark.parametrize("device", AVAILABLE)
def test_settings_change_the_code(device: str) -> None:
    command = [sys.executable, "-m", "tests.check.generated_code", device]
    # Tests interpret Triton's kernels.
    native = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    text = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT, env=native).stdout
    said = dict(json.loads(line) for line in text.splitlines() if line.startswith("["))
    assert said == dict.fromkeys(list_shown(device), "")


def test_a_subject_with_options_says_under_which_settings_it_ran(worker: Asker) -> None:
    settings = {"cpp.simdlen": 1, "freezing": True}
    named = {CoverageItem(CoverageKind.SETTING, name) for name in ("cpp.simdlen", "freezing")}
    results = worker.check(plain(), "passes", "passes_options", settings=settings).results
    assert [named & {*result.coverage} for result in results] == [set(), named]
    assert not config.freezing


def test_a_setting_that_this_torch_lacks_skips_the_subject(worker: Asker) -> None:
    lacked = worker.one(plain(), "passes_options", settings={"cpp.no_such_setting": 1})
    assert isinstance(lacked.failure, NotTaken)
    assert (lacked.verdict, lacked.failure.why) == (Verdict.SKIPPED, Refusal.UNSUPPORTED)
    assert "cpp.no_such_setting" in lacked.failure.detail and torch.__version__ in lacked.failure.detail


def test_torch_without_a_deterministic_algorithm_skips_the_subject() -> None:
    subject = replace(find("inductor_options"), options={"use_deterministic_algorithms": True})
    with pytest.raises(SubjectError), subject.apply_settings():
        torch.ones(2).put_(torch.tensor([0]), torch.ones(1))
    assert not torch.are_deterministic_algorithms_enabled()


def _allocate(*args: Any) -> Any:
    """As a generated wrapper that is loaded now does it."""
    return require("torch._C._dynamo.guards", "_empty_strided_cpu")(*args)


def _read_unwritten(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        found = _allocate((64,), (1,), torch.int32)
        return module(*inputs) + (found > 2_000_000_000).sum()

    return run


def _overwrite_unwritten(module: nn.Module, _dynamic: bool | None) -> Callable[..., Any]:
    def run(*inputs: Any) -> Any:
        result = module(*inputs)
        memory = _allocate(tuple(result.shape), result.stride(), result.dtype)
        return memory.copy_(result)

    return run


@pytest.mark.parametrize("kind", ["nan", "large"])
def test_a_read_of_memory_that_nothing_wrote_to_shows_under_poison_alone(kind: str) -> None:
    subject = Subject("inductor_options", _read_unwritten)
    found = run_subject(subject, settings={"poison": kind})
    assert found.verdict is Verdict.WRONG_RESULT
    assert found.failure is not None and found.failure.unwritten
    assert not run_subject(subject, settings={"cpp.simdlen": 1}).verdict.is_finding
    assert not run_subject(Subject("inductor_options", _overwrite_unwritten), settings={"poison": kind}).failure


def test_what_is_wrong_without_poison_too_does_not_read_such_memory() -> None:
    found = run_subject(changing(lambda out: out * 2, "inductor_options"), settings={"poison": "nan"})
    assert found.failure is not None and not found.failure.unwritten


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.bool, torch.uint8])
def test_poison_is_nan_or_large_between_the_rows_too(dtype: torch.dtype) -> None:
    settings.install_poison()
    for kind in ("nan", "large"):
        with settings.poison(kind):
            found = _allocate((2, 3), (5, 1), dtype).as_strided((8,), (1,))
        if dtype.is_floating_point:
            assert bool(found.isnan().all() if kind == "nan" else (found.isfinite() & (found > 6e4)).all())
        else:
            assert int(found.min()) >= torch.iinfo(dtype).max // 3 if dtype is not torch.bool else found.all()


def test_a_torch_without_the_functions_that_allocate_skips_poison(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr(torch._C._dynamo.guards, "_empty_strided_cpu")
    with pytest.raises(SubjectError), settings.poison("nan"):
        pass


_ATTENTION = "(q @ k.transpose(-2, -1) / 4.0).softmax(-1)"
PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "unwritten_read": ("return q.sin() + k", {"poison": "nan"}),
    "split_sum_cut": ("return (q * k).sum()", {"cpp.threads": 2}),
    "strides_swapped": (f"return {_ATTENTION} @ (v * 2)", {"memory_planning": True}),
    "choice_wrong": (
        "return q @ k.transpose(-2, -1).contiguous()",
        {"max_autotune": True, "max_autotune_gemm_backends": "CPP"},
    ),
    "sum_unstable": ("return (q * k).sum(-1)", {"use_deterministic_algorithms": True}),
}


@pytest.mark.compiles
@pytest.mark.parametrize("plant", PLANTED)
def test_mistakes_planted_in_torch_show_under_the_settings_that_switch_them_on(plant: str) -> None:
    line, options = PLANTED[plant]
    subject, text = find("inductor_options"), source(line, dims="2, 4, 33, 32")
    with wrap(*FUNCTIONS[plant]):
        found = run_subject(subject, text=text, settings=options)
        assert found.verdict.is_finding
        assert (found.verdict is Verdict.NONDETERMINISTIC) == (plant == "sum_unstable")
        assert found.failure is not None and found.failure.unwritten == ("poison" in options)
        assert not run_subject(subject, text=text).verdict.is_finding
    assert not run_subject(subject, text=text, settings=options).verdict.is_finding


def test_a_probe_of_vector_instructions_that_works_is_not_repeated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def check_build(isa: object, code: str) -> bool:
        asked.append(code)
        return code != "broken"

    monkeypatch.setattr(cpu_vec_isa.VecISA, "check_build", check_build)
    monkeypatch.setattr(cache_dir_utils, "default_cache_dir", lambda: str(tmp_path))
    kernel_builds.install()
    isa = cpu_vec_isa.VecAVX2()
    for code in ("one", "one", "broken", "broken", "other"):
        assert isa.check_build(code) == (code != "broken")
    assert asked == ["one", "broken", "broken", "other"]
