# Owner(s): ["oncall: distributed"]
"""[DTensor] backward of a sum of a transposed product, one factor split: RuntimeError, view size is not compatible

The method below is for test/distributed/tensor/test_dtensor.py, class DTensorTest.
2.13.0, 2.15.0: runtime error RuntimeError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import torch
from torch import nn

B, H, S, D, L = 2, 3, 4, 6, 8


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    loss = "sum"

    def forward(self, x, z):
        product = x @ z
        out = product.transpose(1, 2)
        return out


def inputs():
    return [
        torch.randn((S, L), generator=rng(0)),
        torch.randn((B, H, L, D), generator=rng(1)),
    ]


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


class RegressionTest(DTensorTestBase):
    device_type, world_size = "cpu", 2

    @with_comms
    def test_view_of_a_sharded_gradient(self):
        mesh = self.build_device_mesh()
        placements = [Replicate(), Shard(3)]
        def run(call, whole=False):
            given = inputs() if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = gather(call(*given))
            out.sum().backward()

        whole = Module()
        run(whole, whole=True)
        module = Module()
        run(module)


if __name__ == "__main__":
    run_tests()
