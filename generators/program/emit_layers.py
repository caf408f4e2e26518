"""Functions and layers that several regions share, as the layers of a model share a class.

torch.compile traces the body of a `nested_compile_region` once for all calls that it takes to be alike.
"""

from collections.abc import Iterable, Sequence

_DECORATOR = "@torch.compiler.nested_compile_region"


def indent(lines: Iterable[str], levels: int = 1) -> list[str]:
    return [f"{'    ' * levels}{line}" if line else "" for line in lines]


def choose_lines(bodies: Sequence[Sequence[Sequence[str]]], number: str) -> list[str]:
    """The lines of one body for all.

    bodies: for each region, for each of its operations, the lines
    number: the text that gives the number of the region
    """
    lines: list[str] = []
    for of_one in zip(*bodies, strict=True):
        forms = [*dict.fromkeys(map(tuple, of_one))]
        if len(forms) == 1:
            lines += forms[0]
            continue
        for form in forms:
            numbers = [place for place, text in enumerate(of_one) if tuple(text) == form]
            is_one = f"== {numbers[0]}" if len(numbers) == 1 else f"in {tuple(numbers)}"
            word = "if" if form == forms[0] else "elif"
            lines += ["else:" if form == forms[-1] else f"{word} {number} {is_one}:", *indent(form)]
    return lines


def emit_maker(maker: str, number: str, name: str, function: Sequence[str]) -> str:
    """A function whose results, functions named `name`, differ in the number that they close over."""
    return _join([f"def {maker}({number}):", *indent([*function, "", f"return {name}"])])


def emit_class(name: str, line: str, forward: Sequence[str]) -> str:
    """A class of layers that differ in the number that the line of `__init__` reads."""
    start = ["def __init__(self, number):", *indent(["super().__init__()", line]), ""]
    return _join([f"class {name}(nn.Module):", *indent([*start, *forward])])


def define_region(name: str, parameters: Sequence[str], body: Sequence[str], *, plain: bool) -> list[str]:
    """The lines of a function that is a region."""
    return [*[_DECORATOR] * (not plain), f"def {name}({', '.join(parameters)}):", *indent(body)]


def _join(lines: Sequence[str]) -> str:
    return "\n\n" + "\n".join(lines) + "\n"
