# Owner(s): ["oncall: distributed"]
"""[DTensor] expand_as of a whole tensor to a split tensor, under inference_mode: a rank's size in place of the whole

The method below is for test/distributed/tensor/test_dtensor.py, class DTensorTest.
2.11.0: passes; 2.13.0, 2.15.0: another form
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import torch
from torch import nn

T = 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x, z):
        out = x.expand_as(z)
        return out


def inputs():
    return [
        torch.randn((1,), generator=rng(0)),
        torch.randn((T,), generator=rng(1)),
    ]


def calls(module):
    with torch.inference_mode():
        yield inputs()


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


class RegressionTest(DTensorTestBase):
    device_type, world_size = "cpu", 2

    @with_comms
    def test_expand_as_in_inference_mode(self):
        mesh = self.build_device_mesh()
        placements = [Replicate(), Shard(0)]
        def run(module, call, whole=False):
            for given in calls(module):
                given = given if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(given, placements)]
                out = gather(call(*given))
            return out.shape

        module = Module().eval()
        actual = run(module, module)
        module = Module().eval()
        expected = run(module, module, whole=True)
        self.assertEqual(actual, expected)


if __name__ == "__main__":
    run_tests()
