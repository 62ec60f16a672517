"""What a network says of the images of a split: features, labels, groups, and logits if they are asked for.

Heads are fitted to them, candidates compared and a finished classifier calibrated. The network that a run
delivers sees each image once: a method that has made a pass for a purpose of its own leaves the outputs for
the others, see `PeriodicEvaluation.keep`.

N rows, D features, K classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from vitcli.data.parts.splitting import random_subset
from vitcli.data.split import Split
from vitcli.evaluation.inference import RowOutputs
from vitcli.evaluation.mistakes import places_of
from vitcli.training.schedule import Plan

PART_OF_RUN = 0.16  # of the images that the steps see: a pass takes no more time than a 20th of them
LEAST_ROWS, MOST_ROWS = 1_000, 20_000  # of a pass over training images: more change a closed form little
MOST_KEPT = 5_000  # rows that are kept for others, or calibrate; beyond, more change little


@dataclass(frozen=True, eq=False)
class Outputs:
    """Outputs of a network for rows of a split.

    Attributes:
        features_ND, logits_NK: float32; logits have no columns where they are not asked for.
        groups_N: of each row; None for groups of one row.
        place_of: where a row, by its number here, comes from.
    """

    features_ND: np.ndarray
    logits_NK: np.ndarray
    labels_N: np.ndarray
    groups_N: np.ndarray | None
    place_of: Callable[[int], str] = str

    def __add__(self, other: "Outputs") -> "Outputs":
        count = len(self.labels_N)
        return Outputs(
            np.concatenate([self.features_ND, other.features_ND]),
            np.concatenate([self.logits_NK[:, :0], other.logits_NK[:, :0]]),  # one of them may have none
            np.append(self.labels_N, other.labels_N),
            None if self.groups_N is None else np.append(self.groups_N, other.groups_N),
            lambda row: self.place_of(row) if row < count else other.place_of(row - count),
        )


def num_rows(split: Split, plan: Plan) -> int:
    """Return how many training images a pass before or after the steps is of."""
    return min(len(split), MOST_ROWS, max(LEAST_ROWS, int(PART_OF_RUN * plan.images_seen)))


def sample(split: Split, most_rows: int) -> Split:
    """Return the rows with a label, or of more than `most_rows` a random sample that no seed changes."""
    is_labelled_N = split.read_labels() >= 0
    labelled = split if is_labelled_N.all() else split.rows(np.flatnonzero(is_labelled_N))
    return random_subset(labelled, most_rows, seed=0) if len(labelled) > most_rows else labelled


def of_rows(rows: RowOutputs, split: Split) -> Outputs:
    """Return the rows of a pass over a split that have a label and finite numbers alone."""
    kept_N = rows.features_ND.isfinite().all(dim=1) & rows.logits_NK.isfinite().all(dim=1)
    kept_N &= rows.labels_N >= 0
    of_each = (rows.features_ND, rows.logits_NK, rows.labels_N, rows.rows_N)
    features_ND, logits_NK, labels_N, rows_N = (values_N[kept_N].numpy() for values_N in of_each)
    groups_N = None if split.groups_N is None else split.groups_N[rows_N]
    return Outputs(
        features_ND, logits_NK, labels_N, groups_N, lambda row: places_of(split, rows_N[row : row + 1])[0]
    )
