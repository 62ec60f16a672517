"""Names and paths to splits: the demo, aliases, local folders and files, Hub ids.

What lies in a folder is found by `data_files`, how a row is read stands in `split`, and the loader decodes
it.
"""

import os
from dataclasses import replace
from pathlib import Path

import datasets
import numpy as np

from vitcli import data_files, demo, order, recipe
from vitcli.errors import DataError, nearest
from vitcli.split import Split, check_labels, from_table

TRAIN_NAMES = ("train", "training")
EVAL_NAMES = ("test", "testing", "validation", "val", "valid", "dev", "eval")


class DataSet:
    """A named data set whose splits can be opened; nothing is read before that.

    Args:
        name: as the user gave it.
        image_column, label_column: where the types of the columns do not say.
    """

    def __init__(self, name: str, *, image_column: str | None = None, label_column: str | None = None):
        datasets.disable_progress_bars()
        self.name = name
        alias = recipe.dataset_aliases().get(name)
        self.declared = alias or {}
        self.is_demo = name in demo.SETS
        if self.is_demo:
            self.tables, self.split_names = None, ("train", "test")
            return
        self.tables, is_local = _locate(name, alias)
        self.split_names = tuple(self.tables.open)
        # A local copy of an aliased set may have been made with other column names; types then decide.
        declared = {} if is_local else self.declared
        self.image_column = image_column or declared.get("image_column")
        self.label_column = label_column or declared.get("label_column")

    def open(self, split: str) -> Split:
        """One split by name or Hugging Face slice ("train[:98%]"), its labels checked.

        Raises:
            DataError: no such split or column, no rows, or a label that is not a class.
        """
        base = split.partition("[")[0]
        if base not in self.split_names:
            raise self._no_split(split)
        whole = self._open_demo(base) if self.is_demo else self._open_table(base)
        first, last = self._slice(split, len(whole))
        if first >= last:
            raise DataError(
                f"split {split!r} of {self.name} has no rows",
                where=f"{self.name}, {len(whole)} rows in {base!r}",
                fix="name another split with --split, data.train_split or data.eval_split",
            )
        found = whole.part(first, last, name=f"{self.name}, split {split}") if split != base else whole
        check_labels(found)
        return found

    def default_eval_split(self, *, besides: str | None = None) -> str | None:
        """The split to report on, never the one called `besides`, which is trained on."""
        declared = self.declared.get("eval_split")
        if declared and declared != besides:
            return declared
        return _first_of(EVAL_NAMES, tuple(name for name in self.split_names if name != besides))

    def default_train_split(self) -> str | None:
        return self.declared.get("train_split") or _first_of(TRAIN_NAMES, self.split_names)

    def only_split(self, option: str) -> str:
        if len(self.split_names) == 1:
            return self.split_names[0]
        names = ", ".join(self.split_names)
        raise DataError(
            f"which split of {self.name} is meant?", where=option, fix=f"{option} with one of {names}"
        )

    def _open_table(self, split: str) -> Split:
        return from_table(
            self.tables.open[split](),
            name=f"{self.name}, split {split}",
            root=self.tables.root,
            image_column=self.image_column,
            label_column=self.label_column,
        )

    def _open_demo(self, split: str) -> Split:
        names, count = demo.class_names(self.name), demo.num_rows(self.name, split)
        return Split(
            name=f"{self.name}, split {split}",
            num_examples=count,
            class_names=names,
            num_classes=len(names),
            read_row=lambda row: demo.draw(self.name, split, row),
            read_labels=lambda: np.arange(count) % len(names),
            where_is=lambda row: f"{self.name}, split {split}, row {row}",
        )

    def _slice(self, split: str, num_rows: int) -> tuple[int, int]:
        try:
            (piece,) = datasets.ReadInstruction.from_spec(split).to_absolute(
                {split.partition("[")[0]: num_rows}
            )
        except (ValueError, AssertionError) as error:
            raise self._no_split(split) from error
        return piece.from_ or 0, num_rows if piece.to is None else piece.to

    def _no_split(self, split: str) -> DataError:
        names = self.split_names
        return DataError(
            f"{self.name} has no split {split!r}{nearest(split.partition('[')[0], names)}",
            where="--split, or the recipe keys data.train_split and data.eval_split",
            fix=f"one of {', '.join(names)}, or a slice of it such as {names[0]}[:90%]",
        )


def open_train_and_eval(
    dataset: str,
    *,
    train_split: str,
    eval_split: str,
    dev_fraction: float,
    num_examples: int | None,
    image_column: str | None,
    label_column: str | None,
    seed: int,
) -> tuple[Split, Split]:
    """The split to train on and the one to report on.

    "auto" trains on the train split and reports on the test split, else the validation split, else on
    `dev_fraction` of the training rows, which then are not trained on.
    """
    source = DataSet(dataset, image_column=image_column, label_column=label_column)
    if train_split == "auto":
        train_split = source.default_train_split() or source.only_split("data.train_split")
    if eval_split == "auto":
        eval_split = source.default_eval_split(besides=train_split.partition("[")[0])
    train = source.open(train_split)
    if eval_split is None:
        train, held_out = cut_dev(train, dev_fraction=dev_fraction, split=train_split)
    else:
        held_out = source.open(eval_split)
    if num_examples is not None:
        train = random_subset(train, num_examples, seed=seed)
    _check_same_classes(train, held_out)
    return train, held_out


def declared(dataset: str, *, num_examples: int | None) -> tuple[Split, Split] | None:
    """Stand-ins for an aliased data set that is not on this disk, of the sizes recipes/datasets.toml gives.

    For plans alone: they have no rows. None where the data lie here, or no size is given.
    """
    alias = recipe.dataset_aliases().get(dataset)
    if not alias or "train_examples" not in alias or Path(os.environ.get("VIT_DATA", "."), dataset).exists():
        return None

    def missing(row: int):
        raise DataError(
            f"{dataset} is not on this disk", where=f"row {row}", fix="leave --dry-run out to open it"
        )

    def split(count: int) -> Split:
        return Split(
            name=f"{dataset}, not here, by its declared size",
            num_examples=count,
            class_names=None,
            num_classes=alias["classes"],
            read_row=missing,
            read_labels=lambda: np.arange(alias["classes"]),
            where_is=str,
        )

    return split(num_examples or alias["train_examples"]), split(0)


def open_eval(
    dataset: str,
    split: str,
    *,
    image_column: str | None,
    label_column: str | None,
    dev_cut: dict | None = None,
) -> Split:
    """The split to score: as named, or with "auto" the test split, else validation, else the only one.

    Args:
        dev_cut: the `Split.dev_cut` that the weights were scored on when they were trained. If "auto" leads
            to those very rows, it is again their dev part that is scored, and not what was trained on.
    """
    source = DataSet(dataset, image_column=image_column, label_column=label_column)
    if split != "auto":
        return source.open(split)
    by_name = source.default_eval_split()
    trained = dev_cut["split"].partition("[")[0] if dev_cut else None
    if trained in source.split_names and by_name in (None, trained):
        trained_on = source.open(dev_cut["split"])
        if trained_on.fingerprint == dev_cut["fingerprint"]:
            return cut_dev(trained_on, dev_fraction=dev_cut["fraction"], split=dev_cut["split"])[1]
    return source.open(by_name or source.only_split("--split"))


def match_classes(
    split: Split, class_names: tuple[str, ...] | None, *, num_classes: int, ckpt: str
) -> tuple[Split, bool]:
    """The split with its labels in the order of a checkpoint's classes, and whether that changed any.

    Classes are matched by name where both sides have names, else by number.

    Raises:
        DataError: the classes are other ones, or another count of them.
    """
    by_name = class_names is not None and split.class_names is not None
    if by_name and set(class_names) != set(split.class_names):
        ours = _some(set(split.class_names) - set(class_names))
        theirs = _some(set(class_names) - set(split.class_names))
        raise DataError(
            f"{split.name} and {ckpt} have different classes",
            where=f"only in the data: {ours}; only in the checkpoint: {theirs}",
            fix="evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data",
        )
    if split.num_classes != num_classes:
        raise DataError(
            f"{split.name} has {split.num_classes} classes, {ckpt} predicts {num_classes}",
            where="--dataset and --ckpt",
            fix="evaluate on data with the checkpoint's classes, or fine-tune the checkpoint on this data",
        )
    if not by_name or class_names == split.class_names:
        return split, False
    number_of = np.array([class_names.index(name) for name in split.class_names])
    return split.relabelled(number_of, class_names), True


def _some(names: set[str]) -> str:
    more = f" and {len(names) - 5} more" if len(names) > 5 else ""
    return (", ".join(sorted(names)[:5]) or "none") + more


def cut_dev(train: Split, *, dev_fraction: float, split: str) -> tuple[Split, Split]:
    """The rows to train on, and a random `dev_fraction` to choose or report by (paper, section B.1.1).

    The cut depends on the split alone, never on the run's seed, so that all runs choose by the same rows. The
    dev part remembers what it was cut from; `split` is how the data set calls that.
    """
    num_dev = round(len(train) * dev_fraction)
    if not 0 < num_dev < len(train):
        raise DataError(
            f"a dev part of {dev_fraction:.0%} of {train.name}, {len(train)} rows, leaves one side empty",
            where="recipe key data.dev_fraction",
            fix="name the split to report on with data.eval_split, or choose another fraction",
        )
    key = order.derive_seed(0, "dev split", len(train))
    num_train = len(train) - num_dev
    rest = train.part(0, num_train, name=f"{train.name} without its dev part", shuffle_key=key)
    dev = train.part(num_train, len(train), name=f"{train.name}, dev part", shuffle_key=key)
    cut = {"split": split, "fraction": dev_fraction, "fingerprint": train.fingerprint}
    return rest, replace(dev, dev_cut=cut)


def random_subset(split: Split, num_examples: int, *, seed: int) -> Split:
    """`num_examples` rows drawn without replacement by `seed`."""
    if num_examples > len(split):
        raise DataError(
            f"{num_examples} examples were asked for, {split.name} has {len(split)}",
            where="recipe key data.num_examples",
            fix=f"a number up to {len(split)}, or leave the key out",
        )
    key = order.derive_seed(seed, "subset", num_examples)
    return split.part(0, num_examples, name=f"{num_examples} of {split.name}", shuffle_key=key)


def _locate(name: str, alias: dict | None) -> tuple[data_files.Tables, bool]:
    """The tables of a name, and whether they are local files."""
    shelf = os.environ.get("VIT_DATA")
    local = Path(shelf, name) if alias and shelf else Path(name).expanduser()
    if local.exists():
        return data_files.open_local(local), True
    if alias and "hub" not in alias:
        raise DataError(
            f"{name} is on no hub; vit knows it as a local copy",
            where=f"$VIT_DATA/{name}" + ("" if shelf else ", and VIT_DATA is not set"),
            fix=f"put {data_files.LAYOUTS} there",
        )
    if alias:
        return data_files.open_hub(
            alias["hub"], config=alias.get("config"), revision=alias.get("revision")
        ), False
    if name.startswith((".", "/", "~")) or name.endswith("/") or name.count("/") != 1:
        raise DataError(
            f"there is no data set {name!r}{nearest(name, [*demo.SETS, *recipe.dataset_aliases()])}",
            where="--dataset (recipe key data.dataset)",
            fix=f"{data_files.LAYOUTS}; an alias such as oxford_pets; a Hub id owner/name; or demo",
        )
    hub_id, _, revision = name.partition("@")
    hub_id, _, config = hub_id.partition(":")
    return data_files.open_hub(hub_id, config=config or None, revision=revision or None), False


def _check_same_classes(train: Split, held_out: Split) -> None:
    if train.class_names == held_out.class_names and train.num_classes == held_out.num_classes:
        return
    here, there = set(train.class_names or ()), set(held_out.class_names or ())
    raise DataError(
        f"{train.name} has {train.num_classes} classes, {held_out.name} has other ones or another count",
        where=f"only in the first: {_some(here - there)}; only in the second: {_some(there - here)}",
        fix="make both splits name the same classes in the same order",
    )


def _first_of(wanted: tuple[str, ...], names: tuple[str, ...]) -> str | None:
    return next((name for name in wanted if name in names), None)
