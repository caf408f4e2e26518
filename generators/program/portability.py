"""Why a case is not for compilers of inference programs, such as exporters: the table of obstacles."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace

from generators.program.case import Case, LaterCall
from generators.program.emit import is_random, list_unplain
from generators.program.regions import list_autocasts
from generators.program.writes import list_targets


@dataclass(frozen=True, slots=True)
class Obstacle:
    """A property of cases that a compiler of inference programs does not promise to take."""

    words: str
    is_met: Callable[[Case], bool]
    ability: str = ""
    """The ability that a compiler declares to take such cases all the same; "" if none helps."""


TAKEN_REGIONS = frozenset({"cond", "vmap", "compile_region", "checkpoint"})
"""The kinds of regions that torch.export flattens, or that compilers have an operator for. Measured with torch 2.13.0,
ONNX Runtime 1.32.0 and OpenVINO 2026.4.1: torch.export refuses `grad_of_grad`, run_decompositions other derivatives;
no compiler takes a `custom_op` it does not know; OpenVINO takes no `map`, `scan` and `while_loop`."""


def _varies_otherwise(case: Case) -> bool:
    return any(replace(call, sizes=(), values="equal") != LaterCall() for call in case.calls)


OBSTACLES: Mapping[str, Obstacle] = {
    "training": Obstacle("it trains", lambda case: case.may_train, "training"),
    "random": Obstacle("its dropout is active", is_random, "random"),
    "writes": Obstacle(
        "it writes into an argument or a buffer", lambda case: {*list_targets(case)} - {"result"} != set(), "state"
    ),
    "strides": Obstacle(
        "it reads memory by strides", lambda case: any(op.kind == "as_strided" for op in case.ops), "strides"
    ),
    "regions": Obstacle(
        "it calls functions that torch.export or the compilers do not take",
        lambda case: not TAKEN_REGIONS.issuperset(list_unplain(case)),
    ),
    "flex": Obstacle("it calls flex_attention", lambda case: any(op.kind == "flex_attention" for op in case.ops)),
    # Of ONNX Runtime's kernels for the CPU, most lack the dtypes that autocast casts to.
    "autocast": Obstacle("it runs under autocast", lambda case: any(list_autocasts(case).values())),
    "changes": Obstacle("the module changes before a call", lambda case: bool(case.setup), "state"),
    "calls": Obstacle("a later call differs in more than sizes and values", _varies_otherwise),
    "numbers": Obstacle("it takes numbers beside tensors", lambda case: bool(case.numbers)),
    "sizes": Obstacle("its sizes are dynamic, or a later call has other sizes", lambda case: case.varies, "dynamic"),
    "state": Obstacle("later calls have equal sizes", lambda case: any(not call.sizes for call in case.calls), "state"),
    "earlier": Obstacle("other cases must run first", lambda case: bool(case.before)),
}
"""By name. The first that a case meets is told."""


def find_obstacle(case: Case, abilities: Collection[str] = ()) -> str:
    """The name of the first obstacle that keeps a case from a compiler with these abilities; "" without any."""
    return next((name for name, row in OBSTACLES.items() if row.ability not in abilities and row.is_met(case)), "")
