"""Print the source text of cases: `python -m fuzz.show CASE...`."""

from pathlib import Path

from fuzz.cli import enter


def show(*cases: Path) -> None:
    """Print the Python source of each case: the module and its inputs, as workers run them.

    For a case of a function, package.module:function, the module calls it.

    Parameters
    ----------
    cases
        Case files, or directories of them.

    Examples
    --------
    python -m fuzz.show corpus/known/integer-mask.case.yaml
    python -m fuzz.show corpus/found
    """
    from corpus.entry import load_all
    from fuzz.subjects import is_user_function
    from generators.program.attention_stub import emit_call
    from generators.program.emit import source

    entries = load_all(cases)
    for path, entry in entries.items():
        if len(entries) > 1:
            print(f"# {path}")
        print(emit_call(entry.case, entry.subject) if is_user_function(entry.subject) else source(entry.case))


if __name__ == "__main__":
    enter(show, "fuzz.show")
