#!/bin/sh
# ONNX's reference evaluator of Attention: beside a mask of one row, is_causal gives every query the keys of the first.
#
# Versions: onnx 1.23.2; the same at opsets 23 and 24.
#
# A mask of shape [1, T], such as the padding of a sequence, broadcasts over queries. With is_causal the evaluator makes
# the causal part from the mask's shape, which has one row, and broadcasts that. The result has no sign of it: finite
# and plausible. So it is no judge of a runtime in such a call; ONNX Runtime 1.32.0 refuses the mask.
#
# A guess: the mask broadcasts first, and query i keeps the keys up to i.
#
# Seen: the mask's shape, then how many of four keys each of four queries keeps
#     [1, 4] 1 1 1 1
#     [4, 4] 1 2 3 4
#
# Installs onnx in a temporary folder; PYTHON=/path/to/python uses an interpreter that has it. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet onnx==1.23.2
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/rows.py" <<'END'
import numpy as np
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator


def count_keys(mask):
    x = [1, 1, 4, 4]
    inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, x) for name in "qkv"]
    inputs.append(helper.make_tensor_value_info("mask", TensorProto.BOOL, mask.shape))
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, x)
    node = helper.make_node("Attention", ["q", "k", "v", "mask"], ["y"], is_causal=1)
    graph = helper.make_graph([node], "attention", inputs, [output])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
    zeros = np.zeros(x, np.float32)
    feeds = {"q": zeros, "k": zeros, "v": zeros + np.eye(4, dtype=np.float32), "mask": mask}
    return (ReferenceEvaluator(model).run(None, feeds)[0][0, 0] > 0).sum(-1)


for rows in (1, 4):
    print([rows, 4], *count_keys(np.ones((rows, 4), bool)))
END
"$PYTHON" "$folder/rows.py" 2> "$folder/log" | tee "$folder/seen"
printf '[1, 4] 1 1 1 1\n[4, 4] 1 2 3 4\n' | diff - "$folder/seen"
