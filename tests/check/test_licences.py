"""The list of excuses: its page, and what a row is enough for."""

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import pytest
from torch import Tensor, nn

from fuzz.check.judge import licences
from fuzz.check.judge.doubt import Doubt
from fuzz.check.judge.licences import LICENCES, Licence
from fuzz.check.judge.open_orders import OPEN
from fuzz.check.judge.verdict import RECHECKED_VERDICTS, RightRuns
from fuzz.check.run.subject_builder import Subject
from fuzz.protocol import Verdict
from tests.check.in_process import run_subject, source
from tests.command import ROOT


def print_row(*cells: str) -> str:
    return f"| {' | '.join(cells)} |"


def list_licences() -> Iterator[str]:
    yield print_row("excuse", "turns", "into", "when", "counts as right", "source")
    yield "|---|---|---|---|---|---|"
    for row in LICENCES:
        turns = ", ".join(f"`{verdict}`" for verdict in row.turns) or "measured"
        yield print_row(
            row.name, turns, f"`{row.verdict}`" if row.verdict else "as measured", row.when, row.right, row.source
        )


def list_open() -> Iterator[str]:
    yield print_row("operations", "left open", "documentation")
    yield "|---|---|---|"
    for row in OPEN:
        names = ", ".join(f"`{name}`" for name in sorted(row.operations))
        yield print_row(names, row.what, f'["{row.sentence}"]({row.source})')


@pytest.mark.parametrize("rows", [list_licences, list_open])
def test_the_page_has_the_table(rows: Callable[[], Iterator[str]]) -> None:
    assert "\n".join(rows()) + "\n" in (ROOT / "docs" / "oracle.md").read_text()


def test_each_harmless_difference_has_a_row() -> None:
    without = {Verdict.OK, Verdict.REJECTED, Verdict.SKIPPED}
    assert {row.verdict for row in LICENCES if row.verdict} == {
        verdict for verdict in Verdict if not verdict.is_finding
    } - without
    assert all(verdict.is_finding or verdict is Verdict.RANDOM_STREAM for row in LICENCES for verdict in row.turns)


def scaled(name: str, factor: float) -> Subject:
    def compile_module(module: nn.Module, _dynamic: bool | None) -> Any:
        return lambda *inputs: module(*inputs) * factor

    return Subject(name, compile_module)


def run_scaled(doubt: Doubt) -> Iterator[RightRuns]:
    eager = doubt.case.eager
    outputs = {name: value * 1.01 for name, value in eager.outputs.items()}
    yield RightRuns(doubt.case.exact, (replace(eager, outputs=outputs),))


@pytest.mark.parametrize(
    ("name", "factor", "verdict"),
    [
        ("package.module:other", 1.01, Verdict.PRECISION_POLICY),
        ("package.module:other", -1.0, Verdict.WRONG_RESULT),
        ("package.module:own", 1.01, Verdict.WRONG_RESULT),
    ],
    ids=["right there", "wrong there too", "another compiler"],
)
def test_another_compiler_is_excused_by_a_row(
    name: str, factor: float, verdict: Verdict, monkeypatch: pytest.MonkeyPatch
) -> None:
    row = Licence(
        "a policy of another compiler",
        RECHECKED_VERDICTS,
        Verdict.PRECISION_POLICY,
        "",
        "",
        "",
        lambda doubt: doubt.subject.name == "package.module:other",
        run_scaled,
    )
    monkeypatch.setattr(licences, "LICENCES", (*LICENCES, row))
    assert run_subject(scaled(name, factor), text=source("return q + k")).verdict is verdict


def doubles_gradients(module: nn.Module, _dynamic: bool | None) -> Any:
    def run(*inputs: Tensor) -> Any:
        for value in inputs:
            value.register_hook(lambda gradient: gradient * 2)  # type: ignore[no-untyped-call, unused-ignore]
        return module(*inputs)

    return run


def test_an_order_excuses_no_gradient_under_dropout() -> None:
    body = "return q.clone().index_copy_(2, torch.arange(S) % 3, F.dropout(k, 0.2)) + v"
    subject = Subject("inductor", doubles_gradients)
    result = run_subject(subject, text=source(body), training=True, dropout=True)
    assert result.verdict is Verdict.WRONG_GRADIENT, result.failure
