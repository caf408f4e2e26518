"""Draw programs, count what turns candidates away, and write the list of refusals into docs/coverage.md.

    python -m benchmarks.refusals [--cases 3000] [--seed 1] [--save before|after] [--operations]
        [--programs 6] [--judged 100]

It writes the list with the saved counts, of which options make new ones:

--save          what turns candidates away while programs are drawn
--operations    what torch says of calls that the rules of operations refuse
--programs      what torch says of up to so many drawn programs that a reason alone turns away
--judged        what workers, and the subjects passes, passes_random and aot_eager, turn away of so many programs
"""

import argparse

import torch

from benchmarks.refusals.attempts import count_not_judged, try_refused
from benchmarks.refusals.draws import count_refusals
from benchmarks.refusals.operations import ask_torch
from benchmarks.refusals.page import save, write_page
from generators.sampling.sample import sample

_CHUNKS = 6


def main() -> int:
    """Count and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refusals", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", choices=("before", "after"))
    parser.add_argument("--operations", action="store_true")
    parser.add_argument("--programs", type=int)
    parser.add_argument("--judged", type=int)
    options = parser.parse_args()
    if options.save:
        drawn = {
            "modules": count_refusals(lambda index: sample(options.seed, index), options.cases),
            "portable": count_refusals(lambda index: sample(options.seed, index, abilities=()), options.cases // 3),
        }
        counted = {name: counts.as_data() for name, counts in drawn.items()}
        save(**{options.save: {"seed": options.seed, **counted}})
    if options.operations:
        answers = ask_torch(_CHUNKS, options.seed).items()
        asked = {place.key: one.as_data() for place, one in sorted(answers, key=lambda item: item[0].key)}
        save(operations={"torch": torch.__version__, "places": asked})
    if options.programs:
        tried = try_refused(lambda index: sample(options.seed, index), options.cases, options.programs)
        save(programs={"torch": torch.__version__, **{reason.name: one.as_data() for reason, one in tried.items()}})
    if options.judged:
        save(judged=count_not_judged(lambda index: sample(options.seed, index), options.judged))
    write_page()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
