"""The processor time of a check, and whether two builds of attnfuzz judge alike.

    python -m benchmarks.cost --save NEW.json [--python PYTHON] [--subject NAME ...] [--cases 400] [--seed 57] [--plain]
    python -m benchmarks.cost --save OLD.json ... --root OTHER_CHECKOUT --like NEW.json
    python -m benchmarks.cost --compare OLD.json NEW.json

Draws cases as a campaign does, gives each its subjects by a schedule with fixed prices, and has one worker judge them.
Counts the processor time of the worker and of its compilers from the third case on, since the first cases make what
lasts for the process. A case that takes its process with it is left out.

--plain draws inference in float32 without settings. --root takes the product of another checkout, under the interpreter
that runs this; --like the subjects that a save has for each case. --compare prints every difference and the ratio of
the times.
"""

import argparse
import json
import os
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

PRICES = {"passes": 0.5, "triton": 1.0, "sdpa_math": 0.3, "sdpa_flash": 0.3, "aot_eager": 0.8, "export": 1.0}
"""Seconds that the schedule assumes for a check of a subject. Others that run passes cost as `passes`."""
_COMPILED = 5.0  # seconds of any other check
_WARM_CASES = 2
_TICKS = os.sysconf("SC_CLK_TCK")

Verdicts = dict[str, list[Any]]
"""By subject: the verdict and the rewrites."""


def main() -> int:
    """Judge and save, or compare. Returns the exit code: 1 if builds judge differently."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.cost", description=__doc__.splitlines()[0])
    parser.add_argument("--save", type=Path)
    parser.add_argument("--python", default=sys.executable, help="interpreter of the worker")
    parser.add_argument("--subject", action="append", default=[])
    parser.add_argument("--cases", type=int, default=400)
    parser.add_argument("--seed", type=int, default=57)
    parser.add_argument("--plain", action="store_true")
    parser.add_argument("--root", type=Path, help="another checkout")
    parser.add_argument("--like", type=Path, help="a save that has the subjects")
    parser.add_argument("--compare", type=Path, nargs=2, metavar=("OLD", "NEW"))
    options = parser.parse_args()
    if options.compare:
        return _compare(*(json.loads(path.read_text()) for path in options.compare))
    if options.root is not None:
        sys.path.insert(0, str(options.root.resolve()))
    if options.save is None:
        parser.error("give --save or --compare")
    options.save.write_text(json.dumps(_judge(options)))
    return 0


def _judge(options: argparse.Namespace) -> list[dict[str, Any]]:
    from fuzz.ask.evaluator import open_evaluator
    from fuzz.ask.question import Question
    from fuzz.ask.worker_config import WorkerConfig
    from fuzz.campaign.schedule import Schedule, choose_subjects
    from generators.program.settings import SETTINGS
    from generators.sampling.choices import Choices
    from generators.sampling.sample import sample
    from generators.sampling.settings import draw_settings

    schedule = Schedule(choose_subjects(options.subject))
    schedule.has_shown = True
    rows = list[dict[str, Any]]()
    saved = json.loads(options.like.read_text()) if options.like is not None else []
    with open_evaluator(WorkerConfig(python=options.python, timeout=300)) as evaluator:
        for index in range(len(saved) or options.cases):
            case = sample(options.seed, index, dtype="float32" * options.plain, mode="inference" * options.plain)
            if not options.plain:
                case = draw_settings(case, Choices(f"{options.seed}:{index}:settings"), SETTINGS)
            subjects = tuple(saved[index]["asked"]) if saved else schedule.subjects_for(case)
            pid = evaluator.hello.pid
            before = _read_seconds(pid)
            result = evaluator.ask(Question(case, subjects))
            after = _read_seconds(evaluator.hello.pid)
            is_lost = evaluator.hello.pid != pid  # its time is lost with it
            worker, compilers = (0.0, 0.0) if is_lost else (y - x for x, y in zip(before, after, strict=True))
            prices = {name: _price(name) for name in subjects}
            schedule.add_time(subjects, sum(prices.values()), prices, [op.kind for op in case.ops])
            verdicts: Verdicts = {one.subject: [one.verdict, sorted(one.applied_rewrites)] for one in result.results}
            wall = {one.subject: one.seconds for one in result.results}
            spent = {"seconds": worker + compilers, "children": compilers, "wall": wall, "total_wall": result.seconds}
            rows.append({"case": index, "asked": subjects, "is_lost": is_lost, **spent, "verdicts": verdicts})
            if index % 50 == 49:
                _print_costs(rows)
    _print_costs(rows)
    return rows


def _price(subject: str) -> float:
    base = next((name for name in PRICES if subject.startswith(name)), "")
    return PRICES.get(base, _COMPILED)


def _read_seconds(pid: int) -> tuple[float, float]:
    """Processor seconds of a process, and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    user, system, user_of_children, system_of_children = map(int, fields[11:15])
    return (user + system) / _TICKS, (user_of_children + system_of_children) / _TICKS


def _print_costs(rows: list[dict[str, Any]]) -> None:
    counted = [row for row in rows if not row["is_lost"]][_WARM_CASES:]
    total, checks = sum(row["seconds"] for row in counted), sum(len(row["verdicts"]) for row in counted)
    wall, counts = defaultdict[str, float](float), defaultdict[str, int](int)
    for row in counted:
        for name, seconds in [
            *row["wall"].items(),
            ("(eager, float64, noise)", row["total_wall"] - sum(row["wall"].values())),
        ]:
            wall[name] += seconds
            counts[name] += 1
    children = sum(row["children"] for row in counted)
    print(f"{len(counted)} cases, {checks} checks, {total:.1f} CPU s, of these {children:.1f} s in compilers of C++:")
    print(f"{checks / total:.2f} checks per CPU second")
    for name, seconds in sorted(wall.items(), key=lambda item: -item[1]):
        print(f"  {name:28} {counts[name]:4}x {seconds:7.1f} s, {seconds / counts[name]:6.2f} s each")
    sys.stdout.flush()


def _compare(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> int:
    if [row["asked"] for row in old] != [row["asked"] for row in new]:
        sys.exit("the saves have other cases or subjects: make one with --like the other")
    n_different = 0
    for before, now in zip(old, new, strict=True):
        for name in sorted(before["verdicts"].keys() | now["verdicts"].keys()):
            pair = before["verdicts"].get(name), now["verdicts"].get(name)
            if pair[0] != pair[1]:
                n_different += 1
                print(f"case {before['case']} under {name}: {pair[0]} before, {pair[1]} now")
    kept = [pair for pair in zip(old, new, strict=True) if not any(row["is_lost"] for row in pair)][_WARM_CASES:]
    totals = [sum(row["seconds"] for row in rows) for rows in zip(*kept, strict=True)]
    print(f"{n_different} differences; {totals[0]:.1f} -> {totals[1]:.1f} CPU s, {totals[0] / totals[1]:.2f} times")
    return int(n_different > 0)


if __name__ == "__main__":
    sys.exit(main())
