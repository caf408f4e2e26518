"""The cause of a failure of a compiler that is no part of torch: whose fault it is, and at which stage.

The experiments are tried in order, and the first that flips decides: the exported program and its decompositions, then
the compiler's own variations (fuzz/compilers). If none flips, the conversion of the program into a model is at fault.
"""

from dataclasses import replace

from corpus.causes import Details, Mechanism, MechanismKind, Stage, details
from fuzz.ask.question import Question
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, mechanism_of
from fuzz.experiments import FIRST_NODE, Outcome, Tried
from fuzz.protocol import Parted
from fuzz.subjects import get_spec
from generators.program.edits import prune_if_valid

_OF_TORCH = ("export", "export_decomposed")
_DROPPED = "dropped"


def find_foreign_cause(study: Study) -> RootCause:
    """The cause of a failure of a compiler of fuzz/compilers, or of one that the user wrote.

    A lost process is its project's: each experiment that fails would cost another process.
    """
    compiler = get_spec(study.subject).compiler
    project = compiler.project if compiler else study.subject
    if study.result.verdict.is_lost:
        told = details(error=getattr(study.result.failure, "last_words", ""))
        return RootCause(project, Stage.OPEN, "", Mechanism(MechanismKind(study.result.verdict), told))
    variations = compiler.variations if compiler else ()
    # An exported program promises more than other compilers, such as strides, so another failure is none of theirs.
    flip = next((one for one in map(study.try_out, _OF_TORCH) if one.outcome is Outcome.FAILS_ALIKE), None)
    flip, failing = (flip, ()) if flip else study.find_first_flip(row.id for row in variations)
    evidence = (*failing, *([flip] if flip else []))
    if flip is not None and flip.experiment in _OF_TORCH:
        cause = RootCause(flip.row.who, Stage(flip.row.stage), flip.row.part, _how(study), evidence)
        return _name_operation(study, cause)
    if flip is None:
        stage = Stage.CONVERSION if variations else Stage.OPEN
        cause = _name_operation(study, RootCause(project, stage, "", _how(study), evidence))
        converters = compiler.converters if compiler else {}
        return replace(cause, who=converters.get(cause.part, converters.get("", project)))
    node = study.try_out(FIRST_NODE) if study.result.verdict.has_wrong_numbers else Tried(FIRST_NODE)
    operators = node.argument if node.flips else ""
    evidence = (*evidence, *([node] if operators else []))
    part = flip.argument or flip.row.part or operators
    cause = RootCause(flip.row.who, Stage(flip.row.stage), part, _how(study, operators), evidence)
    if not operators:
        cause = _name_operation(study, cause)
    shown = [flip, *([node] if operators else [])]
    decided_by = {one.experiment: (one.argument,) if one.argument else () for one in shown}
    return replace(cause, decided_by=tuple(sorted({**decided_by, **dict(cause.decided_by)}.items())))


def _how(study: Study, operators: str = "") -> Mechanism:
    mechanism = mechanism_of(study.result)
    return Mechanism(mechanism.kind, details(operators=operators.split(","))) if operators else mechanism


def _name_operation(study: Study, cause: RootCause) -> RootCause:
    """`cause` with the first operation of the case whose value is wrong as its part, and without which it passes."""
    kind = find_wrong_operation(study)
    if not kind:
        return cause
    dropped = study.try_out(_DROPPED, kind)
    decided_by: Details = ((_DROPPED, (kind,)),) if dropped.flips else ()
    evidence = (*cause.evidence, *([dropped] if dropped.flips else []))
    return replace(cause, part=cause.part or kind, evidence=evidence, decided_by=decided_by)


def find_wrong_operation(study: Study) -> str:
    """The kind of the first operation of the case whose value is wrong, if the case returns all its values; the kind of
    its only operation; else ""."""
    kinds = {op.name: op.kind for op in study.case.ops}
    if len(kinds) == 1:
        return next(iter(kinds.values()))
    every = prune_if_valid(replace(study.case, returns=tuple(kinds)))
    if every is None or not study.result.verdict.has_wrong_numbers or study.case.calls:
        return ""
    result = study.asker.ask(Question(every, (study.subject,))).only
    seen = next((one for one in result.observations if isinstance(one, Parted)), Parted())
    return "" if seen.output is None else kinds[every.returns[seen.output]]
