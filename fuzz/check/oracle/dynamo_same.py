"""What PyTorch's own accuracy check says. The one place that calls it."""

from torch import Tensor

from fuzz.check.program import Execution


def same(eager: Execution, compiled: Execution, exact: Execution) -> bool:
    """`torch._dynamo.utils.same` with its default tolerance over outputs and gradients. It is not asked about elements
    that are NaN in eager and in float64: with one of them in a tensor its errors are NaN, and it accepts whatever else
    is wrong there."""
    from torch._dynamo.utils import same as dynamo_same

    names = [name for name in eager.values if name in compiled.values and name in exact.values]
    if len(names) != len(eager.values):
        return False

    unknown = {name: eager.values[name].isnan() & exact.values[name].isnan() for name in names}

    def list_values(run: Execution) -> list[Tensor]:
        return [
            run.values[name].masked_fill(unknown[name], 0) if unknown[name].any() else run.values[name]
            for name in names
        ]

    theirs, mine, truth = map(list_values, (eager, compiled, exact))
    try:
        return bool(dynamo_same(theirs, mine, fp64_ref=truth, equal_nan=True, log_error=lambda *_: None))
    except (RuntimeError, AssertionError):  # shapes that don't broadcast
        return False
