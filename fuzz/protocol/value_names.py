"""Names of the values that executions give: "output 0", "grad of input 1", "buffer cache afterwards, call 2"."""

import re
from dataclasses import dataclass

_NAME = re.compile(r"(grad of )?(output|input|parameter|buffer) ([\w.]+)( afterwards)?(?:, call (\d+))?")
_OF_FUNCTIONS = ("dq", "dk", "dv", "dbias", "dsinks")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


@dataclass(frozen=True)
class ValueName:
    """The parts of a name. `kind`: `output`, `input`, `parameter` or `buffer`; `which`: its number, or its name in the
    module; `call`: the call of the module, from 1; `is_afterwards`: it is what was written."""

    kind: str
    which: str
    call: int = 1
    is_gradient: bool = False
    is_afterwards: bool = False

    @classmethod
    def parse(cls, value: str) -> "ValueName | None":
        """The parts of a name; None for another text, such as what calls of attention functions give."""
        found = _NAME.fullmatch(value)
        return found and cls(found[2], found[3], int(found[5] or 1), bool(found[1]), bool(found[4]))

    def describe(self, name: str = "", *, is_sequence: bool = False) -> str:
        """In words: "gradient of parameter w after the second call". `name`: in the place of kind and number;
        `is_sequence`: the first call is named too."""
        words = name or f"{self.kind} {self.which}"
        words = f"gradient of {words}" if self.is_gradient else words
        if not is_sequence and self.call == 1:
            return f"{words} after the call" if self.is_afterwards else words
        of = "of" if self.kind == "output" else "after"
        return f"{words} {of} the {_ORDINALS[(self.call - 1) % len(_ORDINALS)]} call"


def is_gradient(value: str) -> bool:
    """Whether a value is a gradient, of an execution or of a call of an attention function."""
    return value.startswith("grad of ") or value in _OF_FUNCTIONS


def describe_value(value: str) -> str:
    """A value's name in words."""
    found = ValueName.parse(value)
    return found.describe() if found else value
