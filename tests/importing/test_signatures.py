"""Calls of torch's functions are read by their signatures, whichever way arguments are given."""

from typing import Any

import pytest

from fuzz.importing.signatures import SIGNATURES
from fuzz.importing.translate import translate
from fuzz.protocol.recording import Recorded, RecordedCall, RecordedTensor
from generators.program.ops import OPS

X, Y = {"tensor": 0}, {"tensor": 1}
GIVEN = tuple(RecordedTensor((2, 3), "float32", kind="normal", name=name, origin="argument") for name in "xy")


def read(function: str, args: list[Any], kwargs: dict[str, Any], *shapes: tuple[int, ...]) -> Any:
    """The operations of a call, each with its arguments and attributes; or why there are none."""
    dtypes = ["int64" if index else "float32" for index in range(len(shapes))]
    made = tuple(RecordedTensor(shape, dtype) for shape, dtype in zip(shapes, dtypes, strict=True))
    results = tuple(range(2, 2 + len(made)))
    call = RecordedCall(f"torch.{function}", args, kwargs, results, "")
    program = translate(Recorded((call,), (*GIVEN, *made), results, training=False), {}).program
    return [(op.kind, op.args, dict(op.attrs)) for op in program.ops] or list(program.missing)


@pytest.mark.parametrize(
    ("function", "args", "kwargs", "shape", "op"),
    [
        ("var", [X, False], {}, (), ("var", ("x",), {"axes": (), "unbiased": False})),
        ("var", [X, 1, False], {}, (2,), ("var", ("x",), {"dim": 1, "unbiased": False})),
        (
            "std",
            [X],
            {"dim": 0, "unbiased": True, "keepdim": True},
            (1, 3),
            ("std", ("x",), {"dim": 0, "keepdim": True}),
        ),
        ("std", [X], {"dim": [1], "correction": 0}, (2,), ("std", ("x",), {"axes": (1,), "unbiased": False})),
        ("sum", [X], {}, (), ("sum", ("x",), {"axes": ()})),
        ("max", [X, Y], {}, (2, 3), ("maximum", ("x", "y"), {})),
        ("max", [X], {"other": Y}, (2, 3), ("maximum", ("x", "y"), {})),
        ("max", [X], {}, (), ("max", ("x",), {"axes": ()})),
        ("clamp", [X], {"max": Y}, (2, 3), ("clamp", ("x", "y"), {"bound": "max"})),
        ("clamp", [X, 0.5], {}, (2, 3), ("clamp", ("x",), {"min": 0.5})),
        ("norm", [X, "fro", 1], {}, (2,), ("norm", ("x",), {"dim": 1})),
        (
            "linalg.vector_norm",
            [X],
            {"ord": 1, "dim": 1},
            (2,),
            ("norm", ("x",), {"dim": 1, "form": "linalg", "order": 1}),
        ),
        ("nn.functional.relu", [X], {"inplace": True}, (2, 3), ("relu_", ("x",), {})),
        ("nn.functional.normalize", [X], {}, (2, 3), ("normalize", ("x",), {"dim": 1})),
        ("nn.functional.dropout", [X], {"p": 0.5}, (2, 3), ("dropout", ("x",), {"active": "always", "p": 0.5})),
        ("nn.functional.grid_sample", [X, Y], {"n": 2}, (2, 3), None),
        ("diff", [X, 2], {}, (2, 1), None),
    ],
)
def test_a_call_is_read(
    function: str, args: list[Any], kwargs: dict[str, Any], shape: tuple[int, ...], op: Any
) -> None:
    made = read(function, args, kwargs, shape)
    assert made == [op] if op else [isinstance(why, str) for why in made] == [True]


def test_a_function_of_two_results_is_two_operations() -> None:
    assert read("max", [X, 1], {}, (2,), (2,)) == [("max", ("x",), {"dim": 1}), ("argmax", ("x",), {"dim": 1})]
    assert read("sort", [X], {}, (2, 3), (2, 3)) == [("sort", ("x",), {}), ("sort", ("x",), {"part": "indices"})]


def test_every_signature_is_of_known_operations_and_attributes() -> None:
    for function, signatures in SIGNATURES.items():
        for signature in signatures:
            for kind, attrs in signature.results:
                assert attrs.keys() <= OPS[kind].attributes.keys(), function
