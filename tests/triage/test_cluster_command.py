"""Findings of runs and files are attributed once, grouped by the command, and kept in the ledger."""

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from corpus import casefile, ledger
from corpus import entry as corpus_entry
from corpus.causes import CauseKey, MechanismKind, Part, Stage
from corpus.entry import Entry, Found
from corpus.ledger import Bug, Ledger, Status
from fuzz.ask.worker_config import WorkerConfig
from fuzz.attribution.root_cause import RootCause
from fuzz.campaign.session import run_campaign
from fuzz.cli import call
from generators.errors import UserError
from tests.campaign.fakes import options, sampler
from tests.campaign.test_campaign import WRONG
from tests.triage.conftest import SOFTMAX_OVER_QUERIES
from tests.triage.test_clusters import EMPTY, RANK_ERROR, M, entry, sfdp
from triage.cluster import __main__ as command
from triage.cluster.clusters import cluster, load_clusters, record
from triage.cluster.findings import Finding, attribute_findings, gather


class Asked:
    """Says for every case what `sfdp` would, and fails on what it is told to."""

    def __init__(self, *refused: str) -> None:
        self.cases: list[str] = []
        self.refused = refused
        self.keys: dict[str, CauseKey] = {}

    def find_cause(self, one: Entry) -> RootCause:
        self.cases.append(one.case.id)
        if one.case.id in self.refused:
            raise UserError("shows no bug under torch 2.14.0")
        return sfdp(1) if one.found and one.found.verdict == "wrong_result" else sfdp(2, M.COMPILING_RAISES, RANK_ERROR)

    def find_key(self, one: Entry, cause: RootCause) -> CauseKey:
        return self.keys.get(one.case.id, cause.key)


def test_a_cause_is_asked_for_once_and_an_end_half_way_loses_none(
    tmp_path: Path, fake: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    findings = [Finding(entry(rows), Path("x"), tmp_path) for rows in (2, 3, 4)]

    def count_questions(torch: str = "2.13.0", device: str = "") -> int:
        monkeypatch.setattr("triage.script_runs.version", lambda *_: torch)
        before = len(fake.cases)
        assert len(list(attribute_findings(findings, WorkerConfig(), device=device))) == 3
        return len(fake.cases) - before

    monkeypatch.setattr("triage.script_runs.version", lambda *_: "2.13.0")
    with closing(attribute_findings(findings, WorkerConfig())) as work:
        next(work), next(work)
    assert count_questions() == 1
    # Another torch, another cause.
    assert count_questions("2.14.0") == 3
    # Nor is what one device tells what another would.
    assert count_questions(device="cuda") == 3
    assert count_questions(device="cpu") == 0
    # A file that was cut short is as good as none.
    next((tmp_path / "attributions").glob("*2.13.0-cpu.json")).write_text('{"who": "ind')
    assert count_questions() == 1


def test_a_function_of_the_users_is_not_imported_because_a_case_names_it(tmp_path: Path, fake: Asked) -> None:
    finding = Finding(entry(subject="my.kernels:attention"), Path("x"), tmp_path)
    (one,) = attribute_findings([finding], WorkerConfig())
    assert "allow it with --subject my.kernels:attention" in one.why_open and fake.cases == []
    (one,) = attribute_findings([finding], WorkerConfig(), ["my.kernels:attention"])
    assert one.cause == sfdp(1)


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Asked:
    asked = Asked()
    monkeypatch.chdir(tmp_path)  # where causes of files without a run are kept

    @contextmanager
    def attributor(*_: object) -> Iterator[Asked]:
        yield asked

    monkeypatch.setattr("triage.cluster.findings.attributor", attributor)
    monkeypatch.setattr("triage.script_runs.version", lambda *_: "2.13.0+cpu")
    return asked


def test_the_command_groups_runs_and_files_and_keeps_the_ledger(
    tmp_path: Path, fake: Asked, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("triage.script_runs.version", lambda *_: "2.13.0")
    given = options(tmp_path, rules=[WRONG])
    assert run_campaign(given, sampler("softmax")).new == 1
    corpus_entry.save(entry(2, "compile_error", kind="relu"), tmp_path / "more")
    arguments = [str(given.out), str(given.corpus), "more", "--ledger", "kept/ledger.yaml"]
    capsys.readouterr()

    assert call(command.cluster, "triage.cluster", [*arguments, "--update"]) == 1
    text, said = capsys.readouterr()
    assert "kept/ledger.yaml: added 2 bugs" in text and "2 findings of 2 root causes" in text
    assert "attributing 1 of 1: " in said  # the campaign found the cause of its finding
    assert "status   new, not searched for upstream" in text and "met 20x" in text and "torch 2.13.0" in text
    assert "-m fuzz.replay " in text
    file = tmp_path / "kept" / "ledger.yaml"
    made = ledger.load(file)
    assert [str(bug.status) for bug in made.bugs] == ["new", "new"]
    # Each has an example beside the ledger, by which campaigns know it.
    for bug in made.bugs:
        (example,) = made.examples(bug)
        assert corpus_entry.load(example).case.id in bug.findings

    # Once a person has decided nobody is asked anything, and a campaign with that ledger meets nothing new.
    file.write_text(file.read_text().replace("status: new", "status: not_a_bug by design"))
    made = ledger.load(file)
    assert call(command.cluster, "triage.cluster", arguments) == 0
    assert len(fake.cases) == 1
    shown = load_clusters([given.out], EMPTY)
    assert [one.updated.title for one in shown] == ["[Inductor]: wrong result"]
    again = options(tmp_path, rules=[WRONG], ledger=made, out=tmp_path / "again", corpus=tmp_path / "other")
    assert run_campaign(again, sampler("softmax")).new == 0

    # Only a new finding is news. A finding that no longer shows is told with the reason, and stays out of the ledger.
    fake.refused = (corpus_entry.load(corpus_entry.save(entry(5), tmp_path / "more")).case.id,)
    capsys.readouterr()
    assert call(command.cluster, "triage.cluster", [*arguments, "--update"]) == 1
    text = capsys.readouterr().out
    assert "cause    not known: shows no bug under torch 2.14.0" in text
    assert ledger.load(made.path).bugs == made.bugs


def test_a_finding_with_a_cause_of_its_own_is_the_bug_that_experiments_name(tmp_path: Path, fake: Asked) -> None:
    known = Bug("x", "constants", cause=sfdp(2, M.COMPILING_RAISES, RANK_ERROR).key, decided_by=())
    listed = Ledger(tmp_path / "ledger.yaml", (known,))
    findings = [Finding(entry(rows), Path("x"), tmp_path) for rows in (2, 3)]
    fake.keys = {findings[0].id: known.cause}
    made = cluster(attribute_findings(findings, WorkerConfig(), ledger=listed), listed)
    assert {one.bug and one.bug.id: [finding.id for finding in one.findings] for one in made} == {
        "x": [findings[0].id],
        None: [findings[1].id],
    }


def test_a_fixed_bug_that_is_back_is_news(tmp_path: Path, fake: Asked, capsys: pytest.CaptureFixture[str]) -> None:
    found = corpus_entry.save(entry(), tmp_path)
    path = tmp_path / "ledger.yaml"
    (attributed,) = attribute_findings([Finding(entry(), found, tmp_path)], WorkerConfig())
    for version, code in (("2.13.0", 1), ("2.14.0", 0)):
        path.unlink(missing_ok=True)
        ledger.save(
            Ledger(
                path,
                (
                    Bug(
                        "x",
                        "constants",
                        Status("fixed", version),
                        cause=attributed.key,
                        decided_by=(),
                        findings=(attributed.finding.id,),
                    ),
                ),
            )
        )
        assert call(command.cluster, "triage.cluster", [str(found), "--ledger", str(path)]) == code
        assert ("regression: fixed in 2.13.0 and back in 2.13.0" in capsys.readouterr().out) == bool(code)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "name at least one run directory, case file (*.case.yaml) or directory of case files"),
        (
            ["nowhere"],
            "nowhere: no run directory (it has no results.sqlite), case file (*.case.yaml) or directory of them",
        ),
        (["empty"], "empty: no run directory"),
        (["x.case.yaml"], "x.case.yaml: can't be read"),
        (["right.case.yaml"], "right.case.yaml: no finding"),
        ([".", "--ledger", "none.yaml"], "none.yaml: can't be read: No such file"),
        (["found", "--ledger", "/dev/null", "--update"], "/dev/null: not a regular file"),
        ([".", "--device", "tpu"], "--device"),
    ],
)
def test_bad_usage_is_told_in_one_line(
    tmp_path: Path, fake: Asked, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str
) -> None:
    corpus_entry.save(entry(), tmp_path / "found")
    corpus_entry.write(Entry(entry().case), tmp_path / "right.case.yaml")
    (tmp_path / "empty").mkdir()
    assert call(command.cluster, "triage.cluster", arguments) == 2
    assert said in capsys.readouterr().err


def test_a_finding_of_a_run_is_counted_once_beside_its_file_and_adds_up_over_runs(tmp_path: Path) -> None:
    first = options(tmp_path, rules=[WRONG])
    run_campaign(first, sampler("softmax"))
    second = options(tmp_path, rules=[WRONG], out=tmp_path / "second", seed=2)
    run_campaign(second, sampler("softmax"))
    for paths in ([first.out, second.out, first.corpus], [first.corpus, second.out, first.out]):
        (finding,) = gather(paths)
        assert finding.met == 40
        assert finding.versions == {"2.13.0"}
    internal = options(tmp_path, rules=[WRONG], subjects=("passes",), out=tmp_path / "third", corpus=tmp_path / "none")
    run_campaign(internal, sampler("softmax"))
    assert gather([internal.out]) == []


WRITTEN = Path(__file__).parents[2] / "corpus" / "known" / "indexed-write-loses-strides.case.yaml"

BATCHES_FOR_FEATURES = """
case_format: 1
dims: {B: 2, C: 1, S: 2, D: 2}
inputs:
  q: {shape: [C, S, C, D], dtype: float32, values: {seed: 0}}
  k: {shape: [D, S, C, B], dtype: float32, values: {seed: 1}}
  v: {shape: [C, S, B, D], dtype: float32, values: {seed: 2}}
ops:
  - {name: kt, op: permute, args: [k], dims: [2, 1, 0, 3]}
  - {name: products, op: matmul, args: [q, kt]}
  - {name: scores, op: mul, args: [products], other: 0.5}
  - {name: weights, op: softmax, args: [scores]}
  - {name: out, op: matmul, args: [weights, v]}
returns: [out]
"""


@pytest.mark.worker
@pytest.mark.torch("==2.13.*", "ignores the constants of a program")
@pytest.mark.usefixtures("one_worker")
def test_the_softmax_over_another_axis_and_a_permutation_are_one_bug(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for text in (SOFTMAX_OVER_QUERIES, BATCHES_FOR_FEATURES):
        corpus_entry.save(
            Entry(casefile.loads(text), found=Found("wrong_result", "inductor", torch="2.13.0")), tmp_path / "found"
        )
    assert (
        call(command.cluster, "triage.cluster", ["found", "--ledger", "ledger.yaml", "--update"]) == 1
    )  # nobody decided about it yet
    (bug,) = ledger.load(tmp_path / "ledger.yaml").bugs
    assert len(bug.findings) == 2 and {cause.mechanism for cause in bug.causes} == {MechanismKind.CONSTANTS_IGNORED}


NORMALISED = """
case_format: 1
dims: {B: 2, S: 3, D: 4}
inputs:
  x: {shape: [B, S, D], dtype: float32, values: {seed: 0}}
  mean: {shape: [D], dtype: float32, values: {seed: 1}}
  var: {shape: [D], dtype: float32, values: {kind: uniform, seed: 2}}
ops:
  - {name: transposed, op: transpose, args: [x], dim0: 1, dim1: 2}
  - {name: out, op: batch_norm, args: [transposed, mean, var], statistics: running}
returns: [out]
"""


@pytest.mark.worker
@pytest.mark.usefixtures("one_worker")
def test_a_bug_with_the_cause_of_a_listed_bug_is_listed_apart_if_experiments_disagree(tmp_path: Path) -> None:
    found = Found("metadata", "inductor", torch="2.13.0")
    paths = [corpus_entry.save(Entry(casefile.loads(NORMALISED), found=found), tmp_path), WRITTEN]
    key = CauseKey("aot", Stage.DYNAMO, Part.DECOMPOSITIONS, MechanismKind.STRIDES)
    written = Bug("written", "loses strides", cause=key, decided_by=(("aot_eager", ()), ("written_apart", ())))
    listed = Ledger(tmp_path / "ledger.yaml", (replace(written, also=(replace(key, part=""),)),))
    made = cluster(attribute_findings(gather(paths), WorkerConfig(), ledger=listed), listed)
    assert {one.bug and one.bug.id: one.example.entry.case.ops[-1].kind for one in made} == {
        "written": "index_copy_",
        None: "batch_norm",
    }
    (normalised,) = (one.example.id for one in made if one.bug is None)
    record(listed, made)
    (*_, bug) = ledger.load(listed.path).bugs
    assert bug.findings == (normalised,) and bug.cause not in listed.bugs[0].causes
