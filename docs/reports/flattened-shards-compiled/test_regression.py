# Owner(s): ["oncall: distributed"]
"""[DTensor] torch.compile of a view that flattens a split axis behind another axis: ValueError, DTensorSpec doesn't allow specify shard_order

The method below is for test/distributed/tensor/test_dtensor_compile.py, class TestDTensorCompileE2E.
2.13.0, 2.15.0: compile error ValueError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.distributed.tensor import Shard, distribute_tensor
import torch
from torch import nn

H, V = 2, 2


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, x):
        H = x.size(0)
        V = x.size(1)
        flat = x.view(H * V)
        out = flat * 2.0
        return out


def inputs():
    return [
        torch.randn((H, V), generator=rng(0)),
    ]


class RegressionTest(DTensorTestBase):
    device_type, world_size = "cpu", 2

    @parametrize("dynamic", [False])
    @with_comms
    @torch.no_grad()
    def test_flattened_shards_compiled(self, dynamic):
        mesh = self.build_device_mesh()
        torch._dynamo.reset()
        whole = Module().eval()
        whole(*inputs())
        module = Module().eval()
        given = [distribute_tensor(x, mesh, [Shard(1)]) for x in inputs()]
        compiled = torch.compile(module, dynamic=dynamic, backend='aot_eager')
        compiled(*given).full_tensor()


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
