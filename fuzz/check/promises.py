"""Settings under which torch promises that two runs on equal inputs are equal bit for bit, in torch's words.

`numerics="strict"` of torch 2.15 is not among them: its comment in config.py requests eager's order of operations and
has it as a TODO to route operations through it. torch promises nothing of results under other numbers of threads.
"""

from collections.abc import Mapping
from typing import Any

from fuzz.protocol.failures import BrokenPromise

DETERMINISTIC = "use_deterministic_algorithms"
PROMISES = {
    DETERMINISTIC: (
        "given the same input, and when run on the same software and hardware, always produce the same output",
        f"torch.{DETERMINISTIC}",
    ),
    "deterministic": (
        "skips any on device benchmarking in Inductor if we know they affect numerics",
        "torch/_inductor/config.py",
    ),
}
"""By setting: the promise, and where it stands."""


def find_broken(value: str, settings: Mapping[str, Any]) -> BrokenPromise | None:
    """The first promise of the settings of a case that a value breaks which differs between runs; None without one."""
    given = (setting for setting in PROMISES if settings.get(setting))
    return next((BrokenPromise(value, setting, *PROMISES[setting]) for setting in given), None)
