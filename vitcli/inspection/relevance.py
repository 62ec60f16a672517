"""The patches that carry an answer: attention times its gradient, through all layers (arXiv 2103.15679).

    R_0 = I
    R_l = R_{l-1} + mean over heads of max(0, A_l * d score / d A_l)  R_{l-1}

A patch counts as the output's token, or the mean of the patches, reads it in R_L. Unlike attention rollout
(`analysis.rollout_layer`) it is about one score: attention that does not raise that score counts nothing.

B images, A heads, S prefix tokens, N = I * J patches, T = S + N tokens.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from vitcli.inspection.analysis import output_attention
from vitcli.inspection.attention import AttentionLayout, record_attention


def patch_relevance(
    model: nn.Module, layout: AttentionLayout, images_BCHW: Tensor, score: Callable[[Tensor], Tensor]
) -> Tensor:
    """Return how much each patch carries the score of its image, (B, I, J) float64 on the CPU, from 0.

    Args:
        score: of the output of `model` (B, ...), (B,); differentiable.
    """
    attentions: list[Tensor] = []
    images_BCHW = images_BCHW.detach().clone().requires_grad_()  # the weights need no gradient
    with (
        torch.enable_grad(),
        record_attention(model, lambda _, weights_BATT: attentions.append(weights_BATT)),
    ):
        total = score(model(images_BCHW)).sum()
        gradients = torch.autograd.grad(total, attentions)

    relevance_BTT = torch.eye(attentions[0].shape[-1], dtype=torch.float64).expand(len(images_BCHW), -1, -1)
    for weights_BATT, gradient_BATT in zip(attentions, gradients, strict=True):
        raised_BTT = (weights_BATT.detach() * gradient_BATT).clamp_min(0).mean(dim=1).cpu().double()
        relevance_BTT = relevance_BTT + raised_BTT @ relevance_BTT
    relevance_BN = output_attention(
        relevance_BTT, num_prefix=layout.num_prefix, reads_token=layout.reads_token
    )
    return relevance_BN.unflatten(1, layout.grid)
