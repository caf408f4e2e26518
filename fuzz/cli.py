"""Runs all command lines: options, settings of a campaign from pyproject.toml, errors of one line, exit codes.

A command's docstring ends in examples and exit codes ("1: regressions"), which `--help` prints below the options.
"""

import errno
import inspect
import os
import re
import shutil
import signal
import sys
import textwrap
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NoReturn, TextIO, cast

from generators.errors import UserError, UserErrors

if TYPE_CHECKING:
    from fuzz.ask.worker_config import WorkerConfig

USAGE, FAULT, INTERRUPTED = 2, 3, 130
DISK_ERRORS = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS, errno.EFBIG)
CODES = {
    0: "done",
    USAGE: "wrong option or file: one line says why",
    FAULT: "a bug in attnfuzz, with its traceback",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP",
}
"""The meaning of exit codes. A command's docstring takes precedence."""

_SPECIAL = re.compile(r"[^\n\t -~]")

NEEDED = frozenset({"cyclopts", "jinja2", "packaging", "rich", "yaml"})
"""Packages of the parent process. An interpreter without them can still run workers."""


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of all commands that judge cases of a user.

    Parameters
    ----------
    device
        cpu or cuda; by default the device in the case file.
    timeout
        Time limit for one stage of a case, such as 60s.
    memory
        Memory limit of a worker, in MiB.
    """

    device: Literal["cpu", "cuda"] | None = None
    timeout: str = "120s"
    memory: int = 8192

    def configure(self, python: str | None, subjects: Iterable[str] | None, device: str = "cpu") -> "WorkerConfig":
        """How to start a worker; `device` is the default. Raises `UserError`."""
        from fuzz.ask.worker_config import WorkerConfig

        return WorkerConfig.from_options(python, self.device or device, subjects or (), self.timeout, self.memory)


DEFAULT_WORKER = WorkerOptions()


def enter(command: Callable[..., int | None], name: str) -> NoReturn:
    """Run `command` with the options of `sys.argv` and exit. `name` is its module, such as `fuzz.run`."""
    for stream in ("stdin", "stdout", "stderr"):
        if getattr(sys, stream) is None:  # It is closed, and the next file would get its number.
            setattr(sys, stream, open(os.devnull, "r+", encoding="utf-8"))  # noqa: SIM115, PTH123 - until the end
    _set_handlers(signal.default_int_handler)
    code = call(command, name, sys.argv[1:])
    _set_handlers(signal.SIG_IGN)  # Nothing follows but the exit code.
    with ignore_lost_output():
        sys.stdout.flush()
    sys.exit(code)


_Handler = Callable[[int, FrameType | None], Any] | int | None


def _set_handlers(handler: _Handler) -> dict[signal.Signals, _Handler]:
    numbers = [signal.SIGINT, signal.SIGTERM]
    if signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN:
        numbers.append(signal.SIGHUP)
    return {number: signal.signal(number, handler) for number in numbers}


@contextmanager
def handle_signals(handler: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Within it `handler` gets SIGINT, SIGTERM and SIGHUP, unless SIGHUP is ignored (nohup)."""
    before = _set_handlers(handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def ignore_lost_output() -> Iterator[None]:
    """Within it failed output raises nothing. A stream without a reader or terminal gets no more output."""
    try:
        yield
    except OSError as failure:
        if failure.errno == errno.ENOSPC:
            return  # The next flush writes it when there is space again.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def call(command: Callable[..., int | None], name: str, arguments: Sequence[str]) -> int:
    """Run `command` with these arguments and return its exit code. Errors are reported on stderr."""
    out, errors = (cast("TextIO", _Screened(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(errors):
        try:
            return bind(command, name, arguments)() or 0
        except BrokenPipeError:
            return 0  # The reader of our output has ended (`| head`).
        except (Exception, KeyboardInterrupt) as error:
            code, text = _explain(error)
            with ignore_lost_output():
                print(text, file=sys.stderr, flush=True)
            return code


def _explain(error: BaseException) -> tuple[int, str]:
    if isinstance(error, UserError):
        lines = error.args if isinstance(error, UserErrors) else (error,)
        return USAGE, "\n".join(f"error: {_one_line(line)}" for line in lines)
    if isinstance(error, ModuleNotFoundError) and error.name in NEEDED:
        missing = f"error: {sys.executable} has no {error.name}"
        return USAGE, f"{missing}: use .venv/bin/python, which `make venv` creates"
    if isinstance(error, KeyboardInterrupt):
        return INTERRUPTED, "interrupted"
    if isinstance(error, OSError) and error.errno in DISK_ERRORS:
        return USAGE, f"error: {error.filename or 'the output'} can't be written: {error.strerror}"
    about = "error: this is a bug in attnfuzz; please report it with the traceback above"
    return FAULT, f"{traceback.format_exc()}{about}"


def refuse(*rules: tuple[object, str]) -> None:
    """Raises `UserError` with the text of the first rule whose condition holds."""
    text = next((text for is_broken, text in rules if is_broken), None)
    if text is not None:
        raise UserError(text)


def escape_controls(text: str) -> str:
    """The text, with escapes for characters that control a terminal, or that hide or reorder text."""
    return _SPECIAL.sub(lambda found: found[0] if found[0].isprintable() else ascii(found[0])[1:-1], text)


def wrap(*lines: str) -> list[str]:
    """Lines of at most 80 columns, or of the terminal's, broken at words. A broken line keeps its indent, and 2 more.

    No path is broken.
    """
    width, fitting = min(80, shutil.get_terminal_size().columns), list[str]()
    for line in lines:
        indent = line[: len(line) - len(line.lstrip())]
        wrapper = textwrap.TextWrapper(width, indent, f"{indent}  ", break_long_words=False, break_on_hyphens=False)
        fitting += wrapper.wrap(line.strip())
    return fitting


class _Screened:
    """A stream that escapes all text except Rich's, which goes to `rich_proxied_file`."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        return self.rich_proxied_file.write(escape_controls(text))


def bind(command: Callable[..., int | None], name: str, arguments: Sequence[str]) -> Callable[[], int | None]:
    """The command bound to its arguments. Raises `UserError`; exits with 0 after `--help`."""
    from cyclopts import App, CycloptsError, Parameter
    from cyclopts.config import Toml
    from rich.console import Console

    class HelpConsole(Console):
        def on_broken_pipe(self) -> None:
            raise BrokenPipeError  # Rich exits with 1 instead.

    settings = Toml("pyproject.toml", root_keys=("tool", "attnfuzz"), search_parents=True, use_commands_as_keys=False)
    parameters = inspect.signature(command).parameters.values()
    several = "".join(p.name.upper() for p in parameters if p.kind is inspect.Parameter.VAR_POSITIONAL)
    Parameter(name="*")(WorkerOptions)  # its fields are options
    app = App(
        name=f"python -m {name}",
        usage=f"Usage: python -m {name} [OPTIONS] {several}..." if several else None,
        version_flags=(),
        console=HelpConsole(),
        help_format="plaintext",
        help_epilogue=_format_epilogue(command),
        default_parameter=Parameter(
            negative=(),
            show_default=lambda value: None if value in (None, False) else str(value),
            short_alias=lambda field, _: {"quiet": "-q", "verbose": "-v"}.get(field.name),
        ),
        config=[settings] if name == "fuzz.run" else [],
        result_action="return_value",
    )
    command.__doc__ = _join_lines(inspect.getdoc(command) or "")
    app.default(command)
    app["--help"].group = app.group_parameters
    # No option is called by a digit: -5x is the value of the option before it. No argument holds \0.
    joined = re.sub(r"(?:^|(?<=\0))(--[^\0=]+)\0(?=-\d)", r"\1=", "\0".join(arguments))
    joined = re.sub(r"(?:^|(?<=\0))--json(?=\0--|$)", "--json=-", joined)  # without a file: standard output
    words = joined.split("\0") if arguments else []
    try:
        function, bound, _ = app.parse_args(words, exit_on_error=False, print_error=False)
    except CycloptsError as error:
        text = _one_line(error).replace("TOMLDecodeError", "pyproject.toml is not readable as TOML")
        raise UserError(f"{text} (python -m {name} --help lists the options)") from error
    return lambda: function(*bound.args, **bound.kwargs)


def _join_lines(docstring: str) -> str:
    """A docstring whose descriptions of parameters are a line each: cyclopts keeps their line breaks."""
    return re.sub(r"(?m)^ {4}\S.*(?:\n {4}\S.*)+", lambda found: re.sub(r"\n {4}", " ", found[0]), docstring)


def _format_epilogue(command: Callable[..., int | None]) -> str:
    """The examples and exit codes in a command's docstring."""
    section = (inspect.getdoc(command) or "").partition("\nExamples\n--------\n")[2]
    examples = [f"  {line}" for line in re.findall(r"^python -m .+", section, re.MULTILINE)]
    section = re.sub(r"\n +", " ", section)
    codes = CODES | {int(code): text for code, text in re.findall(r"^(\d+): (.+)", section, re.MULTILINE)}
    columns = shutil.get_terminal_size().columns
    meanings = [
        textwrap.fill(codes[code], columns, initial_indent=f"{code:>5}  ", subsequent_indent=" " * 7)
        for code in sorted(codes)
    ]
    return "\n".join([*(["Examples:", *examples, ""] if examples else []), "Exit codes:", *meanings])


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split()) or type(error).__name__
