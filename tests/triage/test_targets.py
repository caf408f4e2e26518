"""What a report can be asked for."""

from pathlib import Path

import pytest

from corpus.ledger import Ledger
from fuzz.campaign.session import run_campaign
from generators.errors import UserError
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG, found
from tests.campaign.test_ledger import ledger_of
from triage.report.build import find_cases

EMPTY = Ledger(Path("ledger.yaml"))


def test_a_run_gives_one_case_for_each_bug_in_a_directory_of_its_own(tmp_path: Path) -> None:
    given = options(tmp_path, rules=[WRONG])
    run_campaign(given, sampler("softmax"))
    ((name, path),) = find_cases(given.out, EMPTY)
    assert name == found(given)[0].case.id
    assert path.is_file()


def test_a_bug_of_the_ledger_is_asked_for_by_its_id(tmp_path: Path) -> None:
    ledger = ledger_of(tmp_path, "new")
    ((name, path),) = find_cases(Path("softmax"), ledger)
    assert (name, path) == ("", ledger.examples(ledger.bugs[0])[0])


def test_what_is_nothing_of_these_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"nowhere: not a case file, a run directory or an id in ledger\.yaml"):
        list(find_cases(Path("nowhere"), EMPTY))
    given = options(tmp_path, "2x")
    run_campaign(given, sampler())
    with pytest.raises(UserError, match="found nothing to report"):
        list(find_cases(given.out, EMPTY))
