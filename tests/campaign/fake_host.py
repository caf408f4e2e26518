"""A stand-in for fuzz.libfuzzer.host: it draws cases by counting and answers by rules, as fake_worker.py does.

`fake_host.py RULES [--corpus DIR --seed N]`; without the latter it is a fake worker. The count goes on in `DIR/next`.
`kept`: operations of a case that every process says it has from an earlier one; `end`: the exit code before any case.
"""

import json
import os
import sys
from pathlib import Path

from corpus import casefile
from fuzz.protocol import Check, Drawn, Hello, from_json
from tests.campaign import fake_worker
from tests.campaign.fakes import case, sampler


def main() -> None:
    """Serve."""
    if "--corpus" not in sys.argv:
        fake_worker.main()
        return
    rules = json.loads(sys.argv[1])
    directory = Path(sys.argv[sys.argv.index("--corpus") + 1])
    directory.mkdir(parents=True, exist_ok=True)
    subjects = fake_worker.SUBJECTS
    hello = Hello("2.13.0", "3.11.7", "cpu", "g++ 12.2", os.getpid(), 0.1, "fake", subjects, ("triton",))
    fake_worker.send(hello)
    sys.stderr.write("INFO: Running with entropic power schedule\n")
    if "end" in rules:
        sys.exit(rules["end"])
    if "kept" in rules:
        run(Drawn(casefile.dumps(case(*rules["kept"]))), rules)
    cases, count = sampler("softmax"), directory / "next"
    while True:
        index = int(count.read_text()) if count.exists() else 0
        count.write_text(str(index + 1))
        run(Drawn(casefile.dumps(cases(1, index))), rules)


def run(drawn: Drawn, rules: dict[str, object]) -> None:
    """Say what is drawn and answer what is asked about it."""
    fake_worker.send(drawn)
    line = sys.stdin.readline()
    message = from_json(line) if line else None
    if not isinstance(message, Check):
        sys.exit(0)
    fake_worker.answer(message, rules, 1)


if __name__ == "__main__":
    main()
