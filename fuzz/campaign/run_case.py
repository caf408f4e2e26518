"""A case of a campaign: chosen, judged and recorded."""

from contextlib import suppress

from fuzz.ask.question import Question
from fuzz.campaign.campaign_state import CampaignState
from fuzz.campaign.crew import Crew
from fuzz.campaign.schedule import Job
from fuzz.events import CaseJudged, SuspicionRaised
from fuzz.protocol import Result, Verdict
from fuzz.protocol.render import name_refusal
from fuzz.subjects import get_spec
from generators.sampling.choices import Choices
from generators.sampling.dropout import show_dropouts
from generators.sampling.neighbours import list_near
from generators.sampling.sample import MASKS_SHARE, STATES_SHARE
from generators.sampling.settings import SETTINGS_SHARE, draw_settings
from generators.sampling.shards import add_shards
from generators.sampling.states import add_states

_TURNS = 2
"""How often each block of a user's module is judged as it is (`Schedule.subjects_for_module`)."""
NEAR_CASES = 3
"""The limit of similar cases that follow a case under a subject with warm caches."""


def run_case(state: CampaignState, crew: Crew) -> bool:
    """Choose a case, have it judged, and record the verdicts. Returns False if no case is left to choose.

    The next case is chosen while the worker is busy. Raises `Stopped`, `DiskFull` and `WorkerLost`.
    """
    if not crew.jobs:
        crew.jobs += crew.choose()
    if not crew.jobs:
        return False
    job = crew.jobs[0]
    crew.task = f"case {job.index}"
    result = crew.case_worker.ask(Question(job.case, job.subjects), crew.choose_ahead)
    crew.jobs.popleft()
    _record(state, crew, job, result)
    return True


def choose_cases(state: CampaignState) -> list[Job]:
    """The next case and cases near it, with their settings and subjects; none when the budget of cases is spent."""
    job = _choose_case(state)
    return [] if job is None else [job, *_choose_near_cases(state, job)]


def _choose_case(state: CampaignState) -> Job | None:
    """The next case, with its settings and the subjects to run it; None when the budget of cases is spent."""
    with suppress(IndexError):
        return state.numbers.returned.popleft()  # its worker lost the machine
    index = state.numbers.take()
    if index is None:
        return None
    if (own := _choose_block(state, index)) is not None:
        return own
    chosen = state.search.choose(index)
    share = 1.0 if state.schedule.needs_settings else SETTINGS_SHARE
    case = chosen.case
    if chosen.is_targeted:  # `sample` has drawn these for a random case
        c = Choices(f"{state.options.seed}:{index}:states of {chosen.source}")
        case = add_states(show_dropouts(case, c, MASKS_SHARE), c, STATES_SHARE)
    case = draw_settings(case, Choices(f"{state.options.seed}:{index}:settings"), state.settings, share)
    if state.schedule.needs_shards:
        case = add_shards(case, Choices(f"{state.options.seed}:{index}:shards"))
    subjects = state.schedule.subjects_for(case, targeted=chosen.is_targeted)
    return Job(index, case, subjects, chosen.case.id if chosen.is_targeted else "")


def _choose_block(state: CampaignState, index: int) -> Job | None:
    """A block of the user's module, as it is; each block has two turns before any neighbour."""
    blocks = state.options.models.blocks if state.options.models is not None else ()
    if index >= _TURNS * len(blocks):
        return None
    turn, number = divmod(index, len(blocks))
    return Job(index, blocks[number], state.schedule.subjects_for_module(blocks[number], turn))


def _choose_near_cases(state: CampaignState, job: Job) -> list[Job]:
    """The cases that a worker judges after a job: cases so similar that a cache could confuse their programs."""
    warm = tuple(subject for subject in job.subjects if get_spec(subject).warm)
    near = list_near(job.case, Choices(f"{state.options.seed}:{job.index}:near"), NEAR_CASES) if warm else []
    numbered = ((state.numbers.take(), case) for case in near)
    return [Job(index, case, warm) for index, case in numbered if index is not None]


def _record(state: CampaignState, crew: Crew, job: Job, result: Result) -> None:
    """Store the verdicts on a case. Failures that no known bug explains become suspicions."""
    case = job.case
    by_subject = {one.subject: one.seconds for one in result.results}
    state.schedule.add_time(job.subjects, result.seconds, by_subject, [op.kind for op in case.ops])

    unknown, known = state.suspicions.partition_known(case, result.results)
    explained = tuple(finding.case_id for finding in known)

    coverage, is_new_coverage = state.search.record(case, result)
    raised = state.results.record_case(
        case,
        position=state.numbers.finish(job.index),
        unexplained=unknown,
        explained=explained,
        coverage=coverage,
        queued=is_new_coverage,
        chosen=job.chosen,
        earlier=crew.case_worker.earlier,
    )
    state.bus.emit(
        CaseJudged(
            index=job.index,
            case=case.id,
            worker=crew.number,
            verdicts={one.subject: one.verdict for one in result.results},
            rejected=result.rejected,
            skipped={
                one.subject: name_refusal(one.failure) for one in result.results if one.verdict is Verdict.SKIPPED
            },
            coverage=tuple(sorted(coverage)),
            explained_by=explained,
        )
    )
    for finding in known:
        state.announce_bug(finding, case)
    for suspicion in raised:
        failed = suspicion.result
        state.bus.emit(SuspicionRaised(suspicion.id, suspicion.case.id, failed.subject, failed.verdict))
        state.suspicions.put(suspicion)
