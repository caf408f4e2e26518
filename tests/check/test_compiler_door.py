"""How a worker takes the compilers that a command names."""

import pytest

from fuzz.ask.worker_config import list_named
from fuzz.check import worker
from fuzz.compilers.interface import Package
from fuzz.compilers.openvino import OPENVINO


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
    options = worker._options(["--subject", "openvino"])
    subjects = worker._start(options, lambda _: None)
    assert worker._hello(options, subjects, None).versions["openvino"] == OPENVINO.versions["openvino"]
    monkeypatch.setattr(Package, "installed", property(lambda _: installed))
    with pytest.raises(worker.ProcessUnusable, match=r"\[openvino\]") as refused:
        worker._start(options, lambda _: None)
    assert why in str(refused.value)
    worker._start(worker._options([]), lambda _: None)
