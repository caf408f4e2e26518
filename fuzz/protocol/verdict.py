"""The closed list of verdicts."""

from enum import Enum


class Verdict(str, Enum):
    """What one subject made of one case. `is_finding` tells the ones that accuse the subject, or eager."""

    OK = "ok"
    ROUNDING = "rounding"
    ILL_CONDITIONED = "ill_conditioned"
    CONVENTION = "convention"
    RANDOM_STREAM = "random_stream"
    PRECISION_POLICY = "precision_policy"
    WRONG_RESULT = "wrong_result"
    WRONG_GRADIENT = "wrong_gradient"
    NONFINITE = "nonfinite"
    METADATA = "metadata"
    NONDETERMINISTIC = "nondeterministic"
    OUT_OF_BOUNDS = "out_of_bounds"
    EAGER_SUSPECT = "eager_suspect"
    COMPILE_ERROR = "compile_error"
    RUNTIME_ERROR = "runtime_error"
    TIMEOUT = "timeout"
    WORKER_DIED = "worker_died"
    OUT_OF_MEMORY = "out_of_memory"
    REJECTED = "rejected"
    SKIPPED = "skipped"

    def __str__(self) -> str:
        return self.value

    @property
    def is_finding(self) -> bool:
        """Whether this verdict accuses somebody of a bug: the subject, or eager."""
        return self in FINDINGS

    @property
    def explanation(self) -> str:
        """One line for a person who meets the verdict for the first time."""
        return _EXPLANATIONS[self]


FINDINGS = frozenset(
    {
        Verdict.WRONG_RESULT,
        Verdict.WRONG_GRADIENT,
        Verdict.NONFINITE,
        Verdict.METADATA,
        Verdict.NONDETERMINISTIC,
        Verdict.OUT_OF_BOUNDS,
        Verdict.EAGER_SUSPECT,
        Verdict.COMPILE_ERROR,
        Verdict.RUNTIME_ERROR,
        Verdict.TIMEOUT,
        Verdict.WORKER_DIED,
        Verdict.OUT_OF_MEMORY,
    }
)

_EXPLANATIONS = {
    Verdict.OK: "equal to eager, or as close to the exact result as eager is",
    Verdict.ROUNDING: "differs from eager by no more than rounding explains",
    Verdict.ILL_CONDITIONED: "differs, but a one-ulp change moves eager just as far",
    Verdict.CONVENTION: "differs only where eager or the exact result is not finite",
    Verdict.RANDOM_STREAM: "active dropout drew other random numbers; values are not comparable",
    Verdict.PRECISION_POLICY: "off by rounding that is by design: casts that Inductor drops, or allowed TF32",
    Verdict.WRONG_RESULT: "an output is further from the exact result than rounding explains",
    Verdict.WRONG_GRADIENT: "a gradient is further from the exact one than rounding explains",
    Verdict.NONFINITE: "NaN or infinity where eager and the exact result are finite",
    Verdict.METADATA: "another dtype, shape, device or structure than eager's",
    Verdict.NONDETERMINISTIC: "two runs on equal inputs differ",
    Verdict.OUT_OF_BOUNDS: "wrote to memory that is not its own: beyond its buffers, or into its inputs",
    Verdict.EAGER_SUSPECT: "eager is wrong: one of its operations, by itself, is far from the same in float64",
    Verdict.COMPILE_ERROR: "compiling raised; eager runs",
    Verdict.RUNTIME_ERROR: "the compiled program raised; eager runs",
    Verdict.TIMEOUT: "did not finish within the time limit",
    Verdict.WORKER_DIED: "the process died",
    Verdict.OUT_OF_MEMORY: "asked for more memory than the limit; eager does not",
    Verdict.REJECTED: "eager refuses the case",
    Verdict.SKIPPED: "the subject does not take this case",
}
