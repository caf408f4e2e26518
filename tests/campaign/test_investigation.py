import os
from pathlib import Path

import pytest

from fuzz.campaign.session import run_campaign
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG, found

pytestmark = pytest.mark.worker


def test_a_finding_does_not_depend_on_how_many_checks_run_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    minimal = []
    for cores in (1, 8):
        monkeypatch.setattr(os, "sched_getaffinity", lambda _, cores=cores: range(cores))
        given = options(tmp_path / str(cores), "20x", rules=[WRONG])
        assert run_campaign(given, sampler("softmax")).new == 1
        minimal += [entry.case for entry in found(given)]
        helpers = [path.name for path in (given.out / "workers").glob("helper*.log")]
        assert bool(helpers) == (cores > 1)
    assert minimal[0] == minimal[1]
