"""Groups of rows divided among parts, each with its fraction of every class; no group is ever separated.

A greedy assignment as scikit-learn's `StratifiedGroupKFold` makes: the largest groups first, each to the part
that it moves least away from its fraction. The distance is that of Pearson's chi-squared test,

    sum over parts p and columns c of (held_pc - f_p T_c)^2 / (f_p T_c),

where column c counts the rows of a class, or all rows, T_c of them in total, and f_p is the part's fraction.
So a group that holds n_c rows goes to the part with the smallest growth, the sum over c of
n_c (2 held_pc + n_c) / (f_p T_c); of several equal ones to the first.

Letters: N rows, G groups, P parts, K classes, C = K + 1 columns, M labels of a row.
"""

from collections.abc import Sequence

import numpy as np

EQUAL = 1e-9  # relative difference below which two sums differ by their rounding alone
REST, HELD_OUT = 0, 1


class GroupCounts:
    """How many rows of each class are in each group.

    Args:
        groups_N: group of each row, 0 to G - 1.
        labels: (N,) classes, or (N, M) filled up with -1; of other numbers all rows are one class.
        order_N: all rows; of groups of equal size that with the first row is the first.

    Attributes:
        totals_C: rows of each class, and of all.
        order_G: the groups, the largest first.
    """

    def __init__(self, groups_N: np.ndarray, labels: np.ndarray, *, order_N: np.ndarray):
        self.groups_N, self.num_groups = groups_N, int(groups_N.max()) + 1
        labels_NM = labels.reshape(len(labels), -1)
        if labels_NM.dtype.kind not in "iu":
            labels_NM = np.full((len(labels), 1), -1)
        num_columns = int(labels_NM.max(initial=-1)) + 2
        # A cell is a group and a column; the last column has every row.
        columns_NC = np.concatenate([labels_NM, np.full((len(labels), 1), num_columns - 1)], axis=1)
        cells_NC = groups_N[:, None] * num_columns + columns_NC
        cells, self.counts = np.unique(cells_NC[columns_NC >= 0], return_counts=True)
        self.columns = cells % num_columns
        self.starts_G1 = np.searchsorted(cells // num_columns, np.arange(self.num_groups + 1))
        self.totals_C = np.bincount(self.columns, weights=self.counts, minlength=num_columns)
        # The largest group first, of equal ones the first in the order of rows.
        place_N = np.empty(len(groups_N), dtype=np.int64)
        place_N[order_N] = np.arange(len(groups_N))
        first_G = np.full(self.num_groups, len(groups_N))
        np.minimum.at(first_G, groups_N, place_N)
        self.order_G = np.lexsort((first_G, -np.bincount(groups_N)))

    def of(self, group: int) -> tuple[np.ndarray, np.ndarray]:
        """Return the columns that a group has rows in, all rows the last, and their numbers of rows."""
        cells = slice(self.starts_G1[group], self.starts_G1[group + 1])
        return self.columns[cells], self.counts[cells]

    def sole_groups(self) -> np.ndarray:
        """Return which groups have all rows of some class, (G,) bool."""
        is_whole = (self.counts == self.totals_C[self.columns]) & (self.columns < len(self.totals_C) - 1)
        groups = np.repeat(np.arange(self.num_groups), np.diff(self.starts_G1))
        is_sole_G = np.zeros(self.num_groups, dtype=bool)
        is_sole_G[groups[is_whole]] = True
        return is_sole_G


def divide(groups: GroupCounts, fractions_P: Sequence[float], *, rest_G: np.ndarray) -> np.ndarray:
    """Return the part of each group, (G,) int64, see the module's docstring.

    Args:
        rest_G: which groups stay in the first part, (G,) bool.
    """
    targets_PC = np.outer(fractions_P, groups.totals_C)
    held_PC = np.zeros_like(targets_PC)
    part_G = np.zeros(groups.num_groups, dtype=np.int64)
    for group in groups.order_G[np.argsort(~rest_G[groups.order_G], kind="stable")]:
        columns, counts = groups.of(group)
        growth_P = (counts * (2 * held_PC[:, columns] + counts) / targets_PC[:, columns]).sum(axis=1)
        part = 0 if rest_G[group] else np.flatnonzero(growth_P <= growth_P.min() * (1 + EQUAL))[0]
        part_G[group] = part
        held_PC[part, columns] += counts
    return part_G


def folds_of(groups: GroupCounts, num_folds: int) -> np.ndarray:
    """Return the fold of each row, (N,) int64 from 0: as even in every class as whole groups allow.

    No fold is empty unless there are more folds than groups.
    """
    none_G = np.zeros(groups.num_groups, dtype=bool)
    return divide(groups, [1 / num_folds] * num_folds, rest_G=none_G)[groups.groups_N]


def held_out_rows(
    groups: GroupCounts, fraction: float, *, last_G: np.ndarray, every_class: bool
) -> np.ndarray:
    """Return which rows are held out, (N,) bool: whole groups, as near to `fraction` as they allow.

    Args:
        last_G: groups that are held out only where there are no others, (G,) bool.
        every_class: hold out a group at least of each class with two or more, and never all of a class.
    """
    sole_G = groups.sole_groups() if every_class else np.zeros(groups.num_groups, dtype=bool)
    part_G = divide(groups, [1 - fraction, fraction], rest_G=sole_G | last_G)
    if every_class:
        _repair(groups, part_G, sole_G=sole_G, last_G=last_G)
    elif not part_G.any():
        part_G[_smallest(groups, ~last_G if not last_G.all() else last_G)] = HELD_OUT
    return (part_G == HELD_OUT)[groups.groups_N]


def _repair(groups: GroupCounts, part_G: np.ndarray, *, sole_G: np.ndarray, last_G: np.ndarray) -> None:
    """Move the smallest groups of classes that are held out whole, then of those not held out at all."""
    group_of_cell = np.repeat(np.arange(groups.num_groups), np.diff(groups.starts_G1))
    groups_of_class = [group_of_cell[groups.columns == label] for label in range(len(groups.totals_C) - 1)]

    def leaves_some(group: int) -> bool:
        classes = groups.of(group)[0][:-1]
        return all((part_G[groups_of_class[label]] == REST).sum() > 1 for label in classes)

    for to_part in (REST, HELD_OUT):
        for of_class in groups_of_class:
            if not len(of_class) or (part_G[of_class] == to_part).any():
                continue
            may_move_G = np.zeros(groups.num_groups, dtype=bool)
            for group in of_class:
                may_move_G[group] = to_part == REST or (not sole_G[group] and leaves_some(group))
            if to_part == HELD_OUT and (may_move_G & ~last_G).any():
                may_move_G &= ~last_G
            if may_move_G.any():
                part_G[_smallest(groups, may_move_G)] = to_part


def _smallest(groups: GroupCounts, among_G: np.ndarray) -> int:
    """Return the smallest of some groups; of equal ones the last in their order, which was assigned last."""
    return int(groups.order_G[among_G[groups.order_G]][-1])
