"""Attention in bf16 on a CPU against its formula in float64, and where it is not used."""

import copy

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from vitcli.models import kernels
from vitcli.models.build import TransformerOptions, architecture, build

NUM_TOKENS = 9
MASK = torch.ones(NUM_TOKENS, NUM_TOKENS)


@pytest.fixture(autouse=True)
def native_bf16(monkeypatch):
    """Choose as on a CPU that multiplies bf16, whatever this one does."""
    monkeypatch.setattr(kernels, "HAS_BF16", True)


@pytest.fixture
def written_out(monkeypatch) -> list[tuple]:
    """The shapes of all queries that were written out."""
    shapes, attend = [], kernels.attend

    def record(q_BATE, *others):
        shapes.append(tuple(q_BATE.shape))
        return attend(q_BATE, *others)

    monkeypatch.setattr(kernels, "attend", record)
    return shapes


def in_heads(*, num_queries: int, num_keys: int) -> tuple[Tensor, Tensor, Tensor]:
    """Queries, keys and values of 3 images and 2 heads as timm cuts them from one matrix, not contiguous."""
    generator = torch.Generator().manual_seed(0)
    sizes = ((num_queries, 8), (num_keys, 8), (num_keys, 6))
    return tuple(
        torch.randn(3, tokens, 2, width, generator=generator).bfloat16().transpose(1, 2)
        for tokens, width in sizes
    )


def by_formula(q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    logits = torch.einsum("bate,base->bats", q, k) * scale
    weights = logits.exp() / logits.exp().sum(dim=-1, keepdim=True)
    return torch.einsum("bats,basv->batv", weights, v)


@pytest.mark.parametrize("num_queries", [1, NUM_TOKENS])
@pytest.mark.parametrize("most_kept", [NUM_TOKENS - 1, NUM_TOKENS])
@pytest.mark.parametrize("cached_bytes", [1, 4 * 2 * NUM_TOKENS**2, 2**20])
def test_outputs_and_gradients_are_those_of_the_formula(num_queries, most_kept, cached_bytes, monkeypatch):
    monkeypatch.setattr(kernels, "MOST_KEPT", most_kept)
    monkeypatch.setattr(kernels, "CACHED_BYTES", cached_bytes)
    tensors = [x.requires_grad_() for x in in_heads(num_queries=num_queries, num_keys=NUM_TOKENS)]
    exact = [x.detach().double().requires_grad_() for x in tensors]

    outputs, expected = kernels.attend(*tensors, 0.3), by_formula(*exact, 0.3)
    toward = torch.randn_like(expected)
    outputs.backward(toward.bfloat16())
    expected.backward(toward)

    # bf16 has a relative error of 2^-9; logits, weights and sums are rounded one after another.
    for ours, theirs in (
        (outputs, expected),
        *((x.grad, y.grad) for x, y in zip(tensors, exact, strict=True)),
    ):
        assert (ours - theirs).norm() < 0.01 * theirs.norm()
    assert tensors[0].grad.abs().sum() > 0


def test_no_bit_depends_on_the_groups_of_heads_or_on_kept_weights(monkeypatch):
    def run(*, cached_bytes: int, most_kept: int) -> list[Tensor]:
        monkeypatch.setattr(kernels, "CACHED_BYTES", cached_bytes)
        monkeypatch.setattr(kernels, "MOST_KEPT", most_kept)
        tensors = [x.requires_grad_() for x in in_heads(num_queries=NUM_TOKENS, num_keys=NUM_TOKENS)]
        outputs = kernels.attend(*tensors)
        outputs.float().square().sum().backward()
        return [outputs, *(x.grad for x in tensors)]

    first = run(cached_bytes=2**20, most_kept=256)

    for other in (run(cached_bytes=1, most_kept=256), run(cached_bytes=1, most_kept=0)):
        assert all(map(torch.equal, first, other))


def small(*, posemb: str = "1d") -> torch.nn.Module:
    torch.manual_seed(0)
    options = TransformerOptions(posemb=posemb)
    arch = architecture("ViT-demo/8", image_size=(32, 32), num_classes=3, options=options)
    model = build(arch, dropout=0.0)
    torch.nn.init.normal_(model.head.weight)
    return model


def forward(model: torch.nn.Module, dtype: torch.dtype) -> Tensor:
    images = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(1))
    with torch.no_grad(), torch.autocast("cpu", dtype=dtype, enabled=dtype != torch.float32):
        return model(images).float()


def test_bf16_on_a_cpu_is_written_out_and_fp32_keeps_every_bit_of_timms(written_out):
    model = small()
    fused = copy.deepcopy(model)
    for block in fused.blocks:
        block.attn.__class__ = timm.layers.Attention

    assert torch.equal(forward(model, torch.float32), forward(fused, torch.float32))
    assert not written_out
    ours, theirs = forward(model, torch.bfloat16), forward(fused, torch.bfloat16)
    assert len(written_out) == len(model.blocks)
    assert 0 < (ours - theirs).norm() < 0.02 * theirs.norm()
    model.to(torch.bfloat16)(torch.zeros(1, 3, 32, 32, dtype=torch.bfloat16))
    assert len(written_out) == 2 * len(model.blocks)


def test_a_compiled_network_has_the_plain_operations_in_one_graph(monkeypatch):
    model, graphs = small(), []
    expected = forward(model, torch.bfloat16)

    def backend(graph, _):
        graphs.append([str(node.target) for node in graph.graph.nodes])
        return graph

    model.compile(backend=backend, fullgraph=True)

    assert (forward(model, torch.bfloat16) - expected).norm() < 0.02 * expected.norm()
    (calls,) = graphs
    assert calls.count("softmax") == len(model.blocks) and "scaled_dot_product" not in str(calls)


def test_a_cpu_that_emulates_bf16_keeps_the_fused_kernel(written_out, monkeypatch):
    monkeypatch.setattr(kernels, "HAS_BF16", False)

    forward(small(), torch.bfloat16)

    assert not written_out


@pytest.mark.parametrize("options", [{"dropout_p": 0.5}, {"is_causal": True}, {"attn_mask": MASK}])
def test_dropout_and_masks_are_torchs_without_gradients(options, written_out):
    q, k, _ = in_heads(num_queries=NUM_TOKENS, num_keys=NUM_TOKENS)
    with kernels.WrittenOut():
        torch.manual_seed(0)
        ours = F.scaled_dot_product_attention(q, k, k, **options)
    torch.manual_seed(0)

    assert torch.equal(ours, F.scaled_dot_product_attention(q, k, k, **options)) and not written_out


def test_in_training_a_bias_of_the_logits_has_its_gradient():
    q, k, _ = (x.requires_grad_() for x in in_heads(num_queries=NUM_TOKENS, num_keys=NUM_TOKENS))
    bias, of_ours = (torch.randn(1, 2, NUM_TOKENS, NUM_TOKENS).requires_grad_() for _ in range(2))
    of_ours.data.copy_(bias.data)
    with kernels.WrittenOut():
        ours = F.scaled_dot_product_attention(q, k, k, attn_mask=of_ours)
    expected = F.scaled_dot_product_attention(q.double(), k.double(), k.double(), attn_mask=bias.double())
    for outputs in (ours, expected):
        outputs.double().square().sum().backward()

    assert (ours - expected).norm() < 0.01 * expected.norm()
    assert (of_ours.grad - bias.grad).norm() < 0.03 * bias.grad.norm() > 0


def test_dropout_of_the_weights_drops_all_or_nothing():
    q, k, v = (x.requires_grad_() for x in in_heads(num_queries=NUM_TOKENS, num_keys=NUM_TOKENS))
    with kernels.WrittenOut():
        assert not F.scaled_dot_product_attention(q, k, v, dropout_p=1.0).any()
        half = F.scaled_dot_product_attention(q, k, torch.ones_like(v), dropout_p=0.5)

    assert 0.5 < half.mean() < 1.5 and half.std() > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    "name, count", [("eva02_tiny_patch14_224", 12), ("swin_s3_tiny_224", 0), ("xcit_nano_12_p16_224", 2)]
)
def test_other_networks_of_timm_keep_their_function(name, count, written_out):
    torch.manual_seed(0)
    model = timm.create_model(name).eval()
    image = torch.randn(1, 3, 224, 224)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        before = model(image).float()
        kernels.choose_attention(model)
        after = model(image).float()

    assert (after - before).norm() < 0.05 * before.norm()
    assert len(written_out) == count
