# Owner(s): ["module: nn"]
"""nn.TransformerEncoderLayer under CPU autocast, fast path: compiled gives float32, eager bfloat16

The method below is for test/test_transformers.py, class TestTransformers.
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import TestCase, instantiate_parametrized_tests, parametrize, run_tests
import torch


class RegressionTest(TestCase):
    def test_encoder_layer_under_autocast(self):
        layer = torch.nn.TransformerEncoderLayer(8, 2, 4, dropout=0.0, batch_first=True).eval()
        x = torch.randn(2, 3, 8)
        dtypes = []
        for fast in (True, False):
            torch.backends.mha.set_fastpath_enabled(fast)
            with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
                dtypes.append(layer(x).dtype)
        torch.backends.mha.set_fastpath_enabled(True)
        assert dtypes[0] == dtypes[1], f"fast path {dtypes[0]}, without it {dtypes[1]}"


if __name__ == "__main__":
    run_tests()
