"""What is cut from a split: the part held out to choose or report by, folds, and random subsets.

No cut separates a group of `data.group_column`. Letters: N rows, K classes, G groups.
"""

import re
from dataclasses import replace
from functools import partial

import numpy as np

from vitcli.data import sampler
from vitcli.data.parts.group_assignment import GroupCounts, folds_of, held_out_rows
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output.text import count_of
from vitcli.recipe.group_rule import NEAR_DUPLICATES

KEY = "recipe key data.group_column"
PART = re.compile(r" \([\d,]+ of ([\d,]+) images\)$")  # ends the name of what is left to train on


def groups_to_divide(split: Split) -> np.ndarray | None:
    """Return the group of each row of a split that is to be divided, (N,) int64 from 0; None without groups.

    Raises:
        DataError: the groups cannot be divided: there is one, or each of them has all images of its class.
    """
    if split.grouping is None:
        return None
    groups_N = np.unique(split.grouping.groups_N, return_inverse=True)[1]
    labels_N, where = split.read_labels(), f"{KEY} = {split.grouping.rule!r}"
    if groups_N.max() == 0:
        apart = "images" if split.grouping.rule == NEAR_DUPLICATES else "objects, patients or scenes"
        raise DataError(
            f"all {len(groups_N):,} images of {split.name} are one group, which cannot be divided",
            where=where,
            fix=f"name what tells {apart} apart, or leave the key out",
        )
    has_classes = labels_N.ndim == 1 and labels_N.dtype.kind in "iu"
    num_groups, num_classes = groups_N.max() + 1, len(np.unique(labels_N)) if has_classes else 1
    if num_classes == num_groups == len(np.unique(groups_N * split.num_classes + labels_N)):
        raise DataError(
            f"the groups of {split.name} are its classes, so a class that is held out would not be trained",
            where=where,
            fix="name what tells objects, patients or scenes of one class apart, or leave the key out",
        )
    return groups_N


def cut_dev(
    train: Split,
    *,
    dev_fraction: float,
    split: str,
    stratified: bool = False,
    order_N: np.ndarray | None = None,
    was_trained_N: np.ndarray | None = None,
) -> tuple[Split, Split]:
    """Return the rows to train on, and a `dev_fraction` of all to choose or report by (paper, section B.1.1).

    The cut depends on the split alone, never on the run's seed, so that all runs choose by the same rows. The
    dev part remembers what it was cut from, by the name `split`. No group of the rows is separated.

    Args:
        stratified: draw from each class, where every row has one label and all labels can be read at once.
        order_N: all rows; of each class the first are held out, see `seen_images.held_out_order`. None for a
            shuffle of the row numbers.
        was_trained_N: rows whose groups are held out only where there are no others, (N,) bool.
    """
    has_classes = not (train.is_multilabel or train.has_numbers)
    is_stratified = stratified and has_classes and not train.is_large
    if train.grouping:
        rest, dev = _cut_groups(train, dev_fraction, is_stratified, order_N, was_trained_N)
    else:
        cut = partial(_cut_by_class, order_N=order_N) if is_stratified else _cut_at_random
        rest, dev = cut(train, dev_fraction)
    if is_stratified and not len(dev):
        two = "two groups" if train.grouping else "two images"
        can_be_drawn = 0 < round(dev_fraction * len(train)) < len(train)
        instead = ", or draw from all of them at once with --set data.dev_stratified=false"
        raise DataError(
            f"no class of {train.name} has {two}, so none can be held out",
            where="recipe keys data.dev_fraction and data.dev_stratified",
            fix=f"add images{instead if can_be_drawn else ''}",
        )
    if not (len(rest) and len(dev)):
        raise DataError(
            f"a dev part of {100 * dev_fraction:.3g}% of {train.name}, {len(train)} rows, "
            "leaves one side empty",
            where="recipe key data.dev_fraction",
            fix="name the split to report on with data.eval_split, or choose another fraction",
        )
    by_content = (is_stratified or train.grouping is not None) and order_N is not None
    about = {"split": split, "fraction": dev_fraction, "stratified": is_stratified, "num_rows": len(train)}
    about |= {"fingerprint": train.fingerprint, "by_content": by_content}
    about |= {"group_column": train.grouping.rule} if train.grouping else {}
    base, rest_name = _names_after_cut(train, len(rest))
    dev_name = f"{base}, {'second ' if PART.search(train.name) else ''}dev part"
    return replace(rest, name=rest_name), replace(dev, name=dev_name, dev_cut=about)


def cut_fold(train: Split, fold: int, folds_N: np.ndarray, *, split: str) -> tuple[Split, Split]:
    """Return all rows but those of one fold, and these, which remember what they were cut from.

    Args:
        fold: its number, from 1.
        folds_N: see `fold_of_rows`.
    """
    num_folds, is_held_N = int(folds_N.max()) + 1, folds_N == fold - 1
    rest, held = _parted(train, is_held_N)
    about = {"split": split, "fraction": 1 / num_folds, "fold": fold, "folds": num_folds}
    about |= {"num_rows": len(train), "fingerprint": train.fingerprint}
    about |= {"group_column": train.grouping.rule} if train.grouping else {}
    base, rest_name = _names_after_cut(train, len(rest))
    held = replace(held, name=f"{base}, fold {fold} of {num_folds}", dev_cut=about)
    return replace(rest, name=rest_name), held


def fold_of_rows(train: Split, num_folds: int, *, order_N: np.ndarray | None) -> np.ndarray:
    """Return the fold of each row, (N,) int64 from 0: every row is held out once.

    Each fold has as near to its fraction of every class as whole groups allow.

    Args:
        order_N: all rows in an order by content, see `seen_images.held_out_order`; None for a shuffle.

    Raises:
        DataError: there are more folds than images or groups, or too many images to be divided.
    """
    if train.is_large:
        raise DataError(
            f"{train.name} is read as shards, or too large to be divided into folds",
            where="--folds (recipe key train.folds)",
            fix="leave it out: of this many images a held-out part is large enough",
        )
    groups_N = groups_to_divide(train)
    groups_N = np.arange(len(train)) if groups_N is None else groups_N
    counts = GroupCounts(groups_N, train.read_labels(), order_N=_row_order(train, order_N))
    if counts.num_groups < num_folds:
        rule = train.grouping and train.grouping.rule
        what = f"groups (data.group_column = {rule!r})" if rule else "images"
        raise DataError(
            f"{train.name} has {counts.num_groups} {what}, too few for {num_folds} folds",
            where="--folds (recipe key train.folds)",
            fix=f"--folds {counts.num_groups} or less: each fold holds out one at least",
        )
    return folds_of(counts, num_folds)


def random_subset(split: Split, num_examples: int, *, seed: int, keeps_groups: bool = False) -> Split:
    """Draw `num_examples` rows without replacement; of shards whole blocks are drawn.

    Args:
        keeps_groups: draw whole groups, in random order each that still fits, so that it may be fewer rows.
    """
    if num_examples > len(split):
        raise DataError(
            f"data.num_examples is {num_examples}, and {split.name} has {len(split)}",
            where="recipe key data.num_examples",
            fix=f"a number up to {len(split)}, or leave the key out",
        )
    key, name = sampler.derive_seed(seed, "subset", num_examples), f"{num_examples} of {split.name}"
    if keeps_groups and split.grouping and (groups_N := groups_to_divide(split)) is not None:
        return _subset_of_groups(split, groups_N, split.grouping.rule, num_examples, key=key)
    if split.block_starts is not None:
        return split.random_blocks(num_examples, name=name, key=key)
    return split.part(0, num_examples, name=name, shuffle_key=key)


def _subset_of_groups(split: Split, groups_N: np.ndarray, rule: str, num_examples: int, *, key: int) -> Split:
    sizes_G = np.bincount(groups_N)
    drawn_G, left = np.zeros(len(sizes_G), dtype=bool), num_examples
    for group in sampler.permute(np.arange(len(sizes_G)), num_examples=len(sizes_G), key=key):
        if sizes_G[group] <= left:
            drawn_G[group], left = True, left - sizes_G[group]
    if not drawn_G.any():
        raise DataError(
            f"data.num_examples is {num_examples}, and the smallest group of {split.name} has "
            f"{sizes_G.min()} images",
            where=f"recipe keys data.num_examples and data.group_column = {rule!r}",
            fix=f"a number from {sizes_G.min()} to {len(split)}: groups are drawn whole",
        )
    rows = np.flatnonzero(drawn_G[groups_N])
    return replace(split.rows(rows), name=f"{len(rows)} of {split.name}")


def _names_after_cut(train: Split, num_left: int) -> tuple[str, str]:
    """Return the name of what was cut, and that of the rows that are left; a part's counts from the whole."""
    earlier = PART.search(train.name)
    base = train.name[: earlier.start()] if earlier else train.name
    return base, f"{base} ({num_left:,} of {earlier[1] if earlier else f'{len(train):,}'} images)"


def _parted(train: Split, is_held_N: np.ndarray) -> tuple[Split, Split]:
    """Return the rows that are left and those that are held out, which say how many groups they have."""
    rest, held = train.rows(np.flatnonzero(~is_held_N)), train.rows(np.flatnonzero(is_held_N))
    if train.grouping is None:
        return rest, held
    grouping, sides = train.grouping, (~is_held_N, is_held_N)
    num_left, num_held = (len(np.unique(grouping.groups_N[is_N])) for is_N in sides)
    counts = f"{count_of(num_left, 'group')} to train on and {count_of(num_held, 'group')} held out"
    note = f"by {train.grouping.rule}: {counts}, none on both sides"
    return rest, replace(held, notes=(*held.notes, note))


def _cut_groups(
    train: Split,
    dev_fraction: float,
    is_stratified: bool,
    order_N: np.ndarray | None,
    was_trained_N: np.ndarray | None,
) -> tuple[Split, Split]:
    """Return all but the dev part, and the dev part of whole groups, both in the order of rows."""
    labels = train.read_labels() if is_stratified else np.zeros(len(train), dtype=np.int64)
    groups_N = groups_to_divide(train)
    assert groups_N is not None, "it has groups"
    counts = GroupCounts(groups_N, labels, order_N=_row_order(train, order_N))
    last_G = np.zeros(counts.num_groups, dtype=bool)
    if was_trained_N is not None:
        last_G[groups_N[was_trained_N]] = True
    is_held_N = held_out_rows(counts, dev_fraction, last_G=last_G, every_class=is_stratified)
    return _parted(train, is_held_N)


def _row_order(train: Split, order_N: np.ndarray | None) -> np.ndarray:
    """Return an order of all rows: by content, or a shuffle of their numbers."""
    if order_N is not None:
        return order_N
    key = sampler.derive_seed(0, "dev split", len(train))
    return sampler.permute(np.arange(len(train)), num_examples=len(train), key=key)


def _cut_at_random(train: Split, dev_fraction: float) -> tuple[Split, Split]:
    """Return all but the dev part, and the dev part: a random one of all rows, of shards whole blocks."""
    key = sampler.derive_seed(0, "dev split", len(train))
    num_train = len(train) - round(len(train) * dev_fraction)
    part = partial(train.part, name=train.name, shuffle_key=key)
    if train.block_starts is not None:  # single rows would need every block to be read
        part = partial(train.random_blocks(len(train), name=train.name, key=key).part, name=train.name)
    return part(0, num_train), part(num_train, len(train))


def _cut_by_class(train: Split, dev_fraction: float, *, order_N: np.ndarray | None) -> tuple[Split, Split]:
    """Return all but the dev part, and the dev part: the first rows of each class in `order_N`.

    Without an order they are random, and the part keeps that of the rows; see `cut_dev`.
    """
    labels_N = train.read_labels()
    dev_counts_K = stratified_counts(np.bincount(labels_N, minlength=train.num_classes), dev_fraction)
    shuffled_N = _row_order(train, order_N)
    # Sorted by class, a row's place in its class is known.
    by_class_N = shuffled_N[np.argsort(labels_N[shuffled_N], kind="stable")]
    sorted_N = labels_N[by_class_N]
    place_N = np.arange(len(train)) - np.searchsorted(sorted_N, sorted_N)
    dev_rows = by_class_N[place_N < dev_counts_K[sorted_N]]
    is_dev_N = np.zeros(len(train), dtype=bool)
    is_dev_N[dev_rows] = True
    dev_rows = np.flatnonzero(is_dev_N) if order_N is None else dev_rows  # as the fingerprint of the part
    return train.rows(np.flatnonzero(~is_dev_N)), train.rows(dev_rows)


def stratified_counts(counts_K: np.ndarray, fraction: float) -> np.ndarray:
    """Return how many rows of each class are held out, (K,) int64.

    As near to `fraction` of each class as whole rows allow (largest remainders), with `fraction` of all rows
    in total; but at least one of each class with two or more, and never all rows of a class.
    """
    quotas_K = fraction * counts_K
    least_K, most_K = (counts_K >= 2).astype(np.int64), np.maximum(counts_K - 1, 0)
    total = int(np.clip(round(fraction * counts_K.sum()), least_K.sum(), most_K.sum()))
    held_K = np.clip(np.floor(quotas_K).astype(np.int64), least_K, most_K)
    while missing := total - int(held_K.sum()):
        step = 1 if missing > 0 else -1
        may_change_K = held_K < most_K if step > 0 else held_K > least_K
        farthest_K = np.argsort(-step * (quotas_K - held_K), kind="stable")
        held_K[farthest_K[may_change_K[farthest_K]][: abs(missing)]] += step
    return held_K
