"""Which mistakes the oracle sees, and which the published criteria see: one line a mistake and dtype."""

import functools
from dataclasses import asdict, dataclass, field
from typing import Any

from benchmarks.oracle_power.cases import CONFIGURATIONS, SHARED, VARIANTS, request
from benchmarks.oracle_power.criteria import CRITERIA, Tried
from benchmarks.oracle_power.mistakes import ALL, MISTAKES
from benchmarks.oracle_power.problem import Problem
from benchmarks.oracle_power.recording import Recorder
from benchmarks.oracle_power.simulated import simulated
from fuzz.check.check import check
from fuzz.check.run.attention.function import Attention
from fuzz.check.run.program import Program, execute
from fuzz.check.run.subject_builder import Subject
from fuzz.protocol import SubjectResult, Verdict
from fuzz.protocol.failures import BiasedErrors, DropoutMask, Failure, NotFinite, WrongValue
from fuzz.protocol.render import describe

RIGHT = ""
"""The name of the simulation without a mistake: nobody may see anything in it."""


@dataclass
class Line:
    """What became of one mistake in one dtype. `configuration`, `verdict`, `statistic` (what was too large) and
    `description` are of the first configuration that shows it to the oracle, else of the last; `criteria` says
    who sees it, None for who can't be asked."""

    mistake: str
    variant: str
    dtype: str
    seen: bool = False
    configuration: str = ""
    verdict: str = ""
    statistic: str = ""
    description: str = ""
    criteria: dict[str, bool | None] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """As JSON-ready data."""
        return asdict(self)


def tasks(names: list[str], dtypes: list[str]) -> list[tuple[str, str, tuple[str, ...]]]:
    """(variant, dtype, mistakes) for `looked_for`: what shares its cases. Every variant has the right simulation,
    too."""
    found = []
    for variant in VARIANTS:
        for dtype in dtypes:
            here = [name for name in names if MISTAKES[name].variant == variant and dtype in MISTAKES[name].dtypes]
            if here:
                found.append((variant, dtype, (RIGHT, *here)))
    return found


def looked_for(variant: str, dtype: str, names: tuple[str, ...], device: str) -> list[Line]:
    """Try `names` on the cases of `variant` in `dtype`: the oracle on one configuration after the other until it sees
    something, the published criteria on the shared one."""
    lines = {name: Line(name, variant, dtype) for name in names}
    left = list(names)
    for configuration in CONFIGURATIONS:
        subjects = {name: Subject(name, attention=Attention(functools.partial(simulated, name))) for name in left}
        result = check(request(variant, configuration, dtype, tuple(left)), subjects, device)
        if result.rejected is not None:
            raise ValueError(f"{variant}, {configuration}, {dtype}: {result.rejected}")
        for answer in result.results:
            _take(lines[answer.subject], configuration, answer)
        left = [name for name in left if not lines[name].seen]
    problem = shared_problem(variant, dtype, device)
    for name, line in lines.items():
        line.criteria = _published(problem, name)
    return list(lines.values())


def printed(lines: list[Line]) -> list[str]:
    """The table and its totals, as text."""
    width = max(len(name) for name in MISTAKES)
    head = f"{'mistake':{width}} {'dtype':8} {'ours':42} " + " ".join(f"{name:8}" for name in CRITERIA)
    order = {name: index for index, name in enumerate(MISTAKES)}
    planted = sorted((line for line in lines if line.mistake), key=lambda x: (order[x.mistake], ALL.index(x.dtype)))
    rows = [head, *(_row(line, width) for line in planted)]
    for where in ("forward", "backward", "dropout"):
        rows += _totals(where, [line for line in planted if MISTAKES[line.mistake].where == where])
    rows += _totals("all", planted)
    right = [line for line in lines if not line.mistake]
    counts = {name: sum(bool(line.criteria[name]) for line in right) for name in CRITERIA}
    raised = ", ".join(f"{name} {count}" for name, count in counts.items() if count)
    ours = sum(line.seen for line in right)
    rows.append(
        f"without a mistake, {len(right)} kinds and dtypes: ours raises {ours}; {raised or 'the criteria raise none'}"
    )
    rows += [
        f"  RAISED {line.variant} {line.dtype} {line.configuration}: {line.description}" for line in right if line.seen
    ]
    return rows


def _take(line: Line, configuration: str, answer: SubjectResult) -> None:
    # An eager that is wrong, as cuDNN's backward is in rows without a key, is another matter.
    line.seen = answer.verdict.is_finding and answer.verdict is not Verdict.EAGER_SUSPECT
    line.configuration, line.verdict, line.description = configuration, str(answer.verdict), describe(answer)
    line.statistic = _statistic(answer.failure) if line.seen and answer.failure is not None else ""


def _statistic(failure: Failure) -> str:
    match failure:
        case WrongValue(value=value):
            return f"{value.name} worst"
        case NotFinite(value=value):
            return f"{value.name} not finite"
        case BiasedErrors(value=value, statistic=statistic):
            return f"{value.name} {statistic}"
        case DropoutMask(problem=problem):
            return f"dropout {problem}"
        case _:
            return failure.kind


@functools.cache
def shared_problem(variant: str, dtype: str, device: str, configuration: str = SHARED) -> Problem:
    """The call of one configuration, recorded while the simulation without a mistake ran."""
    recorder = Recorder(simulated())
    program = Program(
        request(variant, configuration, dtype, ()).attention_stub or "", device, {"attend": recorder.attention()}
    )
    module = program.module(training=True)
    execute(module, module, [program.inputs()], training=True)
    program.close()
    return recorder.calls()[0][0]


def _published(problem: Problem, name: str) -> dict[str, bool | None]:
    """Who sees the mistake."""
    function = simulated(name)
    tried = Tried(problem.with_mask_of(function), function, problem.run(function))
    passes = {criterion: judge(tried) for criterion, judge in CRITERIA.items()}
    return {criterion: None if passed is None else not passed for criterion, passed in passes.items()}


def _row(line: Line, width: int) -> str:
    ours = f"seen: {line.verdict}, {line.statistic} ({line.configuration})" if line.seen else f"- ({line.verdict})"
    words = ["n/a" if seen is None else "seen" if seen else "-" for seen in line.criteria.values()]
    return f"{line.mistake:{width}} {line.dtype:8} {ours:42} " + " ".join(f"{word:8}" for word in words)


def _totals(where: str, lines: list[Line]) -> list[str]:
    if not lines:
        return []
    counts = {"ours": sum(line.seen for line in lines)}
    counts |= {name: sum(bool(line.criteria[name]) for line in lines) for name in CRITERIA}
    return [f"{where}: of {len(lines)} seen by " + ", ".join(f"{name} {count}" for name, count in counts.items())]
