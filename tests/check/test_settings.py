"""Settings of cases: what they switch on, and what a torch that lacks one says."""

from dataclasses import replace

import pytest
import torch
from torch._inductor import config

from fuzz.check.subject_builder import SubjectError, find
from fuzz.protocol import SETTING, Verdict
from fuzz.protocol.failures import NotTaken, Refusal
from tests.check.client import Asker
from tests.check.sources import plain


def test_a_subject_with_options_says_under_which_settings_it_ran(worker: Asker) -> None:
    settings = {"cpp.simdlen": 1, "freezing": True}
    named = {f"{SETTING}{name}" for name in ("cpp.simdlen", "freezing", "cpp.simdlen + freezing")}
    results = worker.check(plain(), "passes", "passes_options", settings=settings).results
    assert [named & {*result.reached} for result in results] == [set(), named]
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
