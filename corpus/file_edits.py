"""Edits of YAML text that keep all other characters, comments included."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from corpus.strict_yaml import Data, Node, dump_flow


@dataclass(frozen=True, slots=True)
class Edit:
    """A replacement for `text[start:end]` of a file."""

    start: int
    end: int
    text: str


def apply_edits(text: str, edits: Iterable[Edit]) -> str:
    """The text with all edits, which must not overlap. Edits at one place keep their order."""
    for edit in sorted(edits, key=lambda e: e.start)[::-1]:
        text = text[: edit.start] + edit.text + text[edit.end :]
    return text


def set_key(text: str, mapping: Node, key: str, value: Data, *, after: str = "") -> Edit:
    """Set a key of a mapping, on one line. A new key comes after the key `after`, or last."""
    entries = mapping.entries()
    if key in entries:
        old = entries[key]
        return Edit(old.key_end, old.end, f": {dump_flow(value)}" + ("\n" if text[old.end - 1] == "\n" else ""))
    line = f"{dump_flow(key)}: {dump_flow(value)}"
    end = (entries[after] if after in entries else list(entries.values())[-1]).end
    return Edit(end, end, f", {line}") if mapping.flow else _insert_below(text, end, _column(text, mapping) + line)


def append_items(text: str, items: Node, values: Sequence[Mapping[str, Data]]) -> Edit:
    """Append mappings to a block list, one line a key and a blank line above each."""
    column = _column(text, items) if items.items() else "  "
    lines = ([f"{dump_flow(key)}: {dump_flow(item)}" for key, item in value.items()] for value in values)
    blocks = "\n\n".join(column + "- " + f"\n{column}  ".join(entry) for entry in lines)
    if items.items():
        return _insert_below(text, items.end, "\n" + blocks)
    return Edit(items.key_end, items.end, ":\n" + blocks)


def _column(text: str, node: Node) -> str:
    return " " * (node.start - text.rfind("\n", 0, node.start) - 1)


def _insert_below(text: str, end: int, lines: str) -> Edit:
    """Insert lines below the one that a value ends on."""
    if text[end - 1] != "\n":
        end = text.find("\n", end) + 1 or len(text)
    return Edit(end, end, ("" if text[end - 1] == "\n" else "\n") + lines + "\n")
