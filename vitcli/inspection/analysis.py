"""Analyses of the paper's figures on the inside of a network (sections 4.5, D.7 and D.8), on plain tensors.

B images, A heads, S prefix tokens such as the class token, N = H*W patches, T = S + N tokens, D filters or
hidden width, C channels, P x Q a filter's height and width, K components.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

LEAST_FRACTION = 1e-12  # of the variance; a component below is rounding error without a direction


def filter_components(filters_DCPQ: Tensor, num_components: int) -> tuple[Tensor, Tensor]:
    """Return the principal components of the patch embedding's filters (paper, Figure 7, left).

    Each filter is one vector of C*P*Q numbers, centred over the filters as usual; the paper does not say. The
    sign of a component is arbitrary: here its largest entry is positive.

    Returns:
        (K, C, P, Q) components of length 1, by falling variance, and (K,) their fractions of the variance;
        float64. K is `num_components`, or fewer where the filters span fewer dimensions.
    """
    filters_DF = filters_DCPQ.double().flatten(1)
    directions_KF, fractions_K = _components(filters_DF, num_components)
    return directions_KF.unflatten(1, filters_DCPQ.shape[1:]), fractions_K


def position_similarity(posemb_ND: Tensor) -> Tensor:
    """Return the cosine similarity of position embeddings (N, N), float64 (paper, Figure 7, centre).

    It is 0 where an embedding is zero.
    """
    directions_ND = F.normalize(posemb_ND.double(), dim=-1)
    return directions_ND @ directions_ND.T


def similarity_by_offset(similarity_NN: Tensor, grid: tuple[int, int]) -> dict[str, float | None]:
    """Return the mean similarity of pairs in one row, in one column, and in neither; None without pairs."""
    rows_N, columns_N = _rows_and_columns(grid)
    in_row_NN, in_column_NN = rows_N[:, None] == rows_N, columns_N[:, None] == columns_N
    pairs = {
        "same_row": in_row_NN & ~in_column_NN,
        "same_column": in_column_NN & ~in_row_NN,
        "elsewhere": ~in_row_NN & ~in_column_NN,
    }
    return {
        name: float(similarity_NN[is_pair_NN].mean()) if is_pair_NN.any() else None
        for name, is_pair_NN in pairs.items()
    }


def patch_distances(grid: tuple[int, int], patch_size: int) -> Tensor:
    """Return the distances in pixels between the centres of patches (N, N), float64.

    Args:
        grid: (H, W) in patches.
        patch_size: pixels from one patch to the next, for a hybrid its whole stride (paper, section D.7).
    """
    centres_N2 = patch_size * torch.stack(_rows_and_columns(grid), dim=1).double()
    return (centres_N2[:, None] - centres_N2).norm(dim=-1)


def attention_distance(
    attention_BATT: Tensor, distances_NN: Tensor, *, num_prefix: int, renormalise: bool
) -> Tensor:
    """Return the mean attention distance of each head (B, A), in pixels (paper, section D.7 and Figure 7).

        distance = 1/N sum_q sum_k a(q, k) |q - k| / z(q)       q, k patches
        z(q)     = sum_k a(q, k) with `renormalise`, else 1

    Prefix tokens have no place in the image and are left out, as queries and as keys.

    Args:
        attention_BATT: rows are queries and sum to 1.
        distances_NN: see `patch_distances`; in the dtype and on the device of the attention.
        renormalise: make the weights on the patches sum to 1 again, as in an average. The paper does not say;
            widely copied code does not, so that attention to prefix tokens counts as distance 0.
    """
    weights_BANN = attention_BATT[..., num_prefix:, num_prefix:]
    lengths_BAN = torch.einsum("baij,ij->bai", weights_BANN, distances_NN)
    if renormalise:
        # A query that attends to prefix tokens alone has a distance of 0, not 0 / 0.
        lengths_BAN = lengths_BAN / weights_BANN.sum(dim=-1).clamp_min(torch.finfo(weights_BANN.dtype).tiny)
    return lengths_BAN.mean(dim=-1)


def rollout_layer(below_BTT: Tensor | None, attention_BATT: Tensor, *, residual: bool) -> Tensor:
    """Return the attention rollout (B, T, T) from a layer's tokens to the input tokens (paper, section D.8).

        rollout_l = A_l rollout_{l-1},  rollout_0 = I
        A_l       = mean over heads of the attention; with `residual` (A_l + I) / 2, rows scaled to sum 1

    Args:
        below_BTT: the rollout of the layer below, None for the first layer.
        residual: model the skip connection as attention of each token to itself, half and half, as in the
            method's own paper (Abnar & Zuidema, arXiv 2005.00928); the ViT paper's text leaves that out.
    """
    mean_BTT = attention_BATT.mean(dim=1)
    if residual:
        mean_BTT = (mean_BTT + torch.eye(mean_BTT.shape[-1]).to(mean_BTT)) / 2
        mean_BTT = mean_BTT / mean_BTT.sum(dim=-1, keepdim=True)
    return mean_BTT if below_BTT is None else mean_BTT @ below_BTT


def output_attention(attention_XTT: Tensor, *, num_prefix: int, reads_token: bool) -> Tensor:
    """Return the output's attention to each patch (..., N): the class token's row, or the patches' mean."""
    queries_XTT = attention_XTT[..., :1, :] if reads_token else attention_XTT[..., num_prefix:, :]
    return queries_XTT.mean(dim=-2)[..., num_prefix:]


def feature_colours(features_BND: Tensor) -> tuple[Tensor, Tensor]:
    """Return features as colours: their first three principal components over all images together.

    Returns:
        (B, N, 3) red, green and blue from 0 to 1, each scaled from its 1st to its 99th percentile, and (3,)
        their fractions of the variance; 0 for missing components.
    """
    flat_MD = features_BND.double().flatten(0, 1)
    directions_KD, fractions_K = _components(flat_MD, 3)
    missing = 3 - len(fractions_K)
    directions_3D, fractions_3 = F.pad(directions_KD, (0, 0, 0, missing)), F.pad(fractions_K, (0, missing))
    values_M3 = (flat_MD - flat_MD.mean(dim=0)) @ directions_3D.T
    sorted_M3 = values_M3.sort(dim=0).values  # torch.quantile takes 16 million numbers at most
    low_3, high_3 = (sorted_M3[round(fraction * (len(sorted_M3) - 1))] for fraction in (0.01, 0.99))
    span_3 = torch.where(high_3 > low_3, high_3 - low_3, 1.0)
    colours_M3 = torch.where(fractions_3 > 0, ((values_M3 - low_3) / span_3).clamp(0, 1), 0.5)
    return colours_M3.unflatten(0, features_BND.shape[:2]), fractions_3


def attention_overlay(
    images_BHWC: Tensor, maps_Bhw: Tensor, *, full_at: float, darkest: float = 0.0
) -> Tensor:
    """Return images (B, H, W, C), uint8, darkened where their attention map is low (paper, section D.8).

    Args:
        maps_Bhw: attention by patch, enlarged bilinearly.
        full_at: quantile of a map from which on the image keeps its brightness; with 1 only the largest
            value does, and one patch that draws all attention leaves the rest dark.
        darkest: fraction of the brightness that is kept where a map is 0.
    """
    full_B1 = maps_Bhw.flatten(1).double().quantile(full_at, dim=1, keepdim=True).clamp_min(1e-30)
    light_Bhw = darkest + (1 - darkest) * (maps_Bhw / full_B1[:, :, None]).clamp_max(1)
    light_B1hw = light_Bhw[:, None].float()
    light_B1HW = F.interpolate(light_B1hw, size=images_BHWC.shape[1:3], mode="bilinear", align_corners=False)
    return (images_BHWC * light_B1HW.permute(0, 2, 3, 1)).round().to(torch.uint8)


def map_correlation(first_MHW: Tensor, second_MHW: Tensor) -> Tensor:
    """Return the Pearson correlation (M,) of maps of the same images; the smaller grid is enlarged."""
    maps = (first_MHW, second_MHW)
    size = max((map_MHW.shape[1:] for map_MHW in maps), key=lambda shape: shape[0] * shape[1])
    enlarged = [
        F.interpolate(map_MHW[:, None].double(), size=size, mode="bilinear", align_corners=False).flatten(1)
        for map_MHW in maps
    ]
    return F.cosine_similarity(*(values - values.mean(dim=1, keepdim=True) for values in enlarged), dim=1)


def _components(vectors_MF: Tensor, num_components: int) -> tuple[Tensor, Tensor]:
    """Return principal directions (K, F) and their fractions of the variance (K,)."""
    # Eigenvectors of the smaller of X'X and XX', in ascending order.
    centred_MF = vectors_MF - vectors_MF.mean(dim=0)
    is_wide = centred_MF.shape[0] < centred_MF.shape[1]
    square = centred_MF @ centred_MF.T if is_wide else centred_MF.T @ centred_MF
    values, vectors = torch.linalg.eigh(square)
    values, vectors = values.flip(0).clamp_min(0), vectors.flip(1)
    # Equal vectors differ by rounding errors, which have no direction.
    total, least = values.sum(), LEAST_FRACTION * vectors_MF.square().sum()
    fractions = values / total if total > least else torch.zeros_like(values)
    num_kept = int((fractions[:num_components] > LEAST_FRACTION).sum())
    kept = vectors[:, :num_kept]
    directions_KF = F.normalize(centred_MF.T @ kept if is_wide else kept, dim=0).T
    # The largest entry of each direction is positive.
    largest_K1 = directions_KF.abs().argmax(dim=1, keepdim=True) if num_kept else None
    signs_K1 = directions_KF.gather(1, largest_K1).sign() if num_kept else 1
    return directions_KF * signs_K1, fractions[:num_kept]


def _rows_and_columns(grid: tuple[int, int]) -> tuple[Tensor, Tensor]:
    height, width = grid
    places_N = torch.arange(height * width)
    return places_N // width, places_N % width
