"""Class maps: TOML files that map classes of a data set to classes of a checkpoint.

[classes] has a line for each class of the data that counts: its name = the number or name of the checkpoint's
class, or a list of them (synonyms). The WordNet id alone may stand for a class whose name begins with one
(n01440764_tench). Images of classes without a line are left out.
Letters: B batch, K classes of the checkpoint, G mapped classes, S synonyms, R classes outside the map.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from vitcli import recipe
from vitcli.data.split import Split
from vitcli.data.task import check_supports
from vitcli.errors import DataError, nearest
from vitcli.recipe.schema import NON_EMPTY, Section, either, key, one_if
from vitcli.recipe.validation import report, validate

SEE = 'lines below [classes], such as mug = 504, or "alarm clock" = [409, 530]'


@dataclass(frozen=True)
class Projection:
    """Projection of a network's logits to the classes of a class map.

    Attributes:
        groups: for each class of the data, one or several classes of the network (synonyms).
        num_classes: K.
        all_compete: whether classes in no group may be predicted too, always wrongly. They come after the
            groups, in their own order.
    """

    groups: tuple[tuple[int, ...], ...]
    num_classes: int
    all_compete: bool

    @property
    def outside(self) -> tuple[int, ...]:
        """Return the network's classes that are in no group."""
        inside = {number for group in self.groups for number in group}
        return tuple(number for number in range(self.num_classes) if number not in inside)

    @property
    def width(self) -> int:
        """Return the number of projected logits: G, or G + R where all compete."""
        return len(self.groups) + (len(self.outside) if self.all_compete else 0)

    def __call__(self, logits_BK: Tensor) -> Tensor:
        """Return (B, width) logits; the logit of a class is the highest of its synonyms'.

        The predicted class is then the one with the highest logit among those that compete, as the authors of
        ObjectNet count. Summing the synonyms' probabilities would favour classes with many.
        """
        longest = max(map(len, self.groups))
        padded_GS = torch.tensor([[*group, *[group[0]] * (longest - len(group))] for group in self.groups])
        projected_BG = logits_BK[:, padded_GS].max(dim=2).values
        if not self.all_compete:
            return projected_BG
        return torch.cat([projected_BG, logits_BK[:, list(self.outside)]], dim=1)


NumberOrName = Annotated[int | str, either(str, "a name in quotes")]
OneOrSeveral = Annotated[tuple[NumberOrName, ...], NON_EMPTY, one_if(int, str, float)]


class _File(Section):
    about: str | None = key("description of the map", None)
    classes: Annotated[dict[str, OneOrSeveral], Field(min_length=1)] = key(
        "for each class of the data, one or several classes of a checkpoint, by number or name"
    )


@dataclass(frozen=True)
class ClassMap:
    """A class map that was read from a file.

    Attributes:
        name: as given on the command line.
        classes: class of the data to one or several classes of a checkpoint, by number or name.
    """

    name: str
    path: Path
    classes: dict[str, tuple[int | str, ...]]


def read_class_map(name: str, shipped: Mapping[str, Path]) -> ClassMap:
    """Read the shipped map of this name, or the .toml file of this path.

    Raises:
        VitError: there is no such map, or the file is not a class map.
    """
    path = recipe.find_file(name, shipped, noun="class map", where="--classes")
    table, problems = validate(_File, recipe.read_toml(path), noun="a class map", see=SEE, file=str(path))
    if table is None:
        raise report(problems, f"class map {name}", see=SEE)
    return ClassMap(name, path, table.classes)


def apply_class_map(
    split: Split,
    class_map: ClassMap,
    *,
    ckpt_classes: tuple[str, ...] | None,
    num_classes: int,
    all_compete: bool,
) -> tuple[Split, Projection, np.ndarray]:
    """Return the split of the mapped classes, the projection of logits to them, and the rows of `split` kept.

    Args:
        ckpt_classes: names of the checkpoint's classes, where it stores them.
        num_classes: of the checkpoint.

    Raises:
        DataError: the data or the checkpoint lacks a mapped class, or rows have several labels.
    """
    check_supports("--classes", split.task, name=split.name)
    # Each mapped class of the data, by number, and its classes of the checkpoint.
    names = split.class_names or tuple(str(number) for number in range(split.num_classes))
    numbers = _numbers_of(class_map, names, split.name)
    groups = tuple(
        tuple(_ckpt_class(label, class_map, ckpt_classes, num_classes) for label in labels)
        for labels in class_map.classes.values()
    )
    _check_disjoint(groups, class_map)
    # Rows of the mapped classes, with labels numbered in the map's order.
    group_of = np.full(split.num_classes, -1)
    group_of[numbers] = np.arange(len(numbers))
    groups_N = group_of[split.read_labels()]
    rows = np.flatnonzero(groups_N >= 0)
    if not len(rows):
        raise DataError(
            f"no image of {split.name} has a class in this map",
            where=str(class_map.path),
            fix="name the map that belongs to this data set",
        )
    mapped = replace(split.rows(rows), name=f"{split.name}, classes of {class_map.name}")
    mapped = mapped.relabelled(group_of, tuple(names[number] for number in numbers))
    return mapped, Projection(groups, num_classes, all_compete), rows


def _numbers_of(class_map: ClassMap, names: tuple[str, ...], data: str) -> list[int]:
    """Return the data's number of each class in the map, in the map's order."""
    number_of = {_wordnet_id(name): number for number, name in enumerate(names)}
    number_of |= {name: number for number, name in enumerate(names)}
    for name in class_map.classes:
        if name not in number_of:
            raise DataError(
                f"{data} has no class {name!r}{nearest(name, names)}",
                where=str(class_map.path),
                fix=f"use the names of the data's {len(names)} classes, such as {names[0]!r}",
            )
    return [number_of[name] for name in class_map.classes]


def _ckpt_class(
    label: int | str, class_map: ClassMap, ckpt_classes: tuple[str, ...] | None, num_classes: int
) -> int:
    if isinstance(label, int):
        if 0 <= label < num_classes:
            return label
        raise DataError(
            f"the checkpoint has no class {label}: its classes are 0 to {num_classes - 1}",
            where=str(class_map.path),
            fix="use a checkpoint with the classes that this map is made for",
        )
    names = ckpt_classes or ()
    by_id = {_wordnet_id(name): number for number, name in enumerate(names)}
    if label in names or label in by_id:
        return names.index(label) if label in names else by_id[label]
    raise DataError(
        f"the checkpoint has no class {label!r}{nearest(label, names)}",
        where=str(class_map.path),
        fix="use the names of its classes" if names else "it stores no names: give numbers of classes",
    )


def _check_disjoint(groups: tuple[tuple[int, ...], ...], class_map: ClassMap) -> None:
    """Raise DataError if a class of the checkpoint maps to two classes: it would be right for both."""
    owner: dict[int, str] = {}
    for name, group in zip(class_map.classes, groups, strict=True):
        for number in group:
            if owner.setdefault(number, name) != name:
                raise DataError(
                    f"class {number} of the checkpoint counts as both {owner[number]!r} and {name!r}",
                    where=str(class_map.path),
                    fix="map it to one of them",
                )


def _wordnet_id(name: str) -> str:
    wordnet_id = re.match(r"n\d{8}(?!\d)", name)
    return wordnet_id[0] if wordnet_id else name
