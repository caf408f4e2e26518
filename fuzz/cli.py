"""What all command lines share: options, a campaign's settings from pyproject.toml, errors of one line, exit codes.

A command's docstring ends in examples and exit codes ("1: regressions") that `--help` prints below the options.
"""

import errno
import inspect
import os
import re
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
    from fuzz.worker_config import WorkerConfig

USAGE, FAULT, INTERRUPTED = 2, 3, 130
CODES = {
    0: "done",
    USAGE: "wrong option or file: one line says what",
    FAULT: "a bug in attnfuzz, with its traceback",
    INTERRUPTED: "interrupted by Ctrl-C, SIGTERM or SIGHUP",
}
"""What exit codes mean, unless a command's docstring says something else."""

_SPECIAL = re.compile(r"[^\n\t -~]")

#: Packages that the parent process needs; an interpreter without them can still run workers.
NEEDED = frozenset({"cyclopts", "jinja2", "packaging", "rich", "yaml"})


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options that all commands have which judge cases of a user.

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
        """How to start a worker; `device`: where none is given. Raises `UserError`."""
        from fuzz.worker_config import WorkerConfig

        return WorkerConfig.from_options(python, self.device or device, subjects or (), self.timeout, self.memory)


DEFAULT_WORKER = WorkerOptions()


def enter(command: Callable[..., int | None], name: str) -> NoReturn:
    """Run `command` with the options of `sys.argv` and exit; `name` is what the user typed, `fuzz.run` say."""
    _set_handlers(signal.default_int_handler)
    code = call(command, name, sys.argv[1:])
    _set_handlers(signal.SIG_IGN)  # The exit code is all that is left to tell.
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
    """While entered `handler` gets SIGINT, SIGTERM and, unless it is ignored (nohup), SIGHUP."""
    before = _set_handlers(handler)
    try:
        yield
    finally:
        for number, previous in before.items():
            signal.signal(number, previous)


@contextmanager
def ignore_lost_output() -> Iterator[None]:
    """Within it nothing is raised for output that fails. One whose reader or terminal has gone gets nothing more."""
    try:
        yield
    except OSError as failure:
        if failure.errno == errno.ENOSPC:
            return  # It is written when there is space again.
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except OSError:
                os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def call(command: Callable[..., int | None], name: str, arguments: Sequence[str]) -> int:
    """Run `command` with these arguments and give its exit code; errors are reported on stderr."""
    out, errors = (cast("TextIO", _Screened(stream)) for stream in (sys.stdout, sys.stderr))
    with redirect_stdout(out), redirect_stderr(errors):
        return _call(command, name, arguments)


def escape_controls(text: str) -> str:
    """The text for a person, whoever wrote it: without what controls a terminal, hides or reorders what is read."""
    return _SPECIAL.sub(lambda found: found[0] if found[0].isprintable() else ascii(found[0])[1:-1], text)


class _Screened:
    """A stream on which all text is escaped but that of Rich, which writes to `rich_proxied_file`."""

    def __init__(self, stream: TextIO) -> None:
        self.rich_proxied_file = stream

    def __getattr__(self, name: str) -> Any:
        return getattr(self.rich_proxied_file, name)

    def write(self, text: str) -> int:
        """Write the text, escaped."""
        return self.rich_proxied_file.write(escape_controls(text))


def _call(command: Callable[..., int | None], name: str, arguments: Sequence[str]) -> int:
    try:
        return bind(command, name, arguments)() or 0
    except UserError as error:
        lines = error.args if isinstance(error, UserErrors) else (error,)
        return _fail("\n".join(f"error: {_one_line(line)}" for line in lines), USAGE)
    except ModuleNotFoundError as error:
        if error.name not in NEEDED:
            return _fault()
        missing = f"error: {sys.executable} has no {error.name}"
        return _fail(f"{missing}: use .venv/bin/python, which `make venv` creates", USAGE)
    except KeyboardInterrupt:
        return _fail("interrupted", INTERRUPTED)
    except BrokenPipeError:
        return 0  # The reader of our output has gone (`| head`).
    except Exception:
        return _fault()


def _fault() -> int:
    about = "error: this is a bug in attnfuzz; please report it with the traceback above"
    return _fail(f"{traceback.format_exc()}{about}", FAULT)


def _fail(text: str, code: int) -> int:
    with ignore_lost_output():
        print(text, file=sys.stderr, flush=True)
    return code


def bind(command: Callable[..., int | None], name: str, arguments: Sequence[str]) -> Callable[[], int | None]:
    """The command bound to its arguments. Raises `UserError`; exits with 0 after `--help`."""
    from cyclopts import App, CycloptsError, Parameter
    from cyclopts.config import Toml

    settings = Toml("pyproject.toml", root_keys=("tool", "attnfuzz"), search_parents=True, use_commands_as_keys=False)
    parameters = inspect.signature(command).parameters.values()
    several = "".join(one.name.upper() for one in parameters if one.kind is inspect.Parameter.VAR_POSITIONAL)
    Parameter(name="*")(WorkerOptions)  # its fields are options
    app = App(
        name=f"python -m {name}",
        usage=f"Usage: python -m {name} [OPTIONS] {several}..." if several else None,
        version_flags=(),
        default_parameter=Parameter(
            negative=(),
            show_default=lambda value: None if value in (None, False) else str(value),
            short_alias=lambda field, _: {"quiet": "-q", "verbose": "-v"}.get(field.name),
        ),
        config=[settings] if name == "fuzz.run" else [],
        result_action="return_value",
    )
    app.default(command)
    app["--help"].group = app.group_parameters
    try:
        function, bound, _ = app.parse_args(list(arguments), exit_on_error=False, print_error=False)
    except CycloptsError as error:
        text = _one_line(error).replace("TOMLDecodeError", "pyproject.toml is not readable as TOML")
        raise UserError(f"{text} (python -m {name} --help lists the options)") from error
    if function is not command:  # that prints the options
        return lambda: print(function(*bound.args, **bound.kwargs) or _format_epilogue(command))
    return lambda: function(*bound.args, **bound.kwargs)


def _format_epilogue(command: Callable[..., int | None]) -> str:
    """The examples and the exit codes in the docstring of a command, in lines of 80 columns."""
    section = (inspect.getdoc(command) or "").partition("\nExamples\n--------\n")[2]
    examples = "\n".join(re.findall(r"^python -m .+", section, re.MULTILINE))
    codes = CODES | {int(code): text for code, text in re.findall(r"^(\d+): (.+)", section, re.MULTILINE)}
    lines = [
        textwrap.fill(f"{code:>5}  {' '.join(codes[code].split())}", 79, subsequent_indent=" " * 7)
        for code in sorted(codes)
    ]
    return "\n".join(["", "Examples:", textwrap.indent(examples, "  "), "", "Exit codes:", *lines])


def _one_line(error: BaseException | str) -> str:
    return " ".join(str(error).split()) or type(error).__name__
