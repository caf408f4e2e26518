"""[OpenVINO] heads split before scaled_dot_product_attention give a wrong result where heads and length are equal

Needs openvino and numpy, and beside it model.xml, model.bin, data.npz: the inputs and the result in float64.
Exits with 1 if the bug shows, 0 if it does not.
"""
import os, sys

os.environ["CI"] = "true"  # otherwise OpenVINO sends usage data
import numpy, openvino

data = numpy.load("data.npz")
exact = data["exact"]
inputs = [data[name] for name in data.files if name != "exact"]
model = openvino.Core().read_model("model.xml")
actual = openvino.compile_model(model, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})(inputs)[0]
results = [openvino.Tensor(one.get_element_type(), openvino.Shape([0])) for one in model.outputs]
is_evaluated = model.evaluate(results, [openvino.Tensor(value) for value in inputs])
others = {"Model.evaluate": results[0].data} if is_evaluated else {}
off = lambda value: f"{numpy.abs(value.astype(float) - exact).max():.2g}"
shown = ", ".join(f"{name} {off(value)}" for name, value in {"OpenVINO": actual, **others}.items())
print(f"openvino {openvino.__version__}, float64 up to {numpy.abs(exact.astype(float)).max():.2g}; off by: {shown}")
# atol: half of this bug's error, 1.2
sys.exit(int(not numpy.allclose(actual, exact, rtol=0, atol=0.59, equal_nan=True)))
