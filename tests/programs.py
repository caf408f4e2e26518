"""Texts of case files for tests, without what is the same in most."""

from collections.abc import Mapping


def program(dims: str, inputs: Mapping[str, str], *ops: str, **more: str) -> str:
    """The text of a case file.

    An input is the axes of its shape, and behind a semicolon the fields in which it differs from normal float32; the
    seeds count up. An operation is `name = kind arguments, attributes`. The last one is returned unless `more` says
    otherwise: further fields of the file.
    """
    listed = []
    for seed, (name, given) in enumerate(inputs.items()):
        shape, _, own = given.partition("; ")
        usual = {"dtype": "float32", "values": f"{{seed: {seed}}}"}
        fields = [
            f"shape: [{shape}]",
            *(f"{k}: {v}" for k, v in usual.items() if f"{k}: " not in own),
            *filter(None, [own]),
        ]
        listed.append(f"  {name}: {{{', '.join(fields)}}}")
    lines = []
    for op in ops:
        call, _, attributes = op.partition(", ")
        name, _, words = call.partition(" = ")
        kind, *args = words.split()
        lines.append(
            f"  - {{name: {name}, op: {kind}, args: [{', '.join(args)}]{', ' * bool(attributes)}{attributes}}}"
        )
    more = {"returns": f"[{name}]"} | more
    ends = [f"{key}: {value}" for key, value in more.items()]
    return "\n".join(["case_format: 1", f"dims: {{{dims}}}", "inputs:", *listed, "ops:", *lines, *ends, ""])
