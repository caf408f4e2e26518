"""Programs drawn with given parts: operations of the whole table, regions and changes."""

import pytest

from generators.program.indices import find_undefined_writes
from generators.program.type_check import check, types_of
from generators.sampling.operations import DRAWN
from generators.sampling.parts import WithParts, list_parts
from tests.generators.test_sample import run_eager

pytestmark = pytest.mark.samples

UNIMPLEMENTED = ("avg_pool3d", "interpolate")
"""Operations that the CPU does not have in every dtype."""


@pytest.mark.parametrize("part", ["scan", "jvp", "forward_hook", "index_put_", "conv2d", "topk", "flex_attention"])
def test_every_program_has_the_part(part: str) -> None:
    assert all(part in list_parts(WithParts([part]).sample(3, index)) for index in range(5))


def test_every_program_has_a_part_of_the_group() -> None:
    assert all(list_parts(WithParts(["regions"]).sample(3, index)) - set(DRAWN) for index in range(10))


def test_eager_takes_every_operation_and_gives_the_types_that_the_program_says() -> None:
    drawn = set[str]()
    for index, kind in enumerate(DRAWN):
        case = WithParts([kind]).sample(31, index)
        types, drawn = check(case), drawn | list_parts(case)
        try:
            found = run_eager(case)
        except NotImplementedError:
            assert kind in UNIMPLEMENTED
            continue
        for name, tensor in zip(case.returns, found, strict=True):
            stated = types[name].sizes(case.sizes), f"torch.{types[name].dtype}"
            assert (tuple(tensor.shape), str(tensor.dtype)) == stated, kind
    assert drawn >= set(DRAWN)


@pytest.mark.parametrize("kind", ["scatter", "scatter_", "index_copy_", "index_put_"])
def test_torch_defines_what_drawn_programs_write(kind: str) -> None:
    tensors = 0
    for index in range(12):
        case = WithParts([kind]).sample(7, index)
        assert not find_undefined_writes(case, types_of(case))
        tensors += any(op.kind == kind and len(op.args) > 2 for op in case.ops)
    assert tensors > 3
