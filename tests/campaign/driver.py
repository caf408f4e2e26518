"""A campaign with a fake worker in a process of its own, to be interrupted: `driver.py DIRECTORY BUDGET RULES`.

`corpus` among the rules: the directory for `--corpus`.
"""

import json
from pathlib import Path

from fuzz import cli
from fuzz.campaign.session import run_campaign
from tests.campaign.fakes import options, sampler, setup


def run(directory: Path, budget: str, rules: str) -> int:
    """Run; 130 when interrupted."""
    read = json.loads(rules)
    corpus = Path(read.pop("corpus", directory / "found"))
    resume = ("--out", str(directory / "run"))
    given = options(directory, budget, seed=-1, workers=2, worker_config=setup(**read), corpus=corpus, resume=resume)
    ending = run_campaign(given, sampler("softmax", "relu", "log", "amax", every=3))
    if ending.error is not None:
        raise ending.error
    return cli.INTERRUPTED if ending.interrupted else 1 if ending.new else 0


if __name__ == "__main__":
    cli.enter(run, "driver")
