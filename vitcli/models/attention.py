"""Attention on a CPU in bf16: written out in matrix products, where that beats torch's fused kernel.

timm's attention calls `scaled_dot_product_attention`. On GPUs, and on CPUs in fp32, that is the best choice.
In bf16 the CPU's fused kernel takes twice the time of three plain operations (three times with its backward
pass), on any number of tokens; benchmarks/kernels.py prints the table. The same formula is computed:

    weights = softmax(q k^T scale)
    output  = weights v

but logits and weights are rounded to bf16, which the fused kernel has in fp32. Groups of heads are computed
one after the other, so that their weights stay in the processor's cache.

B batch, A heads, G = B * A, T queries, S keys, E width of a head, V width of a value.
"""

from contextlib import nullcontext
from functools import cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from vitcli.distributed.runtime import cpu_has_bf16

HAS_BF16 = cpu_has_bf16()
CACHED_BYTES = 2**20  # attention weights that a thread computes at a time
MOST_KEPT = 272  # keys up to which training keeps the weights, in a quarter of its memory at most


def choose_attention(model: nn.Module) -> None:
    """Let every attention of a timm network choose its kernel in each forward pass, in place."""
    for module in model.modules():
        if getattr(module, "fused_attn", False) and not isinstance(module, ChoosesAttention):
            module.__class__ = _choosing(module.__class__)  # parameters and names stay


class ChoosesAttention(nn.Module):
    """Mixed into a class of timm: its `scaled_dot_product_attention` is computed in the faster way."""

    def forward(self, *args: Any, **options: Any) -> Tensor:
        tokens = args[0] if args else next(iter(options.values()))  # timm's classes name it differently
        with _WrittenOut() if is_written_out(tokens) else nullcontext():
            return super().forward(*args, **options)


def class_of(module: nn.Module) -> type[nn.Module]:
    """Return the class that an attention has in timm or in `pos_embed`."""
    return type(module).__mro__[2] if isinstance(module, ChoosesAttention) else type(module)


@cache
def _choosing(attention_class: type[nn.Module]) -> type[nn.Module]:
    return type(attention_class.__name__, (ChoosesAttention, attention_class), {})


def is_written_out(x: Tensor) -> bool:
    """Return True if attention over these tokens, here and now, is written out."""
    if x.device.type != "cpu" or not HAS_BF16:
        return False
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else x.dtype
    return dtype == torch.bfloat16


class _WrittenOut(TorchFunctionMode):
    """Replaces `scaled_dot_product_attention` inside the context where that is faster.

    With a mask or dropout that is in training alone; causal attention and fewer keys than queries have heads
    stay torch's.
    """

    def __torch_function__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if func is F.scaled_dot_product_attention:
            outputs = _attend_as_called(*args, **kwargs)
            if outputs is not None:
                return outputs
        return func(*args, **kwargs)


def _attend_as_called(
    query, key, value, attn_mask=None, dropout_p=0.0, is_causal=False, scale=None, **options
) -> Tensor | None:
    """Return the outputs of `scaled_dot_product_attention` called so, or None to leave them to it."""
    has_one_head_each = all(x.ndim == 4 and x.shape[:2] == query.shape[:2] for x in (key, value))
    is_bias = attn_mask is None or attn_mask.is_floating_point()
    if is_causal or any(options.values()) or not has_one_head_each or not is_bias:
        return None
    if torch.compiler.is_compiling():  # the compiler fuses the plain operations
        return attend_with_bias(query, key, value, attn_mask, dropout_p, scale)
    if attn_mask is None and not dropout_p:
        return attend(query, key, value, scale)
    if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value)):
        return attend_with_bias(query, key, value, attn_mask, dropout_p, scale)
    return None


def attend_with_bias(
    q_BATE: Tensor, k_BASE: Tensor, v_BASV: Tensor, bias: Tensor | None, dropout: float, scale: float | None
) -> Tensor:
    """Return attention's outputs (B, A, T, V) with a bias of the logits and dropout of the weights."""
    scale = q_BATE.shape[-1] ** -0.5 if scale is None else scale
    logits_BATS = (q_BATE * scale) @ k_BASE.mT
    if bias is not None:
        logits_BATS = logits_BATS + bias.to(logits_BATS.dtype)
    return F.dropout(logits_BATS.softmax(dim=-1), dropout) @ v_BASV


def attend(q_BATE: Tensor, k_BASE: Tensor, v_BASV: Tensor, scale: float | None = None) -> Tensor:
    """Return attention's outputs (B, A, T, V); `scale` defaults to 1 / sqrt(E)."""
    return _Attention.apply(q_BATE, k_BASE, v_BASV, q_BATE.shape[-1] ** -0.5 if scale is None else scale)


class _Attention(torch.autograd.Function):
    """The formula above; weights that are not kept are computed again in the backward pass."""

    @staticmethod
    @torch.amp.custom_fwd(device_type="cpu", cast_inputs=torch.bfloat16)
    def forward(ctx, q_BATE: Tensor, k_BASE: Tensor, v_BASV: Tensor, scale: float) -> Tensor:
        q_GTE, k_GSE, v_GSV = (x.flatten(0, 1) for x in (q_BATE, k_BASE, v_BASV))
        groups = _groups(q_GTE, k_GSE)
        is_kept = any(ctx.needs_input_grad) and k_GSE.shape[1] <= MOST_KEPT
        weights_GTS = _empty_weights(q_GTE, k_GSE, len(q_GTE) if is_kept else groups[0].stop)
        output_GTV = q_GTE.new_empty(*q_GTE.shape[:2], v_GSV.shape[2])
        for group in groups:
            part = group if is_kept else slice(0, group.stop - group.start)
            _softmax_of_logits(q_GTE[group], k_GSE[group], scale, out=weights_GTS[part])
            torch.bmm(weights_GTS[part], v_GSV[group], out=output_GTV[group])
        ctx.save_for_backward(q_GTE, k_GSE, v_GSV, weights_GTS if is_kept else None)
        ctx.scale = scale
        return output_GTV.unflatten(0, q_BATE.shape[:2])

    @staticmethod
    @once_differentiable
    @torch.amp.custom_bwd(device_type="cpu")
    def backward(ctx, grad_BATV: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients.

        grad v      = weights^T grad
        grad logits = weights (grad v^T - row sums of weights grad v^T)
        grad q      = scale grad logits k
        grad k      = scale grad logits^T q
        """
        q_GTE, k_GSE, v_GSV, kept_GTS = ctx.saved_tensors
        grad_GTV = grad_BATV.flatten(0, 1)
        grad_q_GTE, grad_k_GSE, grad_v_GSV = (torch.empty_like(x) for x in (q_GTE, k_GSE, v_GSV))
        groups = _groups(q_GTE, k_GSE)
        buffer_GTS, grad_logits_GTS = (_empty_weights(q_GTE, k_GSE, groups[0].stop) for _ in range(2))
        for group in groups:
            part = slice(0, group.stop - group.start)
            q, k, v, grad, grad_logits = (
                *(x[group] for x in (q_GTE, k_GSE, v_GSV, grad_GTV)),
                grad_logits_GTS[part],
            )
            weights = buffer_GTS[part] if kept_GTS is None else kept_GTS[group]
            if kept_GTS is None:
                _softmax_of_logits(q, k, ctx.scale, out=weights)
            torch.bmm(weights.mT, grad, out=grad_v_GSV[group])
            torch.bmm(grad, v.mT, out=grad_logits)
            torch.ops.aten._softmax_backward_data.out(
                grad_logits, weights, -1, weights.dtype, grad_input=grad_logits
            )
            _scaled_bmm(grad_logits, k, ctx.scale, out=grad_q_GTE[group])
            _scaled_bmm(grad_logits.mT, q, ctx.scale, out=grad_k_GSE[group])
        return *(x.unflatten(0, grad_BATV.shape[:2]) for x in (grad_q_GTE, grad_k_GSE, grad_v_GSV)), None


def _groups(q_GTE: Tensor, k_GSE: Tensor) -> list[slice]:
    """Return consecutive slices of the heads, of which the threads compute one at a time."""
    num_heads, num_bytes = len(q_GTE), q_GTE.shape[1] * k_GSE.shape[1] * q_GTE.element_size()
    size = max(1, CACHED_BYTES * torch.get_num_threads() // num_bytes)
    return [slice(start, min(start + size, num_heads)) for start in range(0, num_heads, size)]


def _empty_weights(q_GTE: Tensor, k_GSE: Tensor, num_heads: int) -> Tensor:
    return q_GTE.new_empty(num_heads, q_GTE.shape[1], k_GSE.shape[1])


def _softmax_of_logits(q_GTE: Tensor, k_GSE: Tensor, scale: float, *, out: Tensor) -> None:
    _scaled_bmm(q_GTE, k_GSE.mT, scale, out=out)
    torch.softmax(out, dim=-1, out=out)


def _scaled_bmm(left: Tensor, right: Tensor, scale: float, *, out: Tensor) -> None:
    torch.baddbmm(out, left, right, beta=0, alpha=scale, out=out)
