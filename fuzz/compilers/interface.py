"""What a compiler of PyTorch modules is to attnfuzz. To add one, add a file with a `Compiler` and name it in table.py.

The parent reads the rows too, so nothing here or in those files imports torch or a runtime before it is called.
"""

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields
from functools import cached_property
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal, NamedTuple

from generators.records import decode

Mode = Literal["inference", "training"]
CompiledCall = Callable[..., Any]
"""Takes the tensors of a call, by their places. Returns the outputs, alone, in a sequence or in eager's structure."""


@dataclass(frozen=True)
class CompilerCapabilities:
    """What a compiler promises, and how it refuses; by default what an exporter promises. docs/compilers.md explains
    the keys."""

    modes: tuple[Mode, ...] = ("inference",)
    dtypes: tuple[str, ...] | None = None  # of inputs and parameters; None: all
    dynamic: bool = False  # later calls may have other sizes
    state: bool = False  # callers see writes, shared memory, and changes of the module between calls
    random: bool = False  # active dropout
    strides: bool = False  # outputs lie in memory as eager's
    precisions: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # by dtype, dtypes in which it may compute
    refuses: tuple[str, ...] = ()  # exceptions that mean a refusal, besides NotImplementedError
    refusals: tuple[str, ...] = ()  # regular expressions: texts of exceptions that mean it; a group names the operator

    @classmethod
    def read(cls, declared: object) -> "CompilerCapabilities":
        """The capabilities that a function declares. Raises `ValueError` for unknown keys and values."""
        names = [one.name for one in fields(cls)]
        for key in declared if isinstance(declared, Mapping) else ():
            if key not in names:
                raise ValueError(f"unknown capability {key!r}: there are {', '.join(names)}")
        capabilities = decode(cls, declared)
        for pattern in capabilities.refusals:
            try:
                re.compile(pattern)
            except re.error as error:
                raise ValueError(f"refusals: {pattern!r} is no regular expression: {error}") from error
        return capabilities

    @property
    def abilities(self) -> frozenset[str]:
        """The abilities by which it takes cases that others don't (generators/program/portability.py)."""
        flags = {name for name in ("dynamic", "state", "random", "strides") if getattr(self, name)}
        return frozenset({*self.modes} | flags)

    def find_refused(self, text: str) -> str | None:
        """The operator that a text of an exception refuses; "" if it names none, None if it is no refusal."""
        found = next(filter(None, (re.search(pattern, text, re.DOTALL) for pattern in self.refusals)), None)
        return None if found is None else next(filter(None, found.groups()), "")


@dataclass(frozen=True)
class Package:
    """A package that a compiler needs, in the versions that its file knows."""

    name: str
    oldest: tuple[int, ...] = ()
    below: tuple[int, ...] = ()

    @cached_property
    def installed(self) -> str:
        """Its version; "" if it is not installed."""
        try:
            return version(self.name)
        except PackageNotFoundError:
            return ""

    def find_problem(self) -> str:
        """Why it can't be used; "" if it can."""
        if not self.installed:
            return f"{self.name} is not installed"
        numbers = tuple(int(digits) for digits in re.findall(r"\d+", self.installed)[:3])
        oldest, below = (".".join(map(str, bound)) for bound in (self.oldest, self.below))
        if numbers < self.oldest or (self.below and numbers >= self.below):
            return f"{self.name} is {self.installed}; from {oldest} to below {below} is known"
        return ""


@dataclass(frozen=True)
class Variation:
    """A plainer way to compile, which is a row of fuzz/experiments.py. A failure that passes under it has its fault in
    what the variation leaves out: `who`, `stage` and `part` are ids of corpus/causes.py."""

    id: str
    words: str
    """For "It passes with ..."."""
    keywords: Mapping[str, Any]
    """Of `compile`. A text "{}" stands for names of `arguments`, by commas."""
    who: str
    stage: str
    part: str = ""
    arguments: tuple[str, ...] = ()
    """The names of steps that can be left out, in their order. The step at fault is found by bisection."""


class WrongNode(NamedTuple):
    """The first node of a compiled program whose value is wrong. Empty if all values are right."""

    operators: tuple[str, ...] = ()
    """The operators of the compiler's own model that it computes, such as MatMul; sorted."""
    operations: tuple[str, ...] = ()
    """The operations of torch that they come from, such as aten.bmm.default; sorted."""


@dataclass(frozen=True)
class Compiler:
    """A compiler of PyTorch modules.

    `compile` takes the exported program, or the module, then the inputs of the first call and `keywords`.
    """

    name: str
    project: str
    """Where its bugs are reported."""
    words: str
    """A description, for people."""
    compile: Callable[..., CompiledCall]
    takes: Literal["program", "module"] = "program"
    packages: tuple[Package, ...] = ()
    capabilities: CompilerCapabilities = CompilerCapabilities()
    keywords: Mapping[str, Any] = field(default_factory=dict)
    extra: str = ""
    """The extra of pyproject.toml that installs its packages."""
    converters: Mapping[str, str] = field(default_factory=dict)
    """The projects that turn operations of the exported program into those of a model, by kind of operation; "" for all
    other kinds. Empty: `project`."""
    variations: tuple[Variation, ...] = ()
    """In the order in which they are tried: the first under which a failure passes has the fault."""
    find_node: Callable[..., WrongNode] | None = None
    """Called as `compile`. Each node is compared with a plain evaluation of the model, if there is one."""

    @property
    def is_foreign(self) -> bool:
        """Whether it is no part of torch."""
        return bool(self.packages)

    @property
    def versions(self) -> dict[str, str]:
        """The versions of its packages."""
        return {package.name: package.installed for package in self.packages}

    def find_problem(self) -> str:
        """Why it can't be used in this interpreter, with the command that helps; "" if it can."""
        problem = next(filter(None, (package.find_problem() for package in self.packages)), "")
        return problem and f"{problem}: run {sys.executable} -m pip install '.[{self.extra}]' in the checkout"
