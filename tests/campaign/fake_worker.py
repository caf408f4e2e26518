"""A worker that runs nothing: it answers by rules. `fake_worker.py RULES`, JSON, or a path to it after `@`.

A rule holds for a check when `match` (a regular expression) is found in the source and the subject is in `subjects`;
the first that holds says the verdict, and optionally what to do when the subject's stage begins.
"""

import faulthandler
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from fuzz.protocol import Check, Hello, Message, Result, Stage, Unusable, from_json
from fuzz.protocol.recorded import read_result

SUBJECTS = ("passes", "inductor", "inductor_dynamic", "aot_eager")


def main() -> None:
    """Serve."""
    rules = json.loads(sys.argv[1])
    if rules.get("faulthandler"):
        faulthandler.enable()
    if "unusable" in rules:
        send(Unusable(rules["unusable"]))
        sys.exit(2)
    if "raw" in rules:
        sys.stdout.write(rules["raw"] + "\n")
        sys.exit(0)
    cxx = rules.get("cxx", "g++ 12.2")
    more = tuple(rules.get("subjects", ()))
    send(
        Hello(
            torch=rules.get("torch", "2.13.0"),
            python="3.11.7",
            device="cpu",
            cxx=cxx,
            pid=os.getpid(),
            seconds=0.1,
            device_name="fake",
            subjects=SUBJECTS + more,
            attention=tuple(rules.get("attention", ())),
            missing_hooks=rules.get("missing_hooks", {}),
        )
    )
    for checks, line in enumerate(sys.stdin, 1):
        message = from_json(line)
        if not isinstance(message, Check):
            break
        answer(message, rules, checks)


def answer(check: Check, rules: dict[str, Any], checks: int) -> None:
    """Judge one check."""
    time.sleep(rules.get("seconds", 0.0))
    for stage in ("eager", "reference", "noise"):
        send(Stage(check.id, stage))
        act(rule_for(rules, check, stage, checks), rules)
    rejected = rule_for(rules, check, "eager", checks).get("rejected")
    results = []
    for subject in () if rejected else check.subjects:
        send(Stage(check.id, subject))
        rule = rule_for(rules, check, subject, checks)
        act(rule, rules)
        results.append(
            read_result(
                {
                    "subject": subject,
                    "verdict": rule.get("verdict", "ok"),
                    "failure": rule.get("failure"),
                    "numbers": rule.get("numbers", {}),
                    "fired": rule.get("fired", ()),
                    "same": rule.get("same"),
                    "seconds": 0.001,
                    "reached": rule.get("reached", ()),
                    "value_set": rule.get("value_set", 0),
                }
            )
        )
    spent = bool(rule_for(rules, check, "spent", checks))
    rss = rules.get("rss", 100.0) + rules.get("growth", 0.0) * checks
    send(Result(check.id, rejected, tuple(results), 0.002, 0.002, rss, device_lost=spent))


def rule_for(rules: dict[str, Any], check: Check, stage: str, checks: int) -> dict[str, Any]:
    """The first rule that holds; empty when none does."""
    for rule in rules.get("rules", ()):
        if stage not in rule.get("subjects", SUBJECTS) or checks < rule.get("from_check", 1):
            continue
        if re.search(rule["match"], check.source):
            return dict(rule)
        for number, other in enumerate(check.value_sets, 1):
            if re.search(rule["match"], other.source) and "verdict" in rule:
                return {**rule, "value_set": number}
    return {}


def act(rule: dict[str, Any], rules: dict[str, Any]) -> None:
    """Die, hang, eat or babble, when the rule says so."""
    action = rule.get("do")
    if action == "die":
        os.kill(os.getpid(), 11)
    elif action == "exit":
        sys.stderr.write("cannot go on\n")
        sys.exit(7)
    elif action == "babble":
        sys.stdout.write("Segmentation\n")
        sys.stdout.flush()
        time.sleep(600)
    elif action == "fail":
        sys.stderr.write("Traceback (most recent call last):\nIndexError: amax over nothing\n")
        sys.exit(3)
    elif action == "hang":
        if "child_pid" in rules:
            child = subprocess.Popen(["sleep", "600"])
            Path(rules["child_pid"]).write_text(str(child.pid))
        time.sleep(600)
    elif action == "eat":
        eaten = b"x" * (300 << 20)
        time.sleep(600)
        del eaten


def send(message: Message) -> None:
    """Write one message."""
    sys.stdout.write(message.to_json() + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
