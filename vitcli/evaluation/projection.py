"""Logits of a network's classes to those of a data set that shares only some of them.

Letters: B batch, K classes of the network, G classes of the data, R classes that no group has.
"""

from dataclasses import dataclass

import torch
from torch import Tensor


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
