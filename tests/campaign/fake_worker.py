"""A worker that runs nothing: it answers by rules. `fake_worker.py RULES`, JSON, or a path to it after `@`.

A rule holds for a check when `match` (a regular expression) is found in the source, the subject is in `subjects`, and
the check has no experiment of `unless`; the first that holds says the verdict, and optionally what to do when the
subject's stage begins; where launches are to be synchronous its `synchronous` counts too. `after`: found in the source
of an earlier check of the process. `once`: a file that does not exist until the rule has held for a subject. `starts`:
a file that counts starts, of which those in `bad_starts` fail.
`unusable_with`: options with which alone the worker is unusable.
`time_out` hangs and says so, at which `tests/conftest.py` lets the time be up, however busy the machine is.
It writes JSON itself: tests start hundreds, and `fuzz.protocol` takes longer to import than all else.
"""

import ctypes
import faulthandler
import json
import os
import re
import sys
import time
from typing import Any

EARLIER = [""]  # the programs that were checked, after an empty program
SUBJECTS = ("passes", "inductor", "inductor_dynamic", "aot_eager")


def main() -> None:
    """Serve."""
    rules = json.loads(sys.argv[1])
    if rules.get("faulthandler"):
        faulthandler.enable()
    if "starts" in rules:
        with open(rules["starts"], "ab", buffering=0) as file:  # noqa: PTH123 - pathlib takes as long to import as the rest
            file.write(b".")
            if file.tell() in rules["bad_starts"]:
                os.kill(os.getpid(), 9)
    if "hangs" in rules:
        send("stage_started", id=0, stage=rules["hangs"])
        time.sleep(600)
    if "unusable" in rules and rules.get("unusable_with", "") in " ".join(sys.argv[2:]):
        send("unusable", reason=rules["unusable"])
        sys.exit(2)
    if "raw" in rules:
        sys.stdout.write(rules["raw"] + "\n")
        sys.exit(0)
    say_hello(rules)
    for checks, line in enumerate(sys.stdin, 1):
        check = json.loads(line)
        if check["kind"] != "check":
            break
        answer(check, rules, checks)
        EARLIER.append(check["source"])


def say_hello(rules: dict[str, Any], **more: Any) -> None:
    """What a worker says first."""
    hello: dict[str, Any] = {
        "torch": rules.get("torch", "2.13.0"),
        "python": "3.11.7",
        "device": "cpu",
        "cxx": rules.get("cxx", "g++ 12.2"),
        "pid": os.getpid(),
        "seconds": 0.1,
        "device_name": "fake",
        "subjects": (*SUBJECTS, *rules.get("subjects", ())),
        "attention": {name: {} for name in rules.get("attention", ())},
        "abilities": rules.get("abilities", {}),
        "missing_hooks": rules.get("missing_hooks", {}),
        "switch": rules.get("switch", ""),
        "versions": rules.get("versions", {}),
    }
    send("hello", **{**hello, **more})


def answer(check: dict[str, Any], rules: dict[str, Any], checks: int) -> None:
    """Judge one check."""
    time.sleep(rules.get("seconds", 0.0))
    for stage in ("eager", "reference", "noise"):
        send("stage_started", id=check["id"], stage=stage)
        act(rule_for(rules, check, stage, checks), rules)
    rejected = rule_for(rules, check, "eager", checks).get("rejected")
    results = []
    for subject in () if rejected else check["subjects"]:
        send("stage_started", id=check["id"], stage=subject)
        rule = rule_for(rules, check, subject, checks)
        act(rule, rules)
        told = {
            name: rule[name]
            for name in ("failure", "numbers", "applied_rewrites", "dynamo_same", "coverage")
            if name in rule
        }
        results.append({"subject": subject, "verdict": rule.get("verdict", "ok"), "seconds": 0.001} | told)
    send(
        "result",
        id=check["id"],
        rejected=rejected,
        results=results,
        seconds=0.002,
        rss_mib=rules.get("rss", 100.0) + rules.get("growth", 0.0) * checks,
        unfit="its device is lost to it" if rule_for(rules, check, "spent", checks) else "",
    )


def rule_for(rules: dict[str, Any], check: dict[str, Any], stage: str, checks: int) -> dict[str, Any]:
    """The first rule that holds; empty when none does."""
    for rule in rules.get("rules", ()):
        if not any(re.search(rule.get("after", ""), source) for source in EARLIER):
            continue
        if stage not in rule.get("subjects", SUBJECTS) or checks < rule.get("from_check", 1):
            continue
        if {one["experiment"] for one in check.get("experiments", ())} & {*rule.get("unless", ())}:
            continue
        if re.search(rule["match"], check["source"]) and not ("once" in rule and used_up(rule["once"], stage)):
            return {**rule, **(rule.get("synchronous", {}) if "CUDA_LAUNCH_BLOCKING" in os.environ else {})}
    return {}


def used_up(path: str, stage: str) -> bool:
    """Whether the file `path` exists. A subject's stage makes it."""
    if os.path.exists(path):  # noqa: PTH110 - pathlib takes as long to import as the rest
        return True
    if stage in SUBJECTS:
        os.close(os.open(path, os.O_CREAT))
    return False


def act(rule: dict[str, Any], rules: dict[str, Any]) -> None:
    """Die, hang, eat or babble, when the rule says so."""
    action = rule.get("do")
    if action == "die":
        os.kill(os.getpid(), 11)
    elif action == "die_in_a_thread":  # that has no frames of Python
        libc, thread = ctypes.CDLL(None), ctypes.c_ulong()
        libc.pthread_create(ctypes.byref(thread), None, ctypes.c_void_p(1), None)
        libc.pthread_join(thread, None)
    elif action == "shout":
        sys.stderr.write("".join(f"line {number}\n" for number in range(100_000)))
        sys.stderr.flush()
        os.kill(os.getpid(), 11)
    elif action == "killed":
        os.kill(os.getpid(), 9)
    elif action == "exit":
        sys.stderr.write("cannot go on\n")
        sys.exit(7)
    elif action == "babble":
        sys.stdout.write("Segmentation\n")
        sys.stdout.flush()
        time.sleep(600)
    elif action == "fork":
        if os.fork() == 0:
            time.sleep(600)
        os.kill(os.getpid(), 11)
    elif action == "refuse":
        send("unusable", reason=rule["reason"])
        sys.exit(2)
    elif action == "fail":
        send("fault", text="Traceback (most recent call last):\nIndexError: amax over nothing\n")
        sys.exit(3)
    elif action in ("hang", "time_out"):
        if "child_pid" in rules:
            child = os.spawnlp(os.P_NOWAIT, "sleep", "sleep", "600")
            with open(rules["child_pid"], "w") as file:  # noqa: PTH123 - pathlib takes as long to import as the rest
                file.write(str(child))
        if action == "time_out":
            os.write(1, b'{"kind": "hangs"}\n')  # in this frame: the stack may be dumped before the call returns
        time.sleep(600)
    elif action == "eat":
        eaten = b"x" * (300 << 20)
        time.sleep(600)
        del eaten


def send(kind: str, **fields: Any) -> None:
    """Write one message."""
    sys.stdout.write(json.dumps({"kind": kind, **fields}) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
