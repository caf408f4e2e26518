#!/bin/sh
# ONNX Runtime's Attention gives zeros for a row whose additive mask holds the lowest float32 at every key; ONNX's
# reference evaluator gives the mean of the values.
#
# Versions: onnx 1.23.2, onnxruntime 1.32.0; the same at opsets 23 and 24.
#
# Batches that are padded on the left have such rows: transformers fills masks with the lowest number of the dtype. The
# operator's text gives zeros to a row whose bias is -inf at every key. The lowest number is finite, so its softmax is
# that of equal scores. ONNX Runtime takes the lowest number for -inf, and -1e30 as it is.
#
# A guess: both give the mean of the values, as eager torch does.
#
# Seen: the fill of the mask, then the first weight of two in the reference evaluator and in ONNX Runtime
#     -inf 0.0 0.0
#     lowest 0.5 0.0
#     -1e30 0.5 0.5
#
# Installs both in a temporary folder; PYTHON=/path/to/python uses an interpreter that has them. Exits with 1 if the
# behaviour is another.
set -eu
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
if [ -z "${PYTHON:-}" ]; then
    python3 -m venv "$folder/venv"
    "$folder/venv/bin/pip" install --quiet onnx==1.23.2 onnxruntime==1.32.0
    PYTHON=$folder/venv/bin/python
fi
cat > "$folder/rows.py" <<'END'
import numpy as np
import onnxruntime
from onnx import TensorProto, helper
from onnx.reference import ReferenceEvaluator

shapes = {"q": [1, 1, 1, 4], "k": [1, 1, 2, 4], "v": [1, 1, 2, 4], "mask": [1, 2]}
inputs = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name, shape in shapes.items()]
output = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 1, 1, 4])
graph = helper.make_graph([helper.make_node("Attention", [*shapes], ["y"])], "attention", inputs, [output])
model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 24)], ir_version=11)
session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])

for name, fill in (("-inf", -np.inf), ("lowest", np.finfo(np.float32).min), ("-1e30", -1e30)):
    feeds = {key: np.zeros(shape, np.float32) for key, shape in shapes.items()}
    feeds["v"][0, 0, 0, 0] = 1  # so that the result is the weight of the first key
    feeds["mask"][:] = fill
    print(name, *(float(runner.run(None, feeds)[0][0, 0, 0, 0]) for runner in (ReferenceEvaluator(model), session)))
END
"$PYTHON" "$folder/rows.py" 2> "$folder/log" | tee "$folder/seen"
printf -- '-inf 0.0 0.0\nlowest 0.5 0.0\n-1e30 0.5 0.5\n' | diff - "$folder/seen"
