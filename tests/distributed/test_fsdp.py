"""Sharded training in bf16: matrices are gathered in bf16; no bit of a step or an evaluation changes."""

import json
import os
import socket
import subprocess
import sys

import pytest

from vitcli.distributed import fsdp
from vitcli.models.build import architecture, build

PROCESS = """
import copy, json
import timm, torch
from torch.distributed.fsdp import MixedPrecisionPolicy
from torch.utils._python_dispatch import TorchDispatchMode
from vitcli.distributed import fsdp, runtime


class CountedCasts(TorchDispatchMode):
    num_matrices = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        if function is torch.ops.aten._to_copy.default and kwargs.get("dtype") is torch.bfloat16:
            self.num_matrices += tuple(args[0].shape) == (192, 48)  # of the first layer of a block's MLP
        return function(*args, **(kwargs or {}))


joined = runtime.start("bf16")
torch.manual_seed(0)
network = timm.create_model(
    "vit_tiny_patch16_224", img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=5
)
for parameter in network.parameters():
    torch.nn.init.normal_(parameter, std=0.05)
images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(joined.rank))
with torch.no_grad():
    expected = network(images)


def trained(policy):
    model = copy.deepcopy(network)
    fsdp._policy = policy
    fsdp.shard(model, joined)
    losses = []
    with CountedCasts() as casts:
        for step in range(2):
            with runtime.autocast(joined.device, joined.precision):
                losses.append(model(images).square().mean())
            losses[-1].backward()
    with torch.no_grad(), fsdp.in_full_precision(model):
        evaluated = model(images)
    with runtime.autocast(joined.device, joined.precision):
        losses.append(model(images).square().mean().detach())
    grads = [parameter.grad.full_tensor() for parameter in model.parameters()]
    return casts.num_matrices, evaluated, [*losses, *grads]


def are_equal(ones, others):
    return all(map(torch.equal, ones, others))


num_with, evaluated, values = trained(fsdp._policy)
num_without, _, plain_values = trained(lambda *_: MixedPrecisionPolicy())
result = [num_with, num_without, are_equal(values, plain_values), torch.equal(evaluated, expected)]
print(json.dumps(result), flush=True)
joined.shutdown()
"""


@pytest.mark.slow
def test_matrices_are_gathered_in_bf16_with_the_bits_of_autocast_and_evaluated_in_fp32():
    from torch.distributed.fsdp import MixedPrecisionPolicy  # takes a second

    if "param_dtype_override_fn" not in MixedPrecisionPolicy.__dataclass_fields__:
        pytest.skip("this torch has one precision for all parameters of a group, so autocast stays alone")
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port = str(listener.getsockname()[1])
    together = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", PROCESS],
            env=os.environ | together | {"RANK": rank, "LOCAL_RANK": rank},
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in "01"
    ]
    for process in processes:
        out, _ = process.communicate(timeout=120)
        num_with, num_without, has_same_bits, evaluates_in_fp32 = json.loads(out)
        assert num_with == 0 < num_without  # of autocast's casts, which live until the backward pass
        assert has_same_bits and evaluates_in_fp32


def test_what_is_gathered_by_itself_is_each_block_of_a_network():
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=3)
    model = build(arch, dropout=0.0)

    assert fsdp._blocks(model) == list(model.blocks) and len(model.blocks) > 1
