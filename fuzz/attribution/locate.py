"""From a root cause to its place in the source of torch.

- An exception: the innermost line of the compiler that raises.
- A step of compiling: its function, or the parts of its pattern. Without the step, the case passes.
"""

from dataclasses import replace

from corpus.causes import Stage
from fuzz.attribution.root_cause import RootCause
from fuzz.attribution.study import Study, subject_of
from fuzz.bug_identity import compare_outcome
from fuzz.experiments import OtherSubject, Trial
from fuzz.protocol import StepsTaken
from fuzz.protocol.places import LocatedBy, Place

_MATCHER = "_inductor/pattern_matcher.py"


def locate(study: Study, cause: RootCause) -> RootCause:
    """`cause` with its places, the line at fault first; without any if none is found.

    study: the failing case, under the subject that was accused
    """
    if cause.stage is Stage.KERNEL:
        return cause
    if cause.stage is Stage.OPERATION and cause.part.startswith("aten."):
        return replace(cause, places=(Place("", 0, cause.part, LocatedBy.KERNEL),))
    failing = [one.experiment for one in cause.evidence if isinstance(one.row.change, OtherSubject) and one.flips]
    subject = subject_of(failing[-1], study.entry) if failing else study.subject
    result = study.ask(study.case, subject)
    if compare_outcome(result, study.result).fails:
        study = replace(study, subject=subject, result=result)
    raised = [study.result.raised_at] if study.result.raised_at else []
    kind = "pass" if cause.is_attention_pattern else cause.stage.step
    steps = _leave_out(study, Trial(kind, cause.part)) if kind and cause.part else ()
    # If the step itself raises, its line comes first; if a later step raises, the step left out does.
    is_later = bool(raised and steps) and raised[0].file not in (_MATCHER, *(step.file for step in steps))
    return replace(cause, places=(*steps, *raised) if is_later else (*raised, *steps))


def _leave_out(study: Study, trial: Trial) -> tuple[Place, ...]:
    observed = study.ask(study.case, study.subject, trial).observations
    return next((one.left_out for one in observed if isinstance(one, StepsTaken)), ())
