"""Controls on a torch that lacks what they touch: they say so where they are entered, before anything is compiled."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import pytest

from fuzz.check.subjects import SubjectError
from triage.attribution import constants, switches
from triage.attribution.subjects import CONTROLS

_MATCHER = "torch._inductor.pattern_matcher"


@pytest.mark.parametrize(
    "values", [{"no_such_setting": 1}, {"cpp__no_such_setting": 1}, {"pattern_matcher": False, "no_such__setting": 1}]
)
def test_a_setting_that_this_torch_lacks_skips_the_control(values: dict[str, Any]) -> None:
    with pytest.raises(SubjectError, match=r"has no setting .*no_such"), switches.configured(**values):
        pass


def test_a_setting_holds_while_the_control_is_entered() -> None:
    config: Any = pytest.importorskip("torch._inductor.config")
    before = config.cpp.simdlen
    with CONTROLS["unvectorised"]():
        assert config.cpp.simdlen == 1
    assert config.cpp.simdlen == before


@pytest.mark.parametrize(
    ("control", "missing"),
    [
        (constants.compared, f"{_MATCHER}._known_precompiled_patterns"),
        (constants.compared, f"{_MATCHER}.fx_to_pattern"),
        (constants.compared, "torch._dynamo.utils.detect_fake_mode"),
        (switches.watching, f"{_MATCHER}.PatternMatcherPass"),
        (switches.watching, f"{_MATCHER}.PatternMatcherPass.apply"),
        (switches.watching, "torch._dynamo.utils.counters"),
        (
            lambda: switches.sdpa_called(switches.by_steps),
            "torch._inductor.fx_passes.fuse_attention._scaled_dot_product_attention",
        ),
        (lambda: switches.left_to_eager("relu"), "torch._inductor.graph.fallback_node_due_to_unsupported_type"),
        (switches.unfused, "torch._inductor.scheduler.Scheduler.can_fuse"),
    ],
)
def test_a_name_that_this_torch_lacks_skips_the_control(
    monkeypatch: pytest.MonkeyPatch, control: Callable[[], AbstractContextManager[None]], missing: str
) -> None:
    monkeypatch.delattr(missing)
    with pytest.raises(SubjectError, match=rf"has no .*{missing.rpartition('.')[2]}"), control():
        pass
