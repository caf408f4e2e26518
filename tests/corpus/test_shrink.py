"""How many probes a shrink takes, on predicates whose minimum is known."""

from corpus.passes.program import bypass
from corpus.shrink import shrink
from generators.program.case import Case, Input
from generators.program.sizes import Size
from generators.program.type_check import make_op

PAIRS = 10


def chain() -> Case:
    """relu, neg, relu, neg... of one input."""
    names = ["x", *(f"v{i}" for i in range(2 * PAIRS))]
    ops = [make_op(name, ("relu", "neg")[i % 2], [names[i]], {}) for i, name in enumerate(names[1:])]
    return Case((("S", 3),), (Input("x", (Size.of("S"),), "float32"),), tuple(ops), (names[-1],))


def test_a_pass_goes_on_behind_the_candidate_that_it_accepted() -> None:
    probes = 0

    def keeps_every_relu(case: Case) -> bool:
        nonlocal probes
        probes += 1
        return sum(op.kind == "relu" for op in case.ops) == PAIRS

    smallest = shrink(chain(), keeps_every_relu, passes=[bypass])[-1]
    assert [op.kind for op in smallest.ops] == ["relu"] * PAIRS
    # Each operation once, and the ones that stay once more in the smallest case. Starting over takes 65.
    assert probes <= 3 * PAIRS
