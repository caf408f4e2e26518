"""Print the source text of cases: `python -m fuzz.show CASE...`."""

from pathlib import Path

from fuzz.cli import DEFAULT_WORKER, WorkerOptions, enter


def show(
    *cases: Path, module: str | None = None, python: str | None = None, worker: WorkerOptions = DEFAULT_WORKER
) -> None:
    """Print the Python source of each case: the module and its inputs, as workers run them.

    For a case of a function, package.module:function, the module calls it.

    Parameters
    ----------
    cases
        Case files, or directories of them.
    module
        package.module:factory, as for fuzz.compare: print its blocks as cases.
    python
        Interpreter that imports the module; by default the current one.

    Examples
    --------
    python -m fuzz.show corpus/known/integer-mask.case.yaml
    python -m fuzz.show --module my_model:block
    """
    from corpus.entry import load_all
    from fuzz.importing.importer import ModuleImport, describe_gaps
    from fuzz.subjects import is_user_function
    from generators.program.attention_stub import emit_call
    from generators.program.emit import source

    if module is not None:
        with ModuleImport(worker.configure(python, ()), module) as importing:
            for block in importing.import_blocks():
                alike = f", also {', '.join(block.also)}" if block.also else ""
                print(f"# {describe_gaps(block) or block.name}{alike}")
                print(source(block.case) if block.case is not None else "")
    entries = load_all(cases) if cases or module is None else {}
    for path, entry in entries.items():
        if len(entries) > 1:
            print(f"# {path}")
        is_call = is_user_function(entry.subject) and entry.case.contracts  # without any, it compiles modules
        print(emit_call(entry.case, entry.subject) if is_call else source(entry.case))


if __name__ == "__main__":
    enter(show, "fuzz.show")
