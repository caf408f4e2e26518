"""What an exception from torch means for a verdict."""

import re
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from fuzz.protocol import Verdict
from fuzz.protocol.failures import Raised
from fuzz.protocol.render import describe_failure

_LONGEST = 280
"""Characters of an exception's text that are kept."""
_MEMORY = re.compile(
    r"can't allocate memory|not enough memory|out of memory|bad_alloc|Cannot allocate memory", re.IGNORECASE
)
_COMPILERS = ("torch/_dynamo/convert_frame.py", "torch/_inductor/compile_fx.py", "torch/_dynamo/output_graph.py")
_NOISE = re.compile(r"^(Set TORCH|You can suppress|The above exception|Hint:|from user code|$)")


def verdict(error: BaseException) -> Verdict:
    """compile_error when the error came out of a compiler, out_of_memory for allocations, else runtime_error."""
    if is_out_of_memory(error):
        return Verdict.OUT_OF_MEMORY
    return Verdict.COMPILE_ERROR if _from_compiler(error) else Verdict.RUNTIME_ERROR


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed."""
    return any(isinstance(link, MemoryError) or _MEMORY.search(str(link)) for link in _chain(error))


class SubjectError(Exception):
    """A subject that doesn't exist, can't be imported, or needs what this torch lacks; the text is one line."""


class Unsupported(Exception):
    """An attention function does not take this case; the text says why, in one line."""


class Failed(Exception):
    """An attention function raised `error` when it was called again, or differentiated, with arguments of ours."""

    def __init__(self, error: Exception) -> None:
        super().__init__(f"{type(error).__name__}: {error}")
        self.error = error


@contextmanager
def accuse_function() -> Iterator[None]:
    """Within it, whatever an attention function raises but refusals and out of memory is raised as `Failed`."""
    try:
        yield
    except (Unsupported, NotImplementedError):
        raise
    except Exception as error:
        if is_out_of_memory(error):
            raise
        raise Failed(error) from error


class SuppressOutOfMemory(AbstractContextManager["SuppressOutOfMemory"]):
    """Within it, an allocation that fails ends the block, and nothing else; `error` is the exception then.

    What there is no memory left to judge accuses nobody.
    """

    error: BaseException | None = None

    @property
    def line(self) -> str:
        """What was raised, in one line; "" where nothing was."""
        return "" if self.error is None else line(self.error)

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> bool:
        if isinstance(error, Exception) and is_out_of_memory(error):
            self.error = error
        return self.error is not None


def as_failure(error: BaseException) -> Raised:
    """The innermost cause, with the first line of its text that says something."""
    chain = _chain(error)
    # What the C++ compiler said is in the exception around the one that says how it was called.
    cause = next((link for link in chain if type(link).__name__ == "CppCompileError"), chain[-1])
    lines = [text.strip() for text in str(cause).splitlines()]
    said = [text.partition("error: ")[2] for text in lines if " error: " in text]
    first = next((text for text in said or lines if not _NOISE.match(text)), "")
    return Raised(type(cause).__name__, first[:_LONGEST])


def line(error: BaseException) -> str:
    """The innermost cause in one line."""
    return describe_failure(as_failure(error))


def _chain(error: BaseException) -> list[BaseException]:
    """`error` and what caused it, outermost first; torch's wrappers keep theirs in `inner_exception`."""
    links = [error]
    while True:
        last = links[-1]
        cause = getattr(last, "inner_exception", None) or last.__cause__
        if not isinstance(cause, BaseException) or cause in links:
            return links
        links.append(cause)


def _from_compiler(error: BaseException) -> bool:
    for link in _chain(error):
        if type(link).__module__.startswith(("torch._dynamo.exc", "torch._inductor.exc")):
            return True
        if any(frame.f_code.co_filename.endswith(_COMPILERS) for frame, _ in traceback.walk_tb(link.__traceback__)):
            return True
    return False
