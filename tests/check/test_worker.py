"""A worker as its parent sees it."""

import io
import os
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from fuzz.ask.question import Question, build_check
from fuzz.ask.transport import PipeTransport
from fuzz.ask.worker_config import WorkerConfig, list_named
from fuzz.ask.worker_process import WorkerProcess
from fuzz.check.run.subject_builder import find
from fuzz.check.torch_api.exceptions import SubjectError, as_failure
from fuzz.check.worker import ProcessUnusable, read_request
from fuzz.check.worker import _hello as say_hello
from fuzz.check.worker import _options as parse_options
from fuzz.check.worker import _start as start
from fuzz.compilers.interface import Package
from fuzz.compilers.openvino import OPENVINO
from fuzz.protocol import Check, Exit, Hello, Result, StageStarted, Unusable, Verdict
from fuzz.protocol.failures import NotTaken, Process, Refusal
from tests.campaign.fakes import case
from tests.check import planted
from tests.check.client import Asker, run_worker
from tests.check.faults import declares
from tests.check.in_process import RIGHT, WRONG, is_failure, plain, source

HARMLESS = (Verdict.OK, Verdict.ROUNDING)
DROPOUT = source("return F.dropout((q @ k.transpose(-2, -1) / 4.0).softmax(dim=-1), 0.3, self.training) @ v")


def test_says_what_it_is(worker: Asker) -> None:
    hello = worker.hello
    assert hello.python == sys.version.split()[0]
    assert {"passes", "inductor"} <= set(hello.subjects)
    assert hello.missing_hooks == {}


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_correct_attention_is_not_accused(worker: Asker, dtype: str, training: bool) -> None:
    result = worker.check(plain(dtype), "eager", "aot_eager", "passes", training=training)
    assert [item.verdict for item in result.results[:2]] == [Verdict.OK, Verdict.OK]
    passes = result.results[2]
    assert passes.verdict in HARMLESS and passes.dynamo_same is True
    assert any("_sfdp_pattern_1" in name for name in passes.applied_rewrites)
    assert 0 < passes.numbers["ratio"] < 3


@pytest.mark.parametrize("training", [False, True], ids=["inference", "training"])
@pytest.mark.parametrize("name", RIGHT)
def test_rounding_is_not_accused(worker: Asker, name: str, training: bool) -> None:
    result = worker.one(RIGHT[name], "passes", training=training)
    assert result.verdict in HARMLESS, result.failure


def test_exceptions_of_fake_kernels_are_told_apart() -> None:
    def meet(function: Callable[[torch.Tensor], torch.Tensor]) -> Exception:
        with pytest.raises(RuntimeError) as caught:
            torch.compile(function, backend="eager", fullgraph=True)(torch.ones(2, 3))
        return caught.value

    product, sum_ = as_failure(meet(lambda x: x @ x)), as_failure(meet(lambda x: x + x.T))
    assert product.error == sum_.error == "RuntimeError"
    assert product.key() != sum_.key()


def test_a_recursion_is_one_error_wherever_it_ends() -> None:
    ends = "maximum recursion depth exceeded"
    first, second = (as_failure(RecursionError(text)) for text in (ends, f"{ends} in comparison"))
    assert first.key() == second.key()


def test_dynamic_shapes(worker: Asker) -> None:
    assert worker.one(plain(), "passes", dynamic=True).verdict in HARMLESS


def test_dropout_draws_the_same_numbers_compiled(worker: Asker) -> None:
    assert worker.one(DROPOUT, "passes", training=True, random=True).verdict in HARMLESS


def test_a_case_eager_refuses_is_rejected(worker: Asker) -> None:
    result = worker.check(source("return q @ k"), "passes")
    assert result.rejected is not None and result.rejected.startswith("RuntimeError: Expected size")
    assert "\n" not in result.rejected
    assert result.results == ()


@pytest.mark.parametrize("text", ["import no_such_module", "not python(", "def inputs(): return []"])
def test_a_source_that_does_not_run_is_rejected(worker: Asker, text: str) -> None:
    assert worker.check(text, "passes").rejected


def test_an_unknown_subject_is_skipped(worker: Asker) -> None:
    result = worker.one(plain(), "no_such_subject")
    assert result.verdict == Verdict.SKIPPED and result.failure == NotTaken(Refusal.UNKNOWN_SUBJECT)


def test_one_case_leaves_nothing_behind_for_the_next(worker: Asker) -> None:
    alone = worker.one(plain("bfloat16"), "passes", training=True)
    for name in ("softmax over queries", "mask of one dimension"):
        worker.check(WRONG[name], "passes")
    again = worker.one(plain("bfloat16"), "passes", training=True)
    assert (again.verdict, again.numbers, again.applied_rewrites) == (
        alone.verdict,
        alone.numbers,
        alone.applied_rewrites,
    )


def test_a_result_says_how_much_memory_its_worker_holds(worker: Asker) -> None:
    assert worker.check(plain(), "passes").rss_mib > 100


@pytest.mark.parametrize(
    "name", ["no.such.module:kernel", "tests.check.planted:no_such_function", "tests.check.planted:"]
)
def test_a_subject_that_cannot_be_imported_is_named(name: str) -> None:
    with pytest.raises(SubjectError) as error:
        find(name)
    assert name in str(error.value) and "\n" not in str(error.value)


async def is_async(q: Any, k: Any, v: Any, *, scale: float) -> Any: ...


def is_a_generator(q: Any, k: Any, v: Any, *, scale: float) -> Iterator[Any]:
    yield q


REFUSED: dict[str, tuple[Any, str]] = {
    "two_values": (lambda a, b: a, ""),
    "no_scale": (lambda q, k, v: v, ""),
    "a_keyword_of_its_own": (lambda q, k, v, *, scale, block: v, ""),
    "an_option_without_default": (lambda q, k, v, *, scale, mask: v, ""),
    "another_order": (lambda q, v, k, *, scale: v, "the order must be q, k, v"),
    "no_parameters": (lambda: None, ""),
    "is_a_class": (torch.nn.Linear, ""),
    "is_a_value": (3, ""),
    "is_async": (is_async, ""),
    "is_a_generator": (is_a_generator, ""),
    "declares_what_nobody_asks": (
        declares(max_heads=8)(lambda q, k, v, *, scale: v),
        "unknown capability 'max_heads': there are dtypes, head_dims, ",
    ),
    "declares_no_list": (
        declares(dtypes="bfloat16")(lambda q, k, v, *, scale: v),
        "dtypes: expected a list, got 'bfloat16'",
    ),
    "without_lengths": (declares(layout="packed")(lambda q, k, v, *, scale: v), "cu_seqlens_q"),
}
TAKEN: dict[str, Any] = {
    "any_options": lambda q, k, v, **options: v,
    "other_names": lambda query, key, value, scale=None: value,
    "a_compiler": lambda module: module,
    "anything": lambda *args, **options: args[0],
    "without_a_signature": torch.relu,
}


@pytest.mark.parametrize("name", [*REFUSED, *TAKEN])
def test_what_cannot_be_called_as_subjects_are_is_refused_at_once(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    function, words = REFUSED.get(name) or (TAKEN[name], "")
    monkeypatch.setattr(planted, name, function, raising=False)
    if name in TAKEN:
        assert (find(f"tests.check.planted:{name}").attention is not None) == (name in ("any_options", "other_names"))
        return
    with pytest.raises(SubjectError) as error:
        find(f"tests.check.planted:{name}")
    told = str(error.value)
    assert name in told and words in told and "\n" not in told


def test_a_subject_that_cannot_be_imported_makes_it_unusable() -> None:
    name = "no.such.module:kernel"
    with pytest.raises(ProcessUnusable) as error:
        start(parse_options(["--subject", name]), print)
    assert name in str(error.value) and "\n" not in str(error.value)


@pytest.mark.worker
def test_what_makes_it_unusable_is_said_and_it_ends_with_2(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(os.environ, "CUDA_VISIBLE_DEVICES", "")
    process, said = run_worker("--device", "cuda")
    assert process.returncode == 2
    assert isinstance(said[-1], Unusable) and "no CUDA device" in said[-1].reason


@pytest.mark.worker
def test_a_process_of_its_own_tells_its_stages_and_ends_with_0(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions take no part in what it says and is told."""
    monkeypatch.setitem(os.environ, "CXX", "/nowhere/c++")
    names = ["tests.check.planted:forks", "tests.check.planted:reads_standard_input"]
    asked = [("eager", "passes", "inductor"), names, names]
    requests = tuple(Check(number, plain(), tuple(subjects)) for number, subjects in enumerate(asked, 1))
    process, said = run_worker(*(word for name in names for word in ("--subject", name)), requests=requests)
    assert process.returncode == 0
    [hello] = [message for message in said if isinstance(message, Hello)]
    assert (hello.pid, hello.cxx) == (process.pid, None)
    stages = [[one.stage for one in said if isinstance(one, StageStarted) and one.id == number] for number in (1, 2, 3)]
    first = ["eager", "reference", "noise"]
    assert stages == [[*first, "eager", "passes", "inductor", "passes"], [*first, *names, *names], [*first, *names]]
    results = [one.results for one in said if isinstance(one, Result)]
    # Without a C++ compiler the graph passes are left. The last stages of a subject's first case are its control.
    assert [[item.verdict in HARMLESS for item in found] for found in results] == [
        [True, True, False],
        *[[True] * 2] * 2,
    ]
    assert results[0][2].verdict == Verdict.SKIPPED


@pytest.mark.worker
@pytest.mark.parametrize("is_forked", [True, False])
def test_a_process_whose_output_a_function_closes_ends_with_a_code_of_its_own(is_forked: bool) -> None:
    name = "tests.check.planted:closes_descriptors"
    config = WorkerConfig(named=(name,), is_forked=is_forked)
    process = WorkerProcess(config, PipeTransport())
    process.send(build_check(Question(case("softmax"), (name,))))
    (lost,) = process.receive().results
    process.close()
    assert (lost.subject, lost.verdict) == (name, Verdict.WORKER_DIED)
    assert is_failure(lost.failure, "process_lost", how=Process.PROTOCOL)


@pytest.mark.parametrize("line", ["", Exit().to_json() + "\n"])
def test_it_ends_with_its_input_and_where_it_is_told_to(line: str) -> None:
    assert read_request(io.BytesIO(line.encode())) is None


def test_named_compilers_are_loaded_at_the_start() -> None:
    assert list_named(("openvino", "my:function", "inductor", "sdpa_math")) == ("openvino", "my:function")
    assert list_named(("my:function", "sdpa_math")) == ("my:function", "sdpa_math")
    assert list_named(("aot_inductor",)) == ()


@pytest.mark.parametrize(
    ("installed", "why"),
    [("", "openvino is not installed"), ("2019.1.0", "openvino is 2019.1.0; from 2025.1 to below 2027 is known")],
)
def test_a_worker_refuses_a_compiler_that_it_can_t_run(
    installed: str, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = parse_options(["--subject", "openvino"])
    subjects = start(options, lambda _: None)
    assert say_hello(options, subjects, None).versions["openvino"] == OPENVINO.versions["openvino"]
    monkeypatch.setattr(Package, "installed", property(lambda _: installed))
    with pytest.raises(ProcessUnusable, match=r"\[openvino\]") as refused:
        start(options, lambda _: None)
    assert why in str(refused.value)
    start(parse_options([]), lambda _: None)
