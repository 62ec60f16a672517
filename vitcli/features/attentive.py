"""Attentive pooling: tokens weighted by a few learnt queries, and its leave-one-out score that stays honest.

Q queries q_j of width D pool the standardised tokens z_t of an image to Q * D features:

    p_j = sum_t softmax_t(q_j . z_t / sqrt(D)) z_t

They are learnt together with a linear classifier of the features, which is dropped; as the attention pooling
of Lee et al., Set Transformer (arXiv 1810.00825), with one head and no further weights.

An image whose label has taught the queries is not left out of them. So they are learnt twice, each time from
one half of the images: with those of half A all images are pooled and the closed form is fitted, and only
the images of half B are scored, each left out; then the other way round. No image's label teaches what its
score comes from.

M images, T tokens, D width, Q queries, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

NUM_QUERIES = 4
EPOCHS, BATCH_SIZE, LR, WEIGHT_DECAY = 20, 64, 3e-3, 0.1
SEED = 0
STD_ADDED = 1e-5


@dataclass(frozen=True, eq=False)
class Queries:
    """Learnt queries (Q, D), and the standardisation of the tokens that they are for."""

    queries_QD: torch.Tensor
    mean_D: torch.Tensor
    std_D: torch.Tensor

    def pool(self, tokens_MTD: np.ndarray) -> np.ndarray:
        """Return the features (M, Q * D), float32."""
        parts = []
        with _one_thread(), torch.no_grad():
            for first in range(0, len(tokens_MTD), BATCH_SIZE):
                tokens_BTD = torch.from_numpy(tokens_MTD[first : first + BATCH_SIZE])
                parts.append(_pooled((tokens_BTD - self.mean_D) / self.std_D, self.queries_QD).numpy())
        return np.concatenate(parts)


def learn_queries(
    tokens_MTD: np.ndarray,
    labels_M: np.ndarray,
    rows: np.ndarray,
    *,
    num_classes: int,
    on_epoch: Callable[[], None] = lambda: None,
) -> Queries:
    """Learn queries from these rows of the tokens by AdamW; the same input gives the same bits.

    Args:
        on_epoch: called after each epoch.
    """
    # Moments of all tokens of these rows, in float64 a part at a time: they may fill half the memory.
    sums_2D, count = np.zeros((2, tokens_MTD.shape[2])), len(rows) * tokens_MTD.shape[1]
    for first in range(0, len(rows), BATCH_SIZE):
        part_XD = tokens_MTD[rows[first : first + BATCH_SIZE]].reshape(-1, tokens_MTD.shape[2])
        part_XD = part_XD.astype(np.float64)
        sums_2D += part_XD.sum(axis=0), np.square(part_XD).sum(axis=0)
    mean_D = sums_2D[0] / count
    std_D = np.sqrt(np.maximum(sums_2D[1] / count - mean_D**2, 0)) + STD_ADDED
    mean_D, std_D = (torch.from_numpy(values_D).float() for values_D in (mean_D, std_D))

    # Queries near zero: attention begins at the mean of the tokens.
    generator, width = torch.Generator().manual_seed(SEED), tokens_MTD.shape[2]
    queries_QD = nn.Parameter(0.02 * torch.randn(NUM_QUERIES, width, generator=generator))
    weights_KX = nn.Parameter(torch.zeros(num_classes, NUM_QUERIES * width))
    bias_K = nn.Parameter(torch.zeros(num_classes))
    optimizer = torch.optim.AdamW([queries_QD, weights_KX, bias_K], lr=LR, weight_decay=WEIGHT_DECAY)
    steps = EPOCHS * -(-len(rows) // BATCH_SIZE)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, steps)
    labels_M = torch.from_numpy(labels_M)
    with _one_thread(), torch.enable_grad():
        for _ in range(EPOCHS):
            order = torch.randperm(len(rows), generator=generator).numpy()
            for first in range(0, len(rows), BATCH_SIZE):
                batch = rows[order[first : first + BATCH_SIZE]]
                tokens_BTD = (torch.from_numpy(tokens_MTD[batch]) - mean_D) / std_D
                pooled_BX = _pooled(tokens_BTD, queries_QD) / NUM_QUERIES
                loss = F.cross_entropy(F.linear(pooled_BX, weights_KX, bias_K), labels_M[batch])
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
            on_epoch()
    return Queries(queries_QD.detach(), mean_D, std_D)


def halves(labels_M: np.ndarray, groups_M: np.ndarray) -> np.ndarray:
    """Return the half of each row, 0 or 1: of each class as many rows or, where rows have one, whole groups.

    A group goes where its first row's class is behind, so that it is never separated.
    """
    order = np.random.default_rng(SEED).permutation(len(labels_M))
    first_rows = {}
    for row in order.tolist():
        first_rows.setdefault(int(groups_M[row]), row)
    in_half, half_of = np.zeros((2, int(labels_M.max()) + 1), dtype=int), {}
    sizes = dict(zip(*np.unique(groups_M, return_counts=True), strict=True))
    for group, row in first_rows.items():
        label = labels_M[row]
        half_of[group] = int(in_half[0, label] > in_half[1, label])
        in_half[half_of[group], label] += sizes[group]
    return np.array([half_of[int(group)] for group in groups_M])


def _pooled(tokens_BTD: torch.Tensor, queries_QD: torch.Tensor) -> torch.Tensor:
    scores_BTQ = tokens_BTD @ queries_QD.T / tokens_BTD.shape[2] ** 0.5
    return (scores_BTQ.softmax(dim=1).transpose(1, 2) @ tokens_BTD).flatten(1)


class _one_thread:
    """Compute with one thread inside: sums in another order would be other queries after some steps."""

    def __enter__(self) -> None:
        self.num_threads = torch.get_num_threads()
        torch.set_num_threads(1)

    def __exit__(self, *_: object) -> None:
        torch.set_num_threads(self.num_threads)
