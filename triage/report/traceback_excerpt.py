"""What a run wrote on stderr, cut down to the frames that a maintainer needs, with paths relative to their package."""

import re

_MOST = 20
_CHATTER = re.compile(r"Set TORCH|You can suppress|[ ^~]+$")
_PATH = re.compile(r"(?<![\w./:])/(?:[\w.+@~-]+/)+[\w.+@~-]+")
_FRAME = '  File "'
_PASS = re.compile(r"fx_passes|pattern_matcher")
"""Where Inductor rewrites graphs."""

_LAST_FRAMES, _PASS_FRAMES, _OTHER_LINES = 3, 2, 6


def shorten_log(log: str) -> str:
    """The log without chatter and this machine's directories. Of a long one: the deepest frames of a graph
    pass, the last frames of each traceback, and its end."""
    lines = [
        _PATH.sub(_path_from_package, line.rstrip())
        for line in log.splitlines()
        if line.strip() and not _CHATTER.match(line)
    ]
    if len(lines) <= _MOST:
        return "\n".join(lines)
    # A frame with its text is one block, every other line another.
    blocks = re.findall(r"  File \".*\n(?:    .*\n)*|.*\n", "".join(f"{line}\n" for line in lines))
    kept = _choose_blocks(blocks)
    told: list[str] = []
    for number, block in enumerate(blocks):
        if number in kept:
            told.append(block)
        elif not told or told[-1] != "  ...\n":
            told.append("  ...\n")
    return "".join(told).removesuffix("\n")


def _path_from_package(found: re.Match[str]) -> str:
    path = found[0]
    for mark in ("/site-packages/", "/dist-packages/"):
        if mark in path:
            return path.rpartition(mark)[2]
    before, mark, after = path.rpartition("/torch/")
    return f"torch/{after}" if mark and before else path.rpartition("/")[2]


def _choose_blocks(blocks: list[str]) -> set[int]:
    frames = [number for number, block in enumerate(blocks) if block.startswith(_FRAME)]
    others = [number for number in range(len(blocks)) if number not in frames]
    # The last ones of a traceback are followed by what was raised.
    last = [number for number in frames if any(number < end <= number + _LAST_FRAMES for end in others)]
    deepest = [number for number in frames if _PASS.search(blocks[number].partition("\n")[0])][-_PASS_FRAMES:]
    heads = [number for number in others if blocks[number].startswith("Traceback")]
    return {*last[-2 * _LAST_FRAMES :], *deepest, *heads[:1], *others[-_OTHER_LINES:]}
