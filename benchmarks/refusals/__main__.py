"""Draw programs, count what turns candidates away, and write the list of refusals into docs/coverage.md.

    python -m benchmarks.refusals [--cases 3000] [--seed 1] [--save before|after]

Without `--save` it counts nothing: it writes the list with the saved counts.
"""

import argparse
import json

from benchmarks.refusals.draws import count_refusals
from benchmarks.refusals.page import MEASURED, read_measured, write_page
from generators.sampling.sample import sample


def main() -> int:
    """Count and write."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.refusals", description=__doc__.splitlines()[0])
    parser.add_argument("--cases", type=int, default=3000)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--save", choices=("before", "after"))
    options = parser.parse_args()
    if options.save:
        drawn = {
            "modules": count_refusals(lambda index: sample(options.seed, index), options.cases),
            "portable": count_refusals(lambda index: sample(options.seed, index, abilities=()), options.cases // 3),
        }
        counted = {name: counts.as_data() for name, counts in drawn.items()}
        measured = {**read_measured(), options.save: {"seed": options.seed, **counted}}
        MEASURED.write_text(json.dumps(measured, indent=1, sort_keys=True) + "\n", encoding="utf-8")
    write_page()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
