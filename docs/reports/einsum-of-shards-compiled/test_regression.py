# Owner(s): ["oncall: distributed"]
"""[DTensor] torch.compile(dynamic=True) of einsum, or of a product of 4 axes, in training, one factor split: RecursionError

The method below is for test/distributed/tensor/test_dtensor_compile.py, class TestDTensorCompileE2E.
2.11.0, 2.13.0, 2.15.0: compile error RecursionError
"""
import importlib.util, sys, unittest

if not importlib.util.find_spec("expecttest"):
    sys.modules["expecttest"] = unittest  # PyTorch's TestCase derives from expecttest's, which the wheel does not bring
from torch.testing._internal.common_utils import instantiate_parametrized_tests, parametrize, run_tests
from torch.testing._internal.distributed._tensor.common_dtensor import DTensorTestBase, with_comms
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
import torch
from torch import nn

B, H, S, T, D = 2, 1, 1, 2, 4


def rng(seed):
    return torch.Generator().manual_seed(seed)


class Module(nn.Module):
    def forward(self, weights, v):
        out = torch.einsum("bhqk,bhkd->bhqd", weights, v)
        return out


def inputs():
    return [
        torch.randn((B, H, S, T), generator=rng(0)),
        torch.randn((B, H, T, D), generator=rng(1)),
    ]


def gather(value):  # whole tensors in place of DTensors
    return torch.utils._pytree.tree_map_only(DTensor, DTensor.full_tensor, value)


class RegressionTest(DTensorTestBase):
    device_type, world_size = "cpu", 2

    @parametrize("dynamic", [False, True])
    @with_comms
    def test_einsum_of_shards_compiled(self, dynamic):
        mesh = self.build_device_mesh()
        placements = [Replicate(), Shard(0)]
        def run(call, whole=False):
            given = inputs() if whole else [distribute_tensor(x, mesh, [p]) for x, p in zip(inputs(), placements)]
            given[0].requires_grad_()
            given[1].requires_grad_()
            out = gather(call(*given))
            torch.manual_seed(1)
            out.backward(torch.randn(out.shape).to(out))

        torch._dynamo.reset()
        whole = Module()
        run(whole, whole=True)
        module = Module()
        compiled = torch.compile(module, dynamic=dynamic, backend='aot_eager')
        run(compiled)


instantiate_parametrized_tests(RegressionTest)

if __name__ == "__main__":
    run_tests()
