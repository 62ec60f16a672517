"""Which images belong together, as `data.group_column` says: photographs of one object, patient or scene.

Letters: N rows, P pairs.
"""

import os
from collections.abc import Sequence
from pathlib import PurePath

import numpy as np

from vitcli.data.columns import PATHS
from vitcli.data.parts.image_hashes import ImageHashes, hash_images, near_pairs
from vitcli.data.parts.splitting import KEY
from vitcli.data.split import Split
from vitcli.errors import DataError
from vitcli.output.text import first_few
from vitcli.recipe.group_rule import FOLDER, NAME, NEAR_DISTANCE, NEAR_DUPLICATES, group_rule


def groups_of(split: Split, rule: str) -> np.ndarray:
    """Return the group of each row, (N,) int64, numbered from 0 in the order of their first rows.

    Raises:
        DataError: there is no such column, folder or match; an image without a group; or all are one group.
    """
    if split.is_large:
        raise DataError(
            f"{split.name} is read as shards, or too large, and its images cannot be grouped",
            where=KEY,
            fix="leave it out, or take a data set of files or tables",
        )
    if rule == NEAR_DUPLICATES:
        return _near_duplicates([split])[0]
    return _numbered(group_names(split, rule))


def num_shared(held_out: Split, train: Split, rule: str) -> int:
    """Return how many held-out images are of a group that is trained on."""
    if rule == NEAR_DUPLICATES:
        held_groups, train_groups = _near_duplicates([held_out, train])
        return int(np.isin(held_groups, train_groups).sum())
    trained = set(group_names(train, rule))
    return sum(name in trained for name in group_names(held_out, rule))


def group_names(split: Split, rule: str) -> list:
    """Return what the rule gives for each row: a value of a column, a folder, or a part of a file name."""
    parsed = group_rule(rule)
    if parsed.column is not None:
        return _checked(split, split.column(parsed.column), parsed.column)
    paths = split.column(PATHS)
    if not paths or not all(paths):
        raise DataError(
            f"the images of {split.name} have no file names",
            where=f"{KEY} = {rule!r}",
            fix=f"name a column of the data set, or {NEAR_DUPLICATES}",
        )
    if parsed.level is not None:
        return [_folder(path, parsed.level) or _refuse_folder(split, path, rule) for path in paths]
    assert parsed.pattern, "a rule has a level or a pattern"
    matches = [parsed.pattern.search(os.path.basename(path)) for path in paths]
    names = [match and match[1] for match in matches]
    without = [os.path.basename(path) for path, name in zip(paths, names, strict=True) if not name]
    if without:
        count = "none" if len(without) == len(paths) else f"{len(paths) - len(without):,}"
        raise DataError(
            f"{count} of the {len(paths):,} file names of {split.name} match",
            where=f"{KEY} = {rule!r}, such as {without[0]}",
            fix=f"correct the regular expression after {NAME}, whose group must match in every file name",
        )
    return names


def _folder(path: str, level: int) -> str:
    """Return the name of a folder above a file; "" if there are fewer."""
    folders = PurePath(path).parts[:-1]
    return folders[-level] if level <= len(folders) else ""


def _refuse_folder(split: Split, path: str, rule: str) -> str:
    count = len(PurePath(path).parts) - 1
    levels = f"{FOLDER}1 to {FOLDER}{count}" if count > 1 else f"{FOLDER}1" if count else "no folder"
    raise DataError(
        f"an image of {split.name} has fewer folders above it than that",
        where=f"{KEY} = {rule!r}, image {path}",
        fix=f"count from the image upwards: {levels} here",
    )


def _checked(split: Split, values: list | None, column: str) -> list:
    """Refuse a column that does not name a group for every row."""
    where = f"{KEY} = {column!r}"
    if values is None:
        columns = f"its columns: {first_few(split.column_names, 12)}" if split.column_names else "no columns"
        raise DataError(
            f"{split.name} has no column {column!r} ({columns})",
            where=where,
            fix=f"name one, {FOLDER}N, {NAME}REGEX or {NEAR_DUPLICATES}",
        )
    unusable = next((value for value in values if isinstance(value, list | dict | bytes)), None)
    if unusable is not None:
        raise DataError(
            f"column {column!r} of {split.name} holds {type(unusable).__name__}s, which name no groups",
            where=where,
            fix="name a column of texts or numbers",
        )
    missing = [row for row, value in enumerate(values) if value is None or value != value or value == ""]
    if missing:
        raise DataError(
            f"{len(missing):,} of the {len(values):,} images of {split.name} "
            f"{'has' if len(missing) == 1 else 'have'} no value of {column!r}",
            where=f"{where}; {split.where_is(missing[0])}",
            fix="fill them in, each image without a group of its own with a name of its own",
        )
    return values


def _numbered(names: Sequence) -> np.ndarray:
    numbers = {name: number for number, name in enumerate(dict.fromkeys(names))}
    return np.array([numbers[name] for name in names], dtype=np.int64)


def _near_duplicates(splits: Sequence[Split]) -> list[np.ndarray]:
    """Return the groups of near duplicates in the rows of several splits together."""
    hashes = [hash_images(split, num_threads=None, progress=lambda num_done: None) for split in splits]
    return groups_of_copies(hashes, [*map(len, splits)], distance=NEAR_DISTANCE)


def groups_of_copies(
    hashes: Sequence[ImageHashes], sizes: Sequence[int], *, distance: int
) -> list[np.ndarray]:
    """Return the groups of copies in the rows of several splits together, from the hashes of each.

    Images are of one group if a chain of near duplicates leads from one to the other; an image that cannot be
    read is a group of its own.

    Args:
        sizes: rows of each split.
        distance: bits in which the hashes of near duplicates differ at the most.
    """
    firsts = np.cumsum([0, *sizes])
    rows_N = np.concatenate([part.rows_N + first for part, first in zip(hashes, firsts, strict=False)])
    looks_N = np.concatenate([part.looks_N for part in hashes])
    roots_N = np.arange(firsts[-1])
    for i_P, j_P, _ in near_pairs(looks_N, looks_N, distance=distance, within=True):
        roots_N = _joined(roots_N, rows_N[i_P], rows_N[j_P])
    groups_N = _numbered(roots_N.tolist())
    return np.split(groups_N, firsts[1:-1])


def _joined(roots_N: np.ndarray, i_P: np.ndarray, j_P: np.ndarray) -> np.ndarray:
    """Return the first row of each row's group after the groups of the rows of each pair are joined."""
    roots_N = roots_N.copy()
    while True:
        a_P, b_P = roots_N[i_P], roots_N[j_P]
        if np.array_equal(a_P, b_P):
            return roots_N
        np.minimum.at(roots_N, np.maximum(a_P, b_P), np.minimum(a_P, b_P))
        while not np.array_equal(roots_N, roots_N[roots_N]):
            roots_N = roots_N[roots_N]
