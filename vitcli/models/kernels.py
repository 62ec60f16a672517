"""Kernels of ours, in the place of torch's where those are slower or depend on the batch size.

Attention and the tanh form of GELU in bf16 on a CPU, and the dense layers of a pass without gradients. Two
of them call private functions of torch; where one of these is not as it was, public ones take its place.

B batch, A heads, G = B * A, T queries, S keys, E width of a head, V width of a value.
"""

import math
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import cache, partial
from typing import Any

import torch
import torch.nn.functional as F
from timm.layers import Mlp
from timm.layers.activations import GELU, GELUTanh
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.overrides import TorchFunctionMode

from vitcli.distributed.runtime import LOW_PRECISION, cpu_has_bf16

HAS_BF16 = cpu_has_bf16()
CACHED_BYTES = 2**20  # attention weights that a thread computes at a time
MOST_KEPT = 272  # keys up to which training keeps the weights, in a quarter of its memory at most
CUBIC = 0.044715  # of GELU
SLOPE = 2 * math.sqrt(2 / math.pi)  # c, that of z at 0
NO_ACTIVATION: tuple[str, list[float], str] = ("none", [], "")  # as oneDNN's product is given it
# MKL 2024.2 adds up a row in another order if rows are few: below 16 (AVX-512 without AMX), with several
# threads below 129 rows of 1,024 numbers. In a block of 16 a row has the same bits at every place.
BLOCK_ROWS = 16


def _is_as_known(name: str, check: Callable[[], bool]) -> bool:
    """Return whether a private function of torch does here what its public ones do, and warn if not."""
    try:
        is_as_known = check()
    except Exception:  # it is gone, or takes other arguments
        is_as_known = False
    if not is_as_known:
        what = f"{name} is not in torch {torch.__version__} as it was: slower functions take its place"
        warnings.warn(what, stacklevel=2)
    return is_as_known


def choose_attention(model: nn.Module) -> None:
    """Let every attention of a timm network choose its kernel in each forward pass, in place.

    timm's attention calls `scaled_dot_product_attention`. On GPUs, and on CPUs in fp32, that is the best
    choice. In bf16 the CPU's fused kernel takes twice the time of three plain operations (three times with
    its backward pass), on any number of tokens; benchmarks/kernels.py prints the table. The same formula is
    computed:

        weights = softmax(q k^T scale)
        output  = weights v

    but logits and weights are rounded to bf16, which the fused kernel has in fp32. Groups of heads are
    computed one after the other, so that their weights stay in the processor's cache.
    """
    for module in model.modules():
        if getattr(module, "fused_attn", False) and not isinstance(module, ChoosesAttention):
            module.__class__ = _choosing(type(module))  # type: ignore[arg-type]  # taken for an instance


class ChoosesAttention(nn.Module):
    """Mixed into a class of timm: its `scaled_dot_product_attention` is computed in the faster way."""

    def forward(self, *args: Any, **options: Any) -> Tensor:
        tokens = args[0] if args else next(iter(options.values()))  # timm's classes name it differently
        with WrittenOut() if is_written_out(tokens) else nullcontext():
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


class WrittenOut(TorchFunctionMode):
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
    def backward(ctx, grad_BATV: Tensor) -> tuple[Tensor | None, ...]:  # type: ignore[override]  # *grads
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
            q, k, v, grad = (x[group] for x in (q_GTE, k_GSE, v_GSV, grad_GTV))
            grad_logits = grad_logits_GTS[part]
            weights = buffer_GTS[part] if kept_GTS is None else kept_GTS[group]
            if kept_GTS is None:
                _softmax_of_logits(q, k, ctx.scale, out=weights)
            torch.bmm(weights.mT, grad, out=grad_v_GSV[group])
            torch.bmm(grad, v.mT, out=grad_logits)
            _softmax_gradient_(grad_logits, weights)
            _scaled_bmm(grad_logits, k, ctx.scale, out=grad_q_GTE[group])
            _scaled_bmm(grad_logits.mT, q, ctx.scale, out=grad_k_GSE[group])
        return *(x.unflatten(0, grad_BATV.shape[:2]) for x in (grad_q_GTE, grad_k_GSE, grad_v_GSV)), None


def _softmax_gradient_(grad_GTS: Tensor, weights_GTS: Tensor) -> None:
    """Make the gradient of the weights that of their logits, in place."""
    if _has_softmax_gradient():
        torch.ops.aten._softmax_backward_data.out(
            grad_GTS, weights_GTS, -1, weights_GTS.dtype, grad_input=grad_GTS
        )
    else:
        sums_GT1 = (grad_GTS * weights_GTS).sum(dim=-1, keepdim=True)
        grad_GTS.sub_(sums_GT1).mul_(weights_GTS)


@cache
def _has_softmax_gradient() -> bool:
    """Return whether torch writes the gradient of a softmax over its input."""

    def is_gradient() -> bool:
        weights, toward = torch.tensor([[0.25, 0.75]]), torch.tensor([[1.0, 2.0]])
        expected = weights * (toward - (weights * toward).sum(dim=-1, keepdim=True))
        torch.ops.aten._softmax_backward_data.out(toward, weights, -1, toward.dtype, grad_input=toward)
        return torch.allclose(toward, expected)

    return _is_as_known("the gradient of softmax", is_gradient)


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


def choose_gelu(model: nn.Module) -> None:
    """Let every tanh-GELU of a timm network choose its kernel in each forward pass, in place."""
    for module in model.modules():
        if type(module) is GELUTanh:
            module.__class__ = ChoosesGelu


class ChoosesGelu(GELUTanh):
    """timm's activation, in the faster way where it trains in bf16 on a CPU."""

    def forward(self, x: Tensor) -> Tensor:
        is_written_out = (
            x.requires_grad
            and torch.is_grad_enabled()
            and x.dtype == torch.bfloat16
            and x.device.type == "cpu"
            and HAS_BF16
            and not torch.compiler.is_compiling()  # the compiler fuses torch's
        )
        return _Gelu.apply(x) if is_written_out else super().forward(x)


class _Gelu(torch.autograd.Function):
    """The tanh form of GELU by a logistic function, where torch has a slow tanh.

        gelu(x)  = x s          s = sigmoid(z),    z = c (x + 0.044715 x^3),    c = 2 sqrt(2 / pi)
        gelu'(x) = s + s (1 - s) x z' = s - 2 c s (1 - s) (x - 1.5 z / c)

    Both are computed in the forward pass, and the derivative is kept in place of x. Each step rounds to bf16.
    """

    @staticmethod
    def forward(ctx, x: Tensor) -> Tensor:
        # The constants are arguments of `addcmul`, which has them in fp32; as tensors they would be rounded.
        zero, one = x.new_zeros(1), x.new_ones(1)
        z = torch.addcmul(one, x, x, value=CUBIC)
        torch.addcmul(zero, z, x, value=SLOPE, out=z)
        part = torch.add(x, z, alpha=-1.5 / SLOPE)
        logistic = z.sigmoid_()
        torch.ops.aten.sigmoid_backward(part, logistic, grad_input=part)
        derivative = torch.add(logistic, part, alpha=-2 * SLOPE, out=part)
        ctx.save_for_backward(derivative)
        return torch.mul(x, logistic, out=logistic)

    @staticmethod
    @once_differentiable
    def backward(ctx, grad: Tensor) -> Tensor:
        (derivative,) = ctx.saved_tensors
        return grad * derivative


@contextmanager
def forward_by(module: nn.Module, forward: Callable[..., Tensor]) -> Iterator[None]:
    """Let a module compute its output by another function."""
    module.forward = forward
    try:
        yield
    finally:
        del module.forward


@contextmanager
def dense_layers(model: nn.Module, device: torch.device, precision: str) -> Iterator[None]:
    """Run the dense layers of a network with weights in `precision`; the weights themselves stay in fp32.

    In low precision weights are cast once for a pass, not for each batch.
    On a CPU in bf16 they are also packed as oneDNN reads them, and a GELU is computed on the sums of the
    product before it, in fp32, where torch's own tanh form takes as long as that product. Products keep their
    bits; only values that a GELU changes do not, since its input is not rounded.
    In fp32 on a CPU, what is computed from one vector per image is computed in blocks, so that no bit of it
    depends on the batch size.
    Sharded weights are left to autocast. Within the context nothing may change the weights.
    """
    dtype = LOW_PRECISION.get(precision)
    is_packed = device.type == "cpu" and dtype == torch.bfloat16 and HAS_BF16 and _has_onednn()
    layers = [m for m in model.modules() if type(m) is nn.Linear and type(m.weight) is nn.Parameter]
    forward: dict[nn.Module, Callable[..., Tensor]] = {}
    for layer in layers if dtype or device.type == "cpu" else ():
        if is_packed:
            forward[layer] = _packed(layer, NO_ACTIVATION)
        elif dtype:
            forward[layer] = _cast(layer, dtype)
        else:
            forward[layer] = partial(_by_blocks, weight=layer.weight, bias=layer.bias)
    for mlp in model.modules() if is_packed else ():
        if type(mlp) is Mlp and mlp.fc1 in layers and (form := _gelu_form(mlp.act)):
            forward[mlp.fc1] = _packed(mlp.fc1, ("gelu", [], form))
            forward[mlp.act] = nn.Identity().forward
    with ExitStack() as stack:
        for module, instead in forward.items():
            stack.enter_context(forward_by(module, instead))
        yield


@cache
def _has_onednn() -> bool:
    """Return whether torch has oneDNN's packed products."""

    def is_product() -> bool:
        rows, weight, bias = torch.eye(3, 24), torch.ones(8, 24), torch.arange(8.0)
        rows, weight, bias = (tensor.to(torch.bfloat16) for tensor in (rows, weight, bias))
        packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        product = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, *NO_ACTIVATION)
        gelu = torch.ops.mkldnn._linear_pointwise(rows, packed, bias, "gelu", [], "tanh")
        expected = F.linear(rows, weight, bias)
        return torch.equal(product, expected) and torch.allclose(
            gelu, F.gelu(expected, approximate="tanh"), atol=0.02, rtol=0.01
        )

    return torch.backends.mkldnn.is_available() and _is_as_known("oneDNN's packed product", is_product)


def _gelu_form(activation: nn.Module) -> str | None:
    """Return oneDNN's name of a GELU's form, or None for another activation."""
    if isinstance(activation, nn.GELU):
        return activation.approximate
    return "tanh" if isinstance(activation, GELUTanh) else "none" if isinstance(activation, GELU) else None


def _by_blocks(x: Tensor, *, weight: Tensor, bias: Tensor | None) -> Tensor:
    if x.ndim != 2 or not len(x):  # rows of several tokens per image are many
        return F.linear(x, weight, bias)
    blocks = F.pad(x, (0, 0, 0, -len(x) % BLOCK_ROWS)).split(BLOCK_ROWS)
    return torch.cat([F.linear(block, weight, bias) for block in blocks])[: len(x)]


def _cast(layer: nn.Linear, dtype: torch.dtype) -> partial[Tensor]:
    bias = None if layer.bias is None else layer.bias.detach().to(dtype)
    return partial(F.linear, weight=layer.weight.detach().to(dtype), bias=bias)


def _packed(layer: nn.Linear, activation: tuple) -> partial[Tensor]:
    cast = _cast(layer, torch.bfloat16).keywords
    weight = torch.ops.mkldnn._reorder_linear_weight(cast["weight"])
    return partial(_linear, weight=weight, bias=cast["bias"], activation=activation)


def _linear(x: Tensor, *, weight: Tensor, bias: Tensor | None, activation: tuple) -> Tensor:
    x = x.to(torch.bfloat16).contiguous()  # oneDNN reads strided rows wrongly
    return torch.ops.mkldnn._linear_pointwise(x, weight, bias, *activation)
