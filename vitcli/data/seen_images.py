"""The images that a run has trained on, and those it held out: recognised by content, wherever they are now.

The weights of a run keep a digest of each of these images. So its held-out images are found again after
files were added, renamed or moved, and an image that was trained on is never scored as if it were new.
"""

import base64
import binascii
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from hashlib import blake2b
from itertools import chain
from typing import Any

import numpy as np

from vitcli.data.parts.splitting import cut_dev, cut_fold, fold_of_rows
from vitcli.data.sampler import ROWS_PER_TASK, row_ranges
from vitcli.data.split import Grouping, Split, base_of
from vitcli.errors import DataError
from vitcli.recipe.group_rule import NEAR_DUPLICATES

# In the metadata of weights: digests in base64, of images "trained_on" and "held_out", and of those
# "trained_before", by the run whose weights it started from and by the runs before that one.
KEY = "seen_images"
MOST_IMAGES = 100_000  # of a split; the files of more are not read only to recognise them
DIGEST_BYTES = 6  # two of 100,000 images agree by chance in 1 of 50,000 data sets
UNREADABLE = 0  # instead of a digest
NUM_THREADS = 8  # files are read, so more than there are cores


@dataclass(frozen=True)
class SeenImages:
    """What weights know about the images of the run that made them.

    Attributes:
        trained_on: digests of the training images, (N,) uint64; None if they are unknown.
        held_out: those of the dev part, in its order; None if no part was cut, or they are unknown.
        cut: `Split.dev_cut` of the dev part; None if no part was cut.
        train_split: the split that the recipe of the run names, if the data set that is opened is, by its
            name, that of the run; else None.
        trained_before: digests of the images that only earlier runs trained on, see KEY; None if there are
            no such runs, or they are unknown.
        folds_in: the file with the scores of a run that has scored its training images by folds; else None.
    """

    trained_on: np.ndarray | None = None
    held_out: np.ndarray | None = None
    cut: dict[str, Any] | None = None
    train_split: str | None = None
    trained_before: np.ndarray | None = None
    folds_in: str | None = None

    @classmethod
    def of(
        cls, metadata: dict[str, Any], *, train_split: str | None = None, folds_in: str | None = None
    ) -> "SeenImages":
        """Read the metadata of weights; those of large splits have no digests, others not even a cut."""
        stored = metadata.get(KEY)
        stored = stored if isinstance(stored, dict) else {}
        names = ("trained_on", "held_out", "trained_before")
        trained_on, held_out, trained_before = (_unpacked(stored.get(name)) for name in names)
        cut = _readable_cut(metadata.get("dev_cut"))
        return cls(trained_on, held_out, cut, train_split, trained_before, folds_in)

    @property
    def ever_trained_on(self) -> np.ndarray | None:
        """The digests of the images that this run or an earlier one trained on; None if they are unknown."""
        return union([self.trained_on, self.trained_before])

    def num_trained_on(self, split: Split) -> int | None:
        """Count the images of a split that were trained on; None if that cannot be known."""
        ever_trained_on = self.ever_trained_on
        if ever_trained_on is None or not _can_be_read(split):
            return None
        return _num_copies(digests_of(split), ever_trained_on)


def union(parts: Iterable[np.ndarray | None]) -> np.ndarray | None:
    """Return all digests of several parts, each once; None if no part is known."""
    known = [digests_N for digests_N in parts if digests_N is not None]
    return np.unique(np.concatenate(known)) if known else None


def held_out_order(split: Split, trained_before: Callable[[], np.ndarray | None]) -> np.ndarray | None:
    """Return the rows in the order in which those of a class are held out; None if they cannot be read.

    It is an order by content, as good as random. So what is held out does not depend on names or the order of
    files, and one more image changes a place or two of it at most.

    Args:
        trained_before: digests of images that the weights to start from were trained on, or None. They come
            last, since an accuracy on them says nothing of new images; behind them those without a file.
    """
    if split.is_multilabel or split.has_numbers or not _can_be_read(split):
        return None
    digests_N, before = digests_of(split), trained_before()
    was_trained_N = np.zeros(len(split), dtype=bool) if before is None else np.isin(digests_N, before)
    return np.lexsort((digests_N, np.where(digests_N == UNREADABLE, 2, was_trained_N)))


def trained_rows(split: Split, trained_before: np.ndarray | None) -> np.ndarray | None:
    """Return which rows have these digests, (N,) bool; None if there are no digests or no files."""
    if trained_before is None or not _can_be_read(split):
        return None
    return np.isin(digests_of(split), trained_before)


def record(
    train: Split,
    held_out: Split,
    *,
    chosen_by: Split | None = None,
    before: Sequence[SeenImages] = (),
    rank: int = 0,
    world_size: int = 1,
    concatenated: Callable[[list], list] = lambda items: items,
) -> tuple[dict[str, str] | None, dict[str, int | None]]:
    """Return what the metadata of weights keep of the images of a run, and what its summary says of them.

    The first is None where there is nothing to keep. The second counts the held-out images, of a dev part or
    of any other split, whose file is also a training image, and those that the weights it started from were
    trained on; None if that cannot be known.

    Args:
        chosen_by: images that the run chose its weights by; as those that were trained on, they are no
            honest test any more.
        before: of the weights that the run started from, and of each teacher; none of fresh ones.
        rank, world_size: each process reads its part of the images.
        concatenated: joins the lists of all processes in the order of their ranks.
    """
    digests: dict[str, np.ndarray] = {}
    seen = [split for split in (train, chosen_by) if split]
    for name, splits in (("trained_on", seen), ("held_out", [held_out])):
        if all(map(_can_be_read, splits)):
            # One after the other, so that their order is the same on any number of processes.
            parts = []
            for split in splits:
                first, last = (len(split) * r // world_size for r in (rank, rank + 1))
                parts.append(concatenated(digests_of(split, range(first, last)).tolist()))
            digests[name] = np.array([digest for part in parts for digest in part], dtype=np.uint64)
    of_each = [seen.ever_trained_on for seen in before]
    ever_before = union(of_each)
    all_before = None if any(digests_N is None for digests_N in of_each) else ever_before
    known = {"num_held_out_copies": digests.get("trained_on"), "num_held_out_seen": all_before}
    numbers = {name: _num_known(digests.get("held_out"), digests_N) for name, digests_N in known.items()}
    if not before:
        numbers["num_held_out_seen"] = 0
    if not held_out.dev_cut:  # it has a name of its own
        digests.pop("held_out", None)
    return as_metadata(digests, ever_before) or None, numbers


def as_metadata(digests: dict[str, np.ndarray], ever_before: np.ndarray | None) -> dict[str, str]:
    """Return digests by name as weights keep them, with those that only earlier runs trained on."""
    if ever_before is not None:
        is_new = ~np.isin(ever_before, digests.get("trained_on", UNREADABLE))
        digests = digests | {"trained_before": ever_before[is_new]}
    return {name: _packed(digests_N) for name, digests_N in digests.items()}


def merged(runs: Sequence[SeenImages]) -> dict[str, str] | None:
    """Return what the metadata of an average keep of its runs' images; None if those of one are unknown."""
    trained_on = union(run.trained_on for run in runs)
    if trained_on is None or any(run.trained_on is None for run in runs):
        return None
    digests = {"trained_on": trained_on}
    first = runs[0].held_out
    if first is not None and all(
        run.held_out is not None and np.array_equal(run.held_out, first) for run in runs[1:]
    ):
        digests["held_out"] = first
    return as_metadata(digests, union(run.trained_before for run in runs))


def never_trained_on(split: Split, trained_on: np.ndarray | None, *, is_held_out: bool = False) -> Split:
    """Return the rows of a split of which no copy was trained on, with a note if some were.

    With a note, too, where that cannot be known: the images are too many to be read, or the digests unknown.

    Args:
        trained_on: digests of the images that were trained on; None if they are unknown.
        is_held_out: whether no row was trained on, so that only copies in other rows may have been.
    """
    if trained_on is None or not _can_be_read(split):
        notes = () if is_held_out else ("whether images of these were trained on is not known",)
        return replace(split, notes=(*notes, *split.notes))
    was_trained_N = np.isin(digests_of(split), trained_on)
    if not was_trained_N.any():
        return split
    note = f"{_were(int(was_trained_N.sum()), split)} trained on, and are left out"
    return replace(split.rows(np.flatnonzero(~was_trained_N)), notes=(note, *split.notes))


def _num_known(held_out: np.ndarray | None, trained_on: np.ndarray | None) -> int | None:
    return None if held_out is None or trained_on is None else _num_copies(held_out, trained_on)


def _num_copies(held_out: np.ndarray, trained_on: np.ndarray) -> int:
    return int((np.isin(held_out, trained_on) & (held_out != UNREADABLE)).sum())


def counts(stored: Any) -> dict[str, int]:
    """Return the number of digests by name, to show in their place."""
    digests = {name: _unpacked(text) for name, text in stored.items()} if isinstance(stored, dict) else {}
    return {name: len(digests_N) for name, digests_N in digests.items() if digests_N is not None}


def held_out_part(
    open_split: Callable[[str], Split], seen: SeenImages, *, base: str, is_scored: bool = True
) -> Split:
    """Return the rows of a split that may be scored: the images that a run held out, none it was trained on.

    Of data that the run has never seen these are all rows.

    Args:
        open_split: opens a split, or a slice of one, by its name.
        base: of a split that nothing but its name says is new: the only one, or the one that was trained on.
        is_scored: False to open it all, with a note, where none of its images was held out.

    Raises:
        DataError: it is to be scored, and images of it were trained on, or may have been, but no held-out one
            is found.
    """
    whole, option = open_split(base), f"--split {base}"
    if part := _cut_again(open_split, seen, base=base):
        part = _noting_seen(part, seen, seen.held_out)
        note = f"these are the held-out images of the run; {option} takes all {len(whole):,}"
        return part if is_scored else replace(part, notes=(note, *part.notes))
    if seen.trained_on is None or (ever := seen.ever_trained_on) is None or not _can_be_read(whole):
        return _unknown_part(whole, seen, option=option if is_scored else None)

    # Which rows are which, by content.
    digests_N = digests_of(whole)
    held_out = np.zeros(0, np.uint64) if seen.held_out is None else seen.held_out
    held_rows = _rows_of(held_out, digests_N)
    was_trained_N = np.isin(digests_N, ever) & (digests_N != UNREADABLE)
    was_trained_N[held_rows] = False
    num_trained = int(was_trained_N.sum())
    if not num_trained:
        return whole
    if not len(held_rows) and not is_scored:
        note = f"{_were(num_trained, whole)} trained on"
        return replace(whole, notes=(note, *whole.notes))
    if not len(held_rows):
        fix = f"name other images, or {option} to score all {len(whole):,}, trained on or not"
        if seen.folds_in:
            scores_all = f"{option} scores all {len(whole):,}, of which {num_trained:,} were trained on"
            fix = f"the accuracy by folds is top1 in {seen.folds_in}; or name other images ({scores_all})"
        raise DataError(
            f"{num_trained:,} of the {len(whole):,} images of {whole.name} were trained on, "
            "and none is a held-out image of the run",
            where="--dataset",
            fix=fix,
        )
    num_new = len(whole) - num_trained - len(held_rows)
    there = "all" if len(held_rows) == len(held_out) else f"{len(held_rows):,} of the"
    note = f"the data set changed since training: {there} {len(held_out):,} held-out images found"
    if num_new:
        note += f"; {num_new:,} new image{'s' * (num_new > 1)} not scored ({option} scores every image)"
    has_changed = num_new or len(held_rows) < len(held_out)
    notes = (note, *whole.notes) if has_changed else whole.notes
    part = replace(whole.rows(held_rows), name=f"{whole.name}, dev part", dev_cut=seen.cut, notes=notes)
    part = _grouped(part, seen.cut or {})
    return _noting_seen(part, seen, digests_N[held_rows])


def _noting_seen(part: Split, seen: SeenImages, digests_N: np.ndarray | None) -> Split:
    """Return held-out images with notes if some were trained on: as exact copies, or by an earlier run."""
    notes = []
    reasons = (
        (seen.trained_on, "are exact copies of training images"),
        (seen.trained_before, "were trained on by an earlier run, which this one started or learned from"),
    )
    for trained_on, reason in reasons:
        if count := _num_known(digests_N, trained_on):
            notes.append(f"{count:,} of these {len(part):,} held-out images {reason}")
    return replace(part, notes=(*notes, *part.notes))


def noted(
    split: Split, seen: SeenImages, *, has_trained_rows: Callable[[], bool], option: str | None
) -> Split:
    """Return a split that has a name of its own, with a note if images of it were trained on.

    Args:
        has_trained_rows: whether rows of it were trained on, by the names of splits, for images that cannot
            be recognised.
        option: how a person names it; None if a person has done so, or it is not to be scored.

    Raises:
        DataError: nobody has named it to be scored, and all its images were trained on.
    """
    count = seen.num_trained_on(split)
    if not count:
        if count is not None or not has_trained_rows():
            return split
        besides = ", besides those held out" if seen.cut else ""
        note = f"this split has images that were trained on{besides}"
        return replace(split, notes=(note, *split.notes))
    if count == len(split) and option:
        raise DataError(
            f"all {count:,} images of {split.name} were trained on",
            where="--dataset",
            fix=f"name other images, or {option} to score them anyway",
        )
    return replace(split, notes=(f"{_were(count, split)} trained on", *split.notes))


def digests_of(split: Split, rows: Iterable[int] | None = None) -> np.ndarray:
    """Return a digest of the content of each image, (N,) uint64; UNREADABLE for an image without a file."""
    rows = range(len(split)) if rows is None else list(rows)

    def digests(places: range) -> list[int]:
        return [_digest(split, int(rows[place])) for place in places]

    with ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="vit-digest") as pool:
        parts = pool.map(digests, row_ranges(len(rows), ROWS_PER_TASK))
        return np.fromiter(chain.from_iterable(parts), dtype=np.uint64, count=len(rows))


def _digest(split: Split, row: int) -> int:
    try:
        return split.fact_of(row, "digest", _digest_of)
    except DataError:
        return UNREADABLE


def _digest_of(image: bytes | np.ndarray) -> int:
    return int.from_bytes(blake2b(bytes(image), digest_size=DIGEST_BYTES).digest(), "little")


def _can_be_read(split: Split) -> bool:
    """Return whether to read all images of a split: they are files, and not too many."""
    return split.block_starts is None and 0 < len(split) <= MOST_IMAGES and not split.is_drawn


def _cut_again(open_split: Callable[[str], Split], seen: SeenImages, *, base: str) -> Split | None:
    """Return the dev part by the rule of the cut if it is the one that was held out, else None."""
    cut = seen.cut
    if cut is None or base_of(cut["split"]) != base:
        return None
    if seen.held_out is not None and ("fold" in cut or "group_column" in cut):
        return None  # known by content, which is faster than to group them again
    try:
        whole = _grouped(open_split(cut["split"]), cut)  # perhaps a slice that other data do not have
        if cut["num_rows"] != len(whole):
            return None
        if seen.held_out is None and whole.fingerprint != cut["fingerprint"]:
            return None
        fold, num_folds = cut.get("fold"), cut.get("folds")
        if isinstance(fold, int) and isinstance(num_folds, int):
            folds_N = fold_of_rows(whole, num_folds, order_N=None)
            return cut_fold(whole, fold, folds_N, split=cut["split"])[1]
        by_content = cut.get("by_content") and "group_column" not in cut
        dev = cut_dev(
            whole,
            dev_fraction=cut["fraction"],
            split=cut["split"],
            stratified=bool(cut.get("stratified")),
            order_N=held_out_order(whole, lambda: None) if by_content else None,
        )[1]
    except DataError:  # too few rows are left
        return None
    if seen.held_out is None:
        return dev
    is_same = len(dev) == len(seen.held_out) and np.array_equal(digests_of(dev), seen.held_out)
    return dev if is_same else None


def _grouped(split: Split, cut: dict[str, Any]) -> Split:
    """Return a split whose rows belong together as where it was cut; with a note if that cannot be known."""
    rule = cut.get("group_column")
    if not isinstance(rule, str):
        return replace(split, grouping=None)
    from vitcli.data.parts.groups import group_names, groups_of  # loads tables

    try:
        if rule != NEAR_DUPLICATES:  # which every image has, and which are found only if they are asked for
            group_names(split, rule)
    except DataError as error:
        note = f"which of these images belong together (data.group_column) is not known: {error.message}"
        return replace(split, grouping=None, notes=(note, *split.notes))
    return replace(split, grouping=Grouping(rule, lambda: groups_of(split, rule)))


def _unknown_part(whole: Split, seen: SeenImages, *, option: str | None) -> Split:
    """Return all rows of other data than those of the run; refuse the run's own, changed since."""
    if seen.cut is None and seen.trained_on is None:
        return whole
    if seen.cut and seen.train_split and option:
        raise DataError(
            f"{whole.name} has changed since the run, and its held-out images are not to be found again",
            where="--dataset",
            fix=f"restore the data set, name other images, or {option} to score all, trained on or not",
        )
    return replace(whole, notes=("whether images of these were trained on is not known", *whole.notes))


def _rows_of(held_out: np.ndarray, digests_N: np.ndarray) -> np.ndarray:
    """Return a row for each held-out digest that has one, in their order; no row twice."""
    rows_by_digest: dict[int, list[int]] = {}
    for row in np.flatnonzero(np.isin(digests_N, held_out[held_out != UNREADABLE]))[::-1].tolist():
        rows_by_digest.setdefault(int(digests_N[row]), []).append(row)
    rows = [rows_by_digest[digest].pop() for digest in held_out.tolist() if rows_by_digest.get(digest)]
    return np.array(rows, dtype=np.int64)


def _readable_cut(cut: Any) -> dict[str, Any] | None:
    """Return a stored cut; None if it is none: weights files may come from anywhere."""
    if not isinstance(cut, dict):
        return None
    kinds = {"split": str, "fingerprint": str, "fraction": float, "num_rows": int}
    is_readable = all(isinstance(cut.get(key), kind) for key, kind in kinds.items())
    return cut if is_readable and 0 < cut["fraction"] < 1 else None


def _were(count: int, split: Split) -> str:
    return f"{count:,} of these {len(split):,} images {'was' if count == 1 else 'were'}"


def _packed(digests_N: np.ndarray) -> str:
    content = digests_N.astype("<u8").view(np.uint8).reshape(-1, 8)[:, :DIGEST_BYTES]
    return base64.b64encode(content.tobytes()).decode()


def _unpacked(text: Any) -> np.ndarray | None:
    """Return the digests of a text; None if it is none."""
    try:
        content = np.frombuffer(base64.b64decode(text, validate=True), np.uint8).reshape(-1, DIGEST_BYTES)
    except (TypeError, ValueError, binascii.Error):
        return None
    padded = np.zeros((len(content), 8), np.uint8)
    padded[:, :DIGEST_BYTES] = content
    return padded.view("<u8").ravel().astype(np.uint64)
