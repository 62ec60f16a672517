"""Class maps: TOML files that say which classes of a checkpoint count as which class of a data set.

[classes] has a line for each class of the data that counts: its name = the number or name of the checkpoint's
class, or a list of them (synonyms). A class whose name begins with a WordNet id (n01440764_tench) may be
called by the id alone. Pictures of classes without a line are left out.
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
from vitcli.errors import DataError, nearest
from vitcli.recipe.schema import Section, either, key, one_or_several
from vitcli.recipe.validation import report, validate

SEE = 'lines below [classes], such as mug = 504, or "alarm clock" = [409, 530]'


@dataclass(frozen=True)
class Projection:
    """Which classes of a network count as which class of the data.

    Attributes:
        groups: for each class of the data one or several of the network's: synonyms.
        num_classes: K.
        all_compete: whether the classes that are in no group may be predicted too, always wrongly. They come
            after the groups, in their own order.
    """

    groups: tuple[tuple[int, ...], ...]
    num_classes: int
    all_compete: bool

    @property
    def outside(self) -> tuple[int, ...]:
        """The network's classes that no group has."""
        inside = {number for group in self.groups for number in group}
        return tuple(number for number in range(self.num_classes) if number not in inside)

    @property
    def width(self) -> int:
        """Classes of the projected logits: G, or G + R where all compete."""
        return len(self.groups) + (len(self.outside) if self.all_compete else 0)

    def __call__(self, logits_BK: Tensor) -> Tensor:
        """(B, width). A class of several synonyms has the highest of their logits.

        So the predicted class is the one of the highest logit among those that compete, as the authors of
        ObjectNet count; adding up the synonyms' probabilities would favour classes with many.
        """
        longest = max(map(len, self.groups))
        padded_GS = torch.tensor([[*group, *[group[0]] * (longest - len(group))] for group in self.groups])
        projected_BG = logits_BK[:, padded_GS].max(dim=2).values
        if not self.all_compete:
            return projected_BG
        return torch.cat([projected_BG, logits_BK[:, list(self.outside)]], dim=1)


class _File(Section):
    about: str | None = key("what the map is", None)
    classes: Annotated[
        dict[str, one_or_several(either(int, str, other_if=str), one_if=(int, str, float))],
        Field(min_length=1),
    ] = key("for each class of the data, one or several classes of a checkpoint, by number or name")


@dataclass(frozen=True)
class ClassMap:
    """One file, read.

    Attributes:
        name: as the command line gave it.
        path: where it lies.
        classes: class of the data to one or several classes of a checkpoint, by number or name.
    """

    name: str
    path: Path
    classes: dict[str, tuple[int | str, ...]]


def read_class_map(name: str, shipped: Mapping[str, Path]) -> ClassMap:
    """The shipped map of this name, or the file of a path that ends in .toml.

    Raises:
        VitError: there is none, or it is not of the form.
    """
    path = recipe.find_file(name, shipped, noun="class map", where="--classes")
    table, problems = validate(
        _File, recipe.read_toml(path), noun="a class map", see=SEE, source=lambda _: str(path)
    )
    if problems:
        raise report(problems, f"class map {name}", see=SEE)
    return ClassMap(name, path, table.classes)


def apply_class_map(
    split: Split,
    found: ClassMap,
    *,
    ckpt_classes: tuple[str, ...] | None,
    num_classes: int,
    all_compete: bool,
) -> tuple[Split, Projection, np.ndarray]:
    """A split of the mapped classes alone, how a checkpoint's logits become theirs, and the rows it is of.

    Args:
        ckpt_classes: names of the checkpoint's classes, where it stores them.
        num_classes: how many it has.

    Raises:
        DataError: a class that the data or the checkpoint does not have, or rows with several labels.
    """
    if split.has_several_labels:
        raise DataError(
            f"the rows of {split.name} have several labels, which a class map cannot join",
            where=f"--classes {found.name}",
            fix="leave --classes out",
        )
    names = split.class_names or tuple(str(number) for number in range(split.num_classes))
    numbers = _numbers_of(found, names, split.name)
    groups = tuple(
        tuple(_ckpt_class(one, found, ckpt_classes, num_classes) for one in several)
        for several in found.classes.values()
    )
    _check_disjoint(groups, found)
    group_of = np.full(split.num_classes, -1)
    group_of[numbers] = np.arange(len(numbers))
    groups_N = group_of[split.read_labels()]
    rows = np.flatnonzero(groups_N >= 0)
    if not len(rows):
        raise DataError(
            f"no picture of {split.name} is of a class in this map",
            where=str(found.path),
            fix="name the map that belongs to the data",
        )
    kept = replace(split.rows(rows), name=f"{split.name}, classes of {found.name}")
    kept = kept.relabelled(group_of, tuple(names[number] for number in numbers))
    return kept, Projection(groups, num_classes, all_compete), rows


def _numbers_of(found: ClassMap, names: tuple[str, ...], data: str) -> list[int]:
    """The data's number of each class in the map, in the map's order."""
    number_of = {_wordnet_id(name): number for number, name in enumerate(names)}
    number_of |= {name: number for number, name in enumerate(names)}
    for name in found.classes:
        if name not in number_of:
            raise DataError(
                f"{data} has no class {name!r}{nearest(name, names)}",
                where=str(found.path),
                fix=f"call the classes as the data does, such as {names[0]!r}; {len(names)} there are",
            )
    return [number_of[name] for name in found.classes]


def _ckpt_class(
    one: int | str, found: ClassMap, ckpt_classes: tuple[str, ...] | None, num_classes: int
) -> int:
    if isinstance(one, int):
        if 0 <= one < num_classes:
            return one
        raise DataError(
            f"the checkpoint has no class {one}: its classes are 0 to {num_classes - 1}",
            where=str(found.path),
            fix="use a checkpoint with the classes that this map is made for",
        )
    names = ckpt_classes or ()
    by_id = {_wordnet_id(name): number for number, name in enumerate(names)}
    if one in names or one in by_id:
        return names.index(one) if one in names else by_id[one]
    raise DataError(
        f"the checkpoint has no class {one!r}{nearest(one, names)}",
        where=str(found.path),
        fix="call its classes as it does" if names else "it stores no names: give numbers of classes",
    )


def _check_disjoint(groups: tuple[tuple[int, ...], ...], found: ClassMap) -> None:
    """A class of the checkpoint that counts as two classes of the data would be right for both."""
    owner: dict[int, str] = {}
    for name, group in zip(found.classes, groups, strict=True):
        for number in group:
            if owner.setdefault(number, name) != name:
                raise DataError(
                    f"class {number} of the checkpoint counts as both {owner[number]!r} and {name!r}",
                    where=str(found.path),
                    fix="let it count as one of them",
                )


def _wordnet_id(name: str) -> str:
    found = re.match(r"n\d{8}(?!\d)", name)
    return found[0] if found else name
