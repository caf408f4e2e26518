"""Names of the values that executions give: "output 0", "grad of input 1", "buffer cache afterwards, call 2"."""

import re

_NAME = re.compile(
    r"(?P<gradient>grad of )?(?P<kind>output|input|parameter|buffer) (?P<which>[\w.]+)"
    r"(?P<written> afterwards)?(, call (?P<call>\d+))?"
)
_OF_FUNCTIONS = ("dq", "dk", "dv", "dbias", "dsinks")
_ORDINALS = ("first", "second", "third", "fourth", "fifth", "sixth", "seventh", "eighth")


def parse_value(value: str) -> re.Match[str] | None:
    """The parts of a name: `gradient`, `kind`, `which` (a number, or a name in the module), `written`, `call`. None for
    another text, such as what calls of attention functions give."""
    return _NAME.fullmatch(value)


def is_gradient(value: str) -> bool:
    """Whether a value is a gradient, of an execution or of a call of an attention function."""
    return value.startswith("grad of ") or value in _OF_FUNCTIONS


def describe_value(value: str, name: str = "", *, is_sequence: bool = False) -> str:
    """A name in words: "gradient of parameter w after the second call". `name`: in the place of kind and number;
    `is_sequence`: the first call is named too."""
    found = parse_value(value)
    if found is None:
        return value
    words = ("gradient of " if found["gradient"] else "") + (name or f"{found['kind']} {found['which']}")
    if not (is_sequence or found["call"]):
        return f"{words} after the call" if found["written"] else words
    ordinal = _ORDINALS[(int(found["call"] or 1) - 1) % len(_ORDINALS)]
    return f"{words} {'of' if found['kind'] == 'output' else 'after'} the {ordinal} call"
