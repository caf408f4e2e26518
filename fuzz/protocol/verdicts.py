"""The table of verdicts."""

from generators.records import Word


class Group(Word):
    """The kinds of verdicts, by the fault that they tell of."""

    CLEARS = "clears", "the subject is right"
    NOBODY = "nobody", "nothing is known about the subject"
    NUMBERS = "numbers", "numbers are wrong, unless an excuse explains them"
    SILENT = "silent", "something else is wrong, without an error"
    OTHERS = "others", "the subject shows a fault of eager, or a change of what the process shares"
    RAISED = "raised", "an exception was raised"
    LOST = "lost", "the process died, was killed, or can't be used any more"


class Verdict(Word):
    """Verdicts of a subject on a case, which is the gravest verdict on its values. A later row is graver."""

    group: Group
    verb: str  # what the program does, in a report
    words: str  # its name in a report

    def __new__(  # noqa: PYI034 - workers run on 3.10
        cls, value: str, group: Group = Group.NOBODY, label: str = "", verb: str = "", words: str = ""
    ) -> "Verdict":
        """A row of the table."""
        verdict = str.__new__(cls, value)
        verdict._value_, verdict.group, verdict.label = value, group, label
        verdict.verb, verdict.words = verb, words or value.replace("_", " ")
        return verdict

    OK = "ok", Group.CLEARS, "equal to eager, or as close to the exact result as eager is"
    ROUNDING = "rounding", Group.CLEARS, "differs from eager by no more than rounding explains"
    RANDOM_STREAM = (
        "random_stream",
        Group.CLEARS,
        "active dropout drew other random numbers; values are not comparable",
    )
    PRECISION_POLICY = (
        "precision_policy",
        Group.CLEARS,
        "off by rounding that is by design: casts that Inductor drops, a precision that a compiler declares",
    )
    CONVENTION = (
        "convention",
        Group.NOBODY,
        "differs only where eager or the exact result is not finite, or in an order that torch leaves open",
    )
    ILL_CONDITIONED = (
        "ill_conditioned",
        Group.NOBODY,
        "differs, but noise of one ulp moves eager by over 5 % of the row, or to another choice",
    )
    WRONG_GRADIENT = (
        "wrong_gradient",
        Group.NUMBERS,
        "a gradient is further from the exact gradient than rounding explains",
        "computes a wrong gradient",
    )
    WRONG_RESULT = (
        "wrong_result",
        Group.NUMBERS,
        "an output is further from the exact result than rounding explains",
        "returns a wrong result",
    )
    NONFINITE = (
        "nonfinite",
        Group.NUMBERS,
        "NaN or infinity where eager and the exact result are finite",
        "returns NaN or infinity where eager and float64 are finite",
        "NaN or infinity",
    )
    METADATA = (
        "metadata",
        Group.SILENT,
        "another dtype, shape, order of strides, device or structure than eager's",
        "returns a tensor in another form than eager's",
        "another form",
    )
    NONDETERMINISTIC = (
        "nondeterministic",
        Group.SILENT,
        "two runs on equal inputs differ",
        "returns other results for equal inputs",
    )
    COMPILE_ERROR = "compile_error", Group.RAISED, "compiling raised; eager runs", "fails to compile"
    RUNTIME_ERROR = "runtime_error", Group.RAISED, "running raised; eager runs", "raises"
    OUT_OF_BOUNDS = (
        "out_of_bounds",
        Group.SILENT,
        "wrote to memory that is not its own: beyond its buffers, or into its inputs",
        "writes to memory that is not its own",
    )
    EAGER_SUSPECT = (
        "eager_suspect",
        Group.OTHERS,
        "eager is wrong: an operation, by itself, is far from the same in float64",
        "computes a wrong result",
        "wrong in eager",
    )
    STATE_CHANGED = (
        "state_changed",
        Group.OTHERS,
        "changed what the whole process shares, such as torch's default dtype",
        "changes the state of the process",
    )
    DEVICE_ERROR = (
        "device_error",
        Group.LOST,
        "a kernel broke the GPU: an access outside of memory, an assertion, a failed launch",
        "breaks the GPU",
    )
    TIMEOUT = "timeout", Group.LOST, "did not finish within the time limit", "does not finish"
    WORKER_DIED = "worker_died", Group.LOST, "the process died", "ends the process"
    OUT_OF_MEMORY = (
        "out_of_memory",
        Group.LOST,
        "asked for more memory than the limit; eager does not",
        "asks for more memory than eager",
    )
    REJECTED = "rejected", Group.NOBODY, "eager refuses the case"
    SKIPPED = "skipped", Group.NOBODY, "the subject does not take this case"

    @property
    def severity(self) -> int:
        """Its place among verdicts on values."""
        return list(type(self)).index(self)

    @property
    def clears(self) -> bool:
        """Whether it clears the subject. Findings accuse it; other verdicts do neither."""
        return self.group is Group.CLEARS

    @property
    def is_finding(self) -> bool:
        """Whether it accuses somebody."""
        return self.group not in (Group.CLEARS, Group.NOBODY)

    @property
    def has_wrong_numbers(self) -> bool:
        """Whether numbers are wrong. An excuse may explain them."""
        return self.group is Group.NUMBERS

    @property
    def is_silent(self) -> bool:
        """Whether the failure comes without an error message."""
        return self.group in (Group.NUMBERS, Group.SILENT)

    @property
    def is_lost(self) -> bool:
        """Whether the process of the subject is lost."""
        return self.group is Group.LOST

    @property
    def is_logged(self) -> bool:
        """Whether the failure shows in a log, and not in numbers."""
        return self.group in (Group.RAISED, Group.LOST)
