"""Which findings of older versions are about a relation between two calls of an attention function."""

from fuzz.protocol.relations import MEANINGS

__all__ = ["MEANINGS", "explained", "is_of_another_call", "relation_of"]


def relation_of(message: str) -> str:
    """The relation that a finding's message says is broken, "" where it is about the call of the case itself."""
    name = message.partition(": ")[0]
    return name if name in MEANINGS else ""


def is_of_another_call(message: str) -> bool:
    """Whether a finding is about a further call with other arguments, so that its numbers, those of the case, are right."""
    return bool(relation_of(message)) or message.startswith("called again ")


def explained(message: str) -> str:
    """What a broken relation means, in one line; "" where there is none."""
    name = relation_of(message)
    return f"the function was called again with other arguments ({name}): {MEANINGS[name]}" if name else ""
