"""Data sets by name: the demo, aliases, local folders and files, Hub ids; and the splits that recipes name.

`layouts` and `shards/` find the files, `split` reads the rows, the loader decodes them.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import datasets
import numpy as np

from vitcli import recipe
from vitcli.data import demo, seen_images, vtab_splits
from vitcli.data.aliases import check_name, hub_source, local_copy
from vitcli.data.classes import check_same_classes
from vitcli.data.columns import from_table, without_labels
from vitcli.data.parts.eval_split_names import DEV_PART, DEV_PART_OF_ALL, FoldName, is_choice
from vitcli.data.parts.groups import groups_of, num_shared
from vitcli.data.parts.splitting import cut_dev, cut_fold, fold_of_rows, random_subset
from vitcli.data.seen_images import SeenImages
from vitcli.data.shards.paths import find_shards
from vitcli.data.shards.rows import open_shards
from vitcli.data.sources import layouts
from vitcli.data.sources.folders import BESIDE, NOTHING, LeftOut, image_files, left_out_of, relative, union
from vitcli.data.sources.hub import open_hub
from vitcli.data.sources.tables import AS_FOUND, SPLIT_WORDS, Choices, Tables, pooled, slice_of
from vitcli.data.split import Grouping, Split, base_of, check_labels, opened_once
from vitcli.errors import DataError, nearest
from vitcli.io.credentials import with_credentials, without_credentials
from vitcli.recipe.schema import Data

TRAIN_NAMES = ("train", "training")
NOTHING_SEEN = SeenImages()
EVAL_NAMES = ("test", "testing", "validation", "val", "valid", "dev", "eval")


class DataSet:
    """A named data set whose splits can be opened; nothing is read before that.

    Raises:
        DataError: there is no such data set, or it cannot be downloaded or listed.
    """

    def __init__(self, name: str, choices: Choices = AS_FOUND):
        datasets.disable_progress_bars()
        self.name, self.choices = without_credentials(name), choices
        self.declared = recipe.dataset_aliases().get(self.name, {})
        self.tables: Tables | None = None  # of shards and the demo None
        self._groups: dict[str, np.ndarray] = {}  # by the name of the split
        self._shared: dict[tuple[str, str], int] = {}  # by the names of two
        self._opened: dict[str, Split] = {}
        self._read, self.split_names = self._find()

    def _find(self) -> tuple[Callable[[str], Split], tuple[str, ...]]:
        """Return the function that opens a split by its name, and these names."""
        name, choices, declared = self.name, self.choices, self.declared
        if name in demo.SETS:
            return self._open_demo, ("train", "test")
        source = _source_of_shards(name, declared)
        # The data of some VTAB tasks are on no hub: `_locate` then says where a copy belongs.
        is_missing = source == name and name.startswith("vtab/") and not Path(name).exists()
        if is_remote(name) or (choices.streaming and not is_missing):
            urls, folder = find_shards(with_credentials(source)), Path(source).expanduser()
            # Images in a local folder of shards are not read.
            images = relative(image_files(folder), folder) if folder.is_dir() else ()
            beside = left_out_of(BESIDE, images) if images else NOTHING
            return partial(self._open_shards, urls, beside), tuple(urls)
        tables, is_local = _locate(name, declared, choices)
        self.tables = vtab_splits.for_task(
            tables, declared, name=name, is_local=is_local, named_label=choices.label_column
        )
        # A local copy of an alias may have other column names; types then decide.
        named = {} if is_local else declared
        image_column = choices.image_column or named.get("image_column")
        label_column = tables.label_column or choices.label_column or named.get("label_column")
        return partial(self._open_table, image_column, label_column), tuple(self.tables.open)

    def open(self, split: str) -> Split:
        """Open a split by name, a slice of it ("train[:98%]") or several ("train+test"); check its labels.

        Raises:
            DataError: no such split or column, no rows, or a label that is not a class.
        """
        split = self.split_called(split)
        base = base_of(split)
        if not self.has_split(base):
            raise self._no_split(split)
        whole = self.open_whole(base)
        if self.choices.group_column:
            whole = self._grouped(whole, self.choices.group_column)
        first, last = self._slice(split, len(whole)) if split != base else (0, len(whole))
        if first >= last:
            raise DataError(
                "; ".join([f"split {split!r} of {self.name} has no rows", *whole.left_out.lines()]),
                where=f"{self.name}, {len(whole)} rows in {base!r}",
                fix="name another split: data.train_split, data.eval_split, or --split if the command has it",
            )
        part = whole.part(first, last, name=f"{self.name}, split {split}") if split != base else whole
        check_labels(part)
        return part

    def split_called(self, split: str) -> str:
        """Return the name here of a split that a user or its folder calls val, dev, testing and the like."""
        if "+" in split and split not in self.split_names:
            return "+".join(map(self.split_called, split.split("+")))
        base, slash, rows = split.partition("[")
        usual = SPLIT_WORDS.get(base.lower())
        is_known = base in self.split_names or usual not in self.split_names
        return split if is_known else f"{usual}{slash}{rows}"

    def has_split(self, name: str) -> bool:
        """Return whether a name, without a slice, is that of a split, or of several that can be pooled."""
        parts = parts_of(name)
        return name in self.split_names or (
            len(set(parts)) == len(parts) and set(parts) <= {*self.split_names}
        )

    def open_whole(self, split: str) -> Split:
        """Return all rows of a split in `split_names`, or of several, opened once, their labels unchecked."""
        if split not in self._opened:
            self._opened[split] = self._read(split)
        return self._opened[split]

    def default_eval_split(self, *, besides: str | None = None) -> str | None:
        """Return the split to report on, never `besides`, which is trained on; None if there is none."""
        declared = self.declared.get("eval_split")
        others = tuple(name for name in self.split_names if name not in parts_of(besides or ""))
        return declared if declared in others else _first_of(EVAL_NAMES, others)

    def default_train_split(self) -> str | None:
        return self.declared.get("train_split") or _first_of(TRAIN_NAMES, self.split_names)

    def only_split(self, option: str) -> str:
        if len(self.split_names) == 1:
            return self.split_names[0]
        fix = f"set {option} to one of {', '.join(self.split_names)}"
        raise DataError(f"{self.name} has several splits and none is named", where=option, fix=fix)

    def _open_table(self, image_column: str | None, label_column: str | None, split: str) -> Split:
        tables = self.tables
        assert tables is not None, "they have been found"
        names = (split,) if split in self.split_names else parts_of(split)
        table = pooled([tables.open[name]() for name in names], name=self.name, split=split)
        if not tables.has_labels:
            table, label_column = without_labels(table, image_column, split), None
        whole = from_table(
            table,
            name=f"{self.name}, split {split}",
            root=tables.root,
            image_column=image_column,
            label_column=label_column,
            numbers=self.choices.numbers and tables.has_labels,
        )
        whole = replace(
            whole,
            has_labels=tables.has_labels,
            column_names=tuple(table.column_names),
            left_out=union(map(tables.left_out, names)),
            notes=tables.notes,
        )
        return opened_once(vtab_splits.with_image_rule(whole, self.declared))

    def _open_shards(self, urls: dict[str, list[str]], beside: LeftOut, split: str) -> Split:
        self._check_is_one(split, f"{self.name} is streamed, and numbers are read from tables alone")
        shards = open_shards(
            urls[split],
            name=f"{self.name}, split {split}",
            image_column=self.choices.image_column,
            label_column=self.choices.label_column,
            num_classes=self.choices.num_classes or self.declared.get("classes"),
        )
        return replace(shards, left_out=beside)

    def _check_is_one(self, split: str, no_numbers: str) -> None:
        """Refuse numbers and pooled splits, which are of tables alone."""
        if self.choices.numbers:
            raise DataError(
                no_numbers,
                where="recipe key objective.loss, which is regression",
                fix="--set objective.loss=softmax, or a data set with a column of numbers, unstreamed",
            )
        if split not in self.split_names:
            fix = "name one split, or take a data set of files or tables"
            raise DataError(
                f"{self.name} has splits that cannot be pooled", where=f"split {split!r}", fix=fix
            )

    def _grouped(self, whole: Split, rule: str) -> Split:
        """Return a whole split with its groups, which are found once."""

        def read() -> np.ndarray:
            if whole.name not in self._groups:
                self._groups[whole.name] = groups_of(whole, rule)
            return self._groups[whole.name]

        return replace(whole, grouping=Grouping(rule, read))

    def num_shared(self, held_out: Split, train: Split, rule: str) -> int:
        """Return how many held-out images are of a group that is trained on; counted once."""
        key = (held_out.name, train.name)
        if key not in self._shared:
            self._shared[key] = num_shared(held_out, train, rule)
        return self._shared[key]

    def _open_demo(self, split: str) -> Split:
        self._check_is_one(split, f"{self.name} has classes and no numbers to predict")
        names, count = demo.SETS[self.name].class_names, demo.SETS[self.name].num_rows[split]
        return Split(
            name=f"{self.name}, split {split}",
            num_examples=count,
            class_names=names,
            num_classes=len(names),
            read_row=lambda row: demo.draw(self.name, split, row),
            read_labels=lambda: np.arange(count) % len(names),
            where_is=lambda row: f"{self.name}, split {split}, row {row}",
        )

    def have_common_rows(self, split: str, other: str) -> bool:
        """Return whether two names, perhaps of slices, stand for some of the same rows."""
        base = base_of(split)
        if base != base_of(other):
            return bool({*parts_of(base)} & {*parts_of(base_of(other))})
        if split == other:
            return True
        num_rows = len(self.open_whole(base))
        (first, last), (other_first, other_last) = (self._slice(name, num_rows) for name in (split, other))
        return max(first, other_first) < min(last, other_last)

    def _slice(self, split: str, num_rows: int) -> tuple[int, int]:
        try:
            return slice_of(split, num_rows)
        except (ValueError, AssertionError) as error:
            raise self._no_split(split) from error

    def _no_split(self, split: str) -> DataError:
        names = self.split_names
        return DataError(
            f"{self.name} has no split {split!r}{nearest(base_of(split), names)}",
            where="recipe key data.train_split or data.eval_split, or --split",
            fix=f"one of {', '.join(names)}, or a slice of it such as {names[0]}[:90%]",
        )


OpenDataSet = Callable[[str, Choices], DataSet]


def from_section(
    data: Data, *, needs_labels: bool = True, numbers: bool = False, data_set: OpenDataSet = DataSet
) -> DataSet:
    """Open the data set that a recipe's [data] section names.

    Args:
        needs_labels, numbers: see `Choices`.
        data_set: called in the place of `DataSet`, such as one that opens each only once.
    """
    assert data.dataset is not None, "a command has refused that"
    choices = Choices(
        image_column=data.image_column,
        label_column=data.label_column,
        num_classes=data.num_classes,
        streaming=data.streaming,
        one_class=data.one_class,
        group_column=data.group_column,
        needs_labels=needs_labels,
        numbers=numbers,
    )
    return data_set(data.dataset, choices)


def open_train_and_eval(
    data: Data,
    *,
    seed: int,
    source: DataSet | None = None,
    trained_before: Callable[[], np.ndarray | None] = lambda: None,
) -> tuple[Split, Split]:
    """Open the splits to train on and to report on, as a recipe's [data] section says.

    "auto" trains on the train split and reports on the test split, else the validation split, else on
    `dev_fraction` of the training rows, which then are not trained on. DEV_PART reports on `dev_fraction` of
    what "auto" would train on, the dev split (paper, section B.1.1); DEV_PART_OF_ALL on that of the
    whole training split.

    Args:
        seed: draws the random subset of `num_examples`.
        source: the data set that the section names, where it is open already.
        trained_before: see `seen_images.held_out_order`; what is held out of each class is not of these if
            there are enough others.

    Raises:
        DataError: a split is missing or ambiguous, has no rows, or the classes of the two differ.
    """
    source = source or from_section(data)
    # The names of both splits; `eval_split` stays None where a part of train is to be held out.
    train_split = _train_split_of(source, data)
    eval_split: str | None = source.split_called(data.eval_split)
    cuts = Cuts(source, data, train_split, seed, trained_before)
    if folds := FoldName.of(data.eval_split):
        return cuts.fold(cuts.subset(source.open(train_split)), folds)
    to_choose = is_choice(data.eval_split)
    if eval_split == DEV_PART_OF_ALL:
        eval_split = train_split
    elif eval_split in (DEV_PART, "auto"):
        eval_split = source.default_eval_split(besides=base_of(train_split))
    if eval_split is None and not data.dev_fraction:
        names = f"split{'s' * (len(source.split_names) > 1)} {', '.join(source.split_names)}"
        raise DataError(
            f"{data.dataset} has only the {names}, and training needs a held-out split too",
            where="recipe keys data.train_split and data.eval_split",
            fix="name both (slices such as train[:90%] work), --folds 5, or --set data.dev_fraction=0.1",
        )

    # Their rows: what is held out to report on, and by `hold_out_dev` for all seeds, is cut before the subset
    # is drawn, a dev part after it.
    train = source.open(train_split)
    if eval_split is None:
        train, held_out = cuts.dev(train)
    else:
        held_out = source.open(eval_split)
        if not to_choose and source.have_common_rows(train_split, eval_split):
            note = f"images of {eval_split!r} are trained on and scored: it has rows of {train_split!r}"
            held_out = replace(held_out, notes=(*held_out.notes, note))
    if data.hold_out_dev and not to_choose:
        train, _ = cuts.dev(train)
    train = cuts.subset(train)
    if to_choose:
        train, held_out = cuts.dev(train)
    check_same_classes(train, held_out)
    if data.group_column and not held_out.dev_cut:
        held_out = cuts.noting_shared(held_out, train, data.group_column)
    return train, held_out


@dataclass(frozen=True)
class FoldedSplit:
    """All images of a training split with the folds that they are held out in.

    Attributes:
        folds_N: of each row, from 0.
        random_folds_N: as they would be if groups could be separated; None without groups.
    """

    train_split: str
    train: Split
    folds_N: np.ndarray
    random_folds_N: np.ndarray | None = None

    @property
    def num_groups(self) -> int | None:
        return None if self.train.grouping is None else len(np.unique(self.train.grouping.groups_N))


def open_folds(data: Data, num_folds: int, *, seed: int, source: DataSet) -> FoldedSplit:
    """Open the training split of a recipe with folds, see `open_train_and_eval`."""
    train_split = _train_split_of(source, data)
    cuts = Cuts(source, data, train_split, seed, lambda: None)
    train = cuts.subset(source.open(train_split))
    order_N = _fold_order(train)
    folds_N, random_folds_N = fold_of_rows(train, num_folds, order_N=order_N), None
    if train.grouping:
        random_folds_N = fold_of_rows(replace(train, grouping=None), num_folds, order_N=order_N)
    return FoldedSplit(train_split, train, folds_N, random_folds_N)


def _train_split_of(source: DataSet, data: Data) -> str:
    if data.train_split != "auto":
        return source.split_called(data.train_split)
    return source.default_train_split() or source.only_split("data.train_split")


def _fold_order(train: Split) -> np.ndarray | None:
    return None if train.is_large else seen_images.held_out_order(train, lambda: None)


@dataclass(frozen=True)
class Cuts:
    """What a recipe's [data] section cuts from a training split.

    Attributes:
        seed, trained_before: see `open_train_and_eval`.
    """

    source: DataSet
    data: Data
    train_split: str
    seed: int
    trained_before: Callable[[], np.ndarray | None]

    def dev(self, whole: Split) -> tuple[Split, Split]:
        """Return the rows to train on, and those to choose or report by."""
        data = self.data
        order_N = seen_images.held_out_order(whole, self.trained_before) if data.dev_stratified else None
        was_trained_N = seen_images.trained_rows(whole, self.trained_before()) if whole.grouping else None
        return cut_dev(
            whole,
            dev_fraction=data.dev_fraction,
            split=self.train_split,
            stratified=data.dev_stratified,
            order_N=order_N,
            was_trained_N=was_trained_N,
        )

    def fold(self, train: Split, folds: FoldName) -> tuple[Split, Split]:
        """Return what is trained without a fold, and the fold or the dev part; or all rows twice."""
        if folds.fold is None:
            return train, replace(train, name=f"{train.name}, {folds}")
        folds_N = fold_of_rows(train, folds.num_folds, order_N=_fold_order(train))
        rest, held_out = cut_fold(train, folds.fold, folds_N, split=self.train_split)
        return self.dev(rest) if folds.is_choice else (rest, held_out)

    def subset(self, train: Split) -> Split:
        """Return the random subset that data.num_examples asks for."""
        if self.data.num_examples is None:
            return train
        return random_subset(train, self.data.num_examples, seed=self.seed, keeps_groups=True)

    def noting_shared(self, held_out: Split, train: Split, rule: str) -> Split:
        """Return a split with a note on how many of its images are of groups that are trained on."""
        count = self.source.num_shared(held_out, train, rule)
        note = (
            f"{count:,} of the {len(held_out):,} images to score are of groups ({rule}) that are trained on"
        )
        return replace(held_out, notes=(*held_out.notes, note)) if count else held_out


def open_eval(
    data: Data,
    split: str,
    *,
    seen: SeenImages = NOTHING_SEEN,
    needs_labels: bool = True,
    numbers: bool = False,
) -> Split:
    """Open the split to score: as named, or with "auto" the test split, else validation, else the only one.

    Args:
        seen: the images that the weights were trained on. With "auto" only the held-out part is opened of a
            split that they were taken from. The notes of any other split say how many of them it has.
        needs_labels: False where nothing is scored: plain folders of images will do, and seen images too.
        numbers: whether the labels are numbers to predict.

    Raises:
        DataError: there is no such split; or only images that were trained on, and nobody has named them.
    """
    source = from_section(data, needs_labels=needs_labels, numbers=numbers)
    cut_from = base_of(seen.cut["split"]) if seen.cut else None
    if cut_from and not source.has_split(cut_from):
        cut_from = None
    folds = FoldName.of(split)
    if folds and folds.fold is None:  # all images were trained on
        split = "auto"
    is_dev = bool(cut_from) and (folds is not None or split in (DEV_PART, DEV_PART_OF_ALL))
    if split != "auto" and not is_dev:
        has_trained_rows = partial(_has_trained_rows, source, source.split_called(split), seen.train_split)
        return seen_images.noted(source.open(split), seen, has_trained_rows=has_trained_rows, option=None)
    by_name = None if is_dev else source.default_eval_split()
    if by_name and not (cut_from and by_name in parts_of(cut_from)):
        option = f"--split {by_name}" if needs_labels else None
        has_trained_rows = partial(_has_trained_rows, source, by_name, seen.train_split)
        return seen_images.noted(source.open(by_name), seen, has_trained_rows=has_trained_rows, option=option)
    base = cut_from or source.only_split("--split")
    return seen_images.held_out_part(source.open, seen, base=base, is_scored=needs_labels)


def _has_trained_rows(source: DataSet, split: str, train_split: str | None) -> bool:
    """Return whether a split has rows of that which a run on these data has trained on, by their names."""
    if train_split == "auto":
        train_split = source.default_train_split() or base_of(split)  # the only one
    try:
        return train_split is not None and source.have_common_rows(source.split_called(train_split), split)
    except DataError:  # fewer rows than the run had
        return True


def parts_of(split: str) -> tuple[str, ...]:
    """Return the names of the splits that a name pools: train and test of "train+test"."""
    return tuple(split.split("+"))


def is_remote(name: str) -> bool:
    """Return whether a name is one of shards that can only be streamed: a URL, a pattern, .tar files."""
    if "://" in name or name.endswith(".tar"):
        return True
    return any(mark in name for mark in "*?{") and not Path(name).expanduser().exists()


def _source_of_shards(name: str, alias: Mapping[str, Any]) -> str:
    """Return where an alias' shards are, its local copy or else the Hub; any other name as it is given."""
    if alias and (copy := local_copy(name)):
        return str(copy)
    return hub_source(alias) if "hub" in alias else name


def _locate(name: str, alias: Mapping[str, Any], choices: Choices) -> tuple[Tables, bool]:
    """Open the tables of a data set; also return whether they are local files."""
    if copy := local_copy(name):
        return layouts.open_local(copy, choices), True
    check_name(name)
    hub_id, _, revision = _source_of_shards(name, alias).partition("@")
    hub_id, _, config = hub_id.partition(":")
    return open_hub(hub_id, config=config or None, revision=revision or None), False


def _first_of(preferred: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return next((name for name in preferred if name in names), None)
