"""A stand-in for fuzz.libfuzzer: it draws cases by counting and answers by rules, as fake_worker.py does.

`fake_host.py RULES [--corpus DIR]`; without a directory it is a fake worker. The count goes on in `DIR/next`.
`kept`: operations of a case that every process says it has from an earlier one; `end`: the exit code before any case,
3 after a fault.
"""

import json
import sys
from pathlib import Path

from corpus import casefile
from generators.program.case import Case
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
    fake_worker.say_hello(rules, attention={"triton": {}})
    sys.stderr.write("INFO: Running with entropic power schedule\n")
    if rules.get("end") == 3:
        fake_worker.send("fault", text="IndexError: no such byte")
    if "end" in rules:
        sys.exit(rules["end"])
    if "kept" in rules:
        run(case(*rules["kept"]), rules)
    cases, count = sampler("softmax"), directory / "next"
    while True:
        index = int(count.read_text()) if count.exists() else 0
        count.write_text(str(index + 1))
        run(cases(1, index), rules)


def run(drawn: Case, rules: dict[str, object]) -> None:
    """Say what is drawn and answer what is asked about it."""
    fake_worker.send("drawn", case=casefile.dumps(drawn))
    line = sys.stdin.readline()
    check = json.loads(line) if line else {}
    if check.get("kind") != "check":
        sys.exit(0)
    fake_worker.answer(check, rules, 1)


if __name__ == "__main__":
    main()
