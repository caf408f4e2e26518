"""Case files with mistakes are refused in one line, which names the place."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from corpus.casefile import dumps, loads
from generators.errors import CaseError
from generators.program.type_check import MAX_LINES
from tests.corpus.test_casefile import PLAIN

BAD = [
    ("case_format: 1", "case_format: 2", "f:1: case_format: this version reads format 1, got 2"),
    ("case_format: 1", "case_format: '1'", "f:1: case_format: this version reads format 1, got '1'"),
    ("case_format: 1\n", "", "f:1: missing key 'case_format', such as case_format: 1"),
    ("returns: [out]\n", "", "f:1: missing key 'returns'"),
    ("returns: [out]", "return: [out]", "f:12: return: unknown key; expected case_format"),
    ("returns: [out]", "returns: []", "f:12: nothing is returned"),
    ("returns: [out]", "returns: [nope]", "f:12: returns: 'nope' is not defined"),
    ("returns: [out]", "returns: out", "f:12: returns: expected a list, got 'out'"),
    ("returns: [out]", "returns: [out]\nreturns: [h]", "f:13: returns: duplicate key, first on line 12"),
    ("returns: [out]", "returns: [1]", "f:12: returns[0]: expected text, got 1"),
    (
        "mode: inference",
        "mode: eval",
        "f:3: mode is 'eval', expected one of inference, inference_mode, training, training_on_sum",
    ),
    ("dynamic: false", "dynamic: no", "f:4: dynamic: 'no' reads differently in YAML 1.1 and 1.2"),
    ("dynamic: false", "dynamic: 0", "f:4: dynamic: expected true or false, got 0"),
    ("B: 2", "B: 2.0", "f:2: dims.B: expected an integer, got 2.0"),
    ("B: 2", "B: true", "f:2: dims.B: expected an integer, got true"),
    ("B: 2", "B: -2", "f:2: dims: B is -2, expected 0 to"),
    ("B: 2", "B: 9000000", "f:2: dims: B is 9000000, expected 0 to"),
    ("B: 2", "b: 2", "f:2: dims: 'b' is not a capitalised name"),
    ("B: 2", "B: 2, \"B=__import__('os')\": 1", "f:2: dims: \"B=__import__('os')\" is not a capitalised name"),
    ("B: 2", "B: 2, F: 1", "f:2: dims: 'F' is not a capitalised name"),
    ("B: 2, S: 4", "B: 1048576, S: 400", "f:6: input 'q': shape [1048576, 400, 8] is not one of at most"),
    ("{B: 2, S: 4, D: 8}", "[2, 4, 8]", "f:2: dims: expected a mapping, got a list"),
    ("[B, S, D]", "[B, S, Z]", "f:6: input 'q': size Z: dimension 'Z' is not defined"),
    ("[B, S, D]", "[B, S, D/2]", "f:6: inputs.q.shape[2]: size 'D/2': expected a sum of products"),
    ("[B, S, D]", "[B, S, D.__class__]", "f:6: inputs.q.shape[2]: size 'D.__class__': expected a sum of products"),
    ("[B, S, D]", "[B, S, 8.0]", "f:6: inputs.q.shape[2]: expected a size such as 3*H*D, got 8.0"),
    ("[B, S, D]", "[B, S, -1]", "f:6: input 'q': shape [2, 4, -1] is not one of"),
    (
        "[B, S, D]",
        "[" + "1, " * 16 + "1]",
        "f:6: input 'q': shape [1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1] is not one of",
    ),
    ("[B, S, D]", "[" + "1, " * 9 + "1]", "f:6: input 'q': shape [1, 1, 1, 1, 1, 1, 1, 1, 1, 1] is not one of"),
    (
        "dtype: float32, values: {kind",
        "dtype: float31, values: {kind",
        "f:6: input 'q': dtype 'float31', expected one of float32",
    ),
    ("dtype: float32, values: {kind", "values: {kind", "f:6: inputs.q: missing key 'dtype'"),
    ("kind: normal", "kind: cauchy", "f:6: input 'q': values 'cauchy' of float32, expected one of normal"),
    ("scale: 1.0", "scale: 1e-3", "f:6: inputs.q.values.scale: '1e-3' reads differently in YAML 1.1 and 1.2"),
    ("scale: 1.0", "scale: '1.0'", "f:6: inputs.q.values.scale: expected a number, got '1.0'"),
    ("scale: 1.0", "scale: true", "f:6: inputs.q.values.scale: expected a number, got true"),
    ("seed: 0", "seed: 0.0", "f:6: inputs.q.values.seed: expected an integer, got 0.0"),
    ("seed: 0", "seed: -1", "f:6: input 'q': seed -1 is outside 0 to 2^31"),
    ("layout: contiguous", "layout: spiral", "f:6: input 'q': layout 'spiral', expected one of contiguous"),
    ("parameter: true", "parameter: yes", "f:7: inputs.w.parameter: 'yes' reads differently in YAML 1.1 and 1.2"),
    (
        "parameter: true",
        "differentiable: true",
        "f:7: inputs.w.differentiable: unknown key; expected shape, dtype, values",
    ),
    ("  q: {", "  lambda: {", "f:6: name 'lambda': expected a lower-case identifier"),
    ("  q: {", "  torch: {", "f:6: name 'torch': expected a lower-case identifier"),
    ("  q: {", "  q.x: {", "f:6: name 'q.x': expected a lower-case identifier"),
    ("  q: {", "  __class__: {", "f:6: name '__class__': expected a lower-case identifier"),
    ("name: h,", "name: q,", "f:9: name 'q' is defined twice"),
    ("name: h,", "name: 'a; import os',", "f:9: name 'a; import os': expected a lower-case identifier"),
    ("op: matmul", "op: __import__", "f:9: op 'h': unknown operation '__import__'"),
    ("op: matmul, ", "", "f:9: ops[0]: missing key 'op'"),
    ("args: [q, w]", "args: [q]", "f:9: op 'h' (matmul): takes 2 arguments, got 1"),
    ("args: [q, w]", "args: [q, out]", "f:9: op 'h' (matmul): 'out' is not defined before it"),
    ("args: [q, w]", "args: [w, q]", "f:9: op 'h' (matmul): inner sizes of the product: 2 * D - 8 = 8 against S = 4"),
    ("other: 4.0", "other: 1e-3", "f:10: ops[1].other: '1e-3' reads differently in YAML 1.1 and 1.2"),
    ("other: 4.0", "other: '1e-3'", "f:10: op 's' (div): other is '1e-3', expected a number"),
    ("other: 4.0", "other: true", "f:10: op 's' (div): other is True, expected a number"),
    (
        "other: 4.0",
        "rounding_mode: floor",
        "f:10: op 's': div has no attribute 'rounding_mode'; it has: other, reverse, form",
    ),
    (
        "other: 4.0",
        "other: 4.0, form: sideways",
        "f:10: op 's' (div): form is 'sideways', expected one of operator, method",
    ),
    ("dim: -1", "dim: -1.0", "f:11: op 'out' (softmax): dim is -1.0, expected an integer, an axis"),
    ("dim: -1", "dim: null", "f:11: op 'out' (softmax): dim is None, expected an integer, an axis"),
    ("dim: -1", "dim: 3", "f:11: op 'out' (softmax): dim 3 is not an axis of a tensor of rank 3"),
    ("contracts: []", "contracts: [{q: q}]", "f:13: contracts[0]: missing key 'k'"),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: zz}]",
        "f:13: contract: output names 'zz', which is not defined",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, causal: true}]",
        "f:13: contracts[0].causal: expected text, got true",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, causal: left}]",
        "f:13: contract: causal 'left', expected top_left or bottom_right",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, window: 3}]",
        "f:13: contracts[0].window: expected a list",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, window: [3]}]",
        "f:13: contracts[0].window: expected 2 values, got 1",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, window: [3, 1.0]}]",
        "f:13: contracts[0].window[1]: expected an integer, got 1.0",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, window: [3, -2]}]",
        "f:13: contract: window [3, -2], expected counts of keys, or -1 for no bound",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, causal: top_left, window: [3, 3]}]",
        "f:13: contract: causal keeps no key to the right, window [3, 3] does",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, softcap: 0.0}]",
        "f:13: contract: softcap 0.0, expected a positive number",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, softcap: null}]",
        "f:13: contracts[0].softcap: expected a number, got null",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, scale: .inf}]",
        "f:13: contract: scale inf is not finite",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, dropout: 2}]",
        "f:13: contract: dropout 2, expected a probability",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, fill: -1.0}]",
        "f:13: contract: mask_means and fill need a mask",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, mask: q, mask_means: add}]",
        "f:13: contract: mask_means 'add', expected keep or drop; an added mask is a bias",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, mask: q}]",
        "f:13: contract: 'q' is float32; a mask is boolean and a bias floating",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, bias: q}]",
        "f:13: contract: 'q' of [B, S, D] does not broadcast to [2, 4, 4]",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, bias: out}]",
        "f:13: contract: bias names 'out', which is not defined before the output",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, alibi: q}]",
        "f:13: contract: alibi 'q' is not a floating tensor of shape [1]",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out, layout: bsd, sinks: w}]",
        "f:13: contract: sinks 'w' is not a floating tensor of shape [1]",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: w, layout: bsd}]",
        "f:13: contract: output names 'w', which no operation",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: w, output: out, layout: bsd}]",
        "f:13: contract: 'w' is not a floating tensor of 3 axes",
    ),
    (
        "contracts: []",
        "contracts: [{q: q, k: q, v: q, output: out}]",
        "f:13: contract: 'q' is not a floating tensor of 4 axes",
    ),
    ("contracts: []", "note: hello", "f:13: note: unknown key"),
    ("contracts: []", "settings: {cpp.thread: 4}", "f:13: unknown setting 'cpp.thread'"),
    ("contracts: []", "settings:\n  freezing: true\n  cpp.threads: true", "f:15: setting cpp.threads is True"),
    (
        "contracts: []",
        "settings: {cpp.threads: [4]}",
        "f:13: settings.cpp.threads: expected true or false, an integer, a number, text; got a list",
    ),
]


@pytest.mark.parametrize(("old", "new", "expected"), BAD)
def test_a_mistake_is_told_in_one_line_with_its_place(old: str, new: str, expected: str) -> None:
    assert old in PLAIN
    with pytest.raises(CaseError) as error:
        loads(PLAIN.replace(old, new, 1), "f")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


EARLIER = """
before:
- case:
    inputs: {x: {shape: [2], dtype: float32, values: {}}}
    dims: {}
    ops:
    - {name: out, op: exp, args: [x]}
    returns: [out]
  times: 3
"""


def test_earlier_cases_are_kept_and_tell_cases_apart() -> None:
    case = loads(PLAIN + EARLIER)
    assert [(one.times, [op.kind for op in one.case.ops]) for one in case.before] == [(3, ["exp"])]
    assert loads(dumps(case)) == case
    fewer = replace(case, before=(replace(case.before[0], times=2),))
    assert len({case.id, fewer.id, loads(PLAIN).id}) == 3


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("times: 3", "times: 0", "before: times is 0, expected 1 to 100"),
        ("times: 3", "times: many", "before[0].times: expected an integer, got 'many'"),
        ("times: 3", "time: 3", "before[0].time: unknown key; expected case, times"),
        ("op: exp", "op: expp", "before: case 1: op 'out': unknown operation 'expp'"),
        ("    dims: {}\n", "", "before[0].case: missing key 'dims'"),
        (
            "returns: [out]",
            "returns: [out]\n    before: [{case: {}}]",
            "before[0].case.before[0].case: missing key 'dims'",
        ),
    ],
)
def test_an_earlier_case_with_a_mistake_is_refused_in_one_line(old: str, new: str, expected: str) -> None:
    with pytest.raises(CaseError) as error:
        loads(PLAIN + EARLIER.replace(old, new), "f")
    assert expected in str(error.value)
    assert "\n" not in str(error.value)


def test_a_program_without_end_is_refused() -> None:
    lines = "".join(f"  - {{name: x{i}, op: clone, args: [q]}}\n" for i in range(MAX_LINES))
    with pytest.raises(CaseError, match=rf"f:[0-9]+: .*[0-9]+ inputs and operations; at most {MAX_LINES}"):
        loads(PLAIN.replace("ops:\n", "ops:\n" + lines), "f")


@pytest.mark.parametrize("cut", range(20, len(PLAIN), 37))
def test_a_truncated_file_is_refused(cut: int) -> None:
    with pytest.raises(CaseError, match=r"^f:\d+: "):
        loads(PLAIN[:cut], "f")


@pytest.mark.samples
@settings(max_examples=200)
@given(st.integers(0, len(PLAIN) - 1), st.integers(0, 6), st.text("{}[]:,-!&*'\"# \n\t01.eqBw\\", max_size=4))
def test_a_damaged_file_is_read_or_refused_in_one_line(start: int, length: int, inserted: str) -> None:
    damaged = PLAIN[:start] + inserted + PLAIN[start + length :]
    try:
        assert loads(dumps(loads(damaged, "f"))) == loads(damaged, "f")
    except CaseError as error:
        assert "\n" not in str(error)
