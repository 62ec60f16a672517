"""Sums over the images of a closed form, as integers: what was added can be subtracted to the bit.

A feature becomes an integer once, q = round(x / STEP), below 2^23. Of N images, n_k of class k:

    gram_DD = sum q q'        sums_KD = sum of the q of each class

They depend on the set of images alone: not on order, batches or processes, nor on images that came and went.
Matrix products are of so few rows at a time that every sum in them is an integer that float64 holds.

The solution of `least_squares.py` follows from them, for any l2. With S the sum of all q, m = floor(S / N)
and r = S - N m the centred matrix is

    C = (gram - m S' - S m' + N m m') - r r' / N

in which all but the last term is exact, and 0 for a constant feature. With s = sqrt(diag(C) / N) + 1e-5, both
in units of STEP, and since standardised features have the sum 0, which separates the bias from the rest:

    W = (C / (s s') + l2 I)^-1 2 (sums_k - n_k S / N) / s        b = 100 (2 n_k - N) / (100^2 N + l2)

N images, D features, K classes.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn

from vitcli.errors import DataError
from vitcli.features.least_squares import BIAS, STD_ADDED
from vitcli.io.files import parse_json
from vitcli.models.build import last_layers
from vitcli.output.atomic import replace_file
from vitcli.output.text import json_of
from vitcli.weights.files import write_safetensors
from vitcli.weights.io import digest_of

STEP = 2.0**-16  # of a feature; the last layers of transformers end in a norm, so features are about 1 to 10
LARGEST = 2**23 - 1  # integer: float32 holds it, and 2^7 products of two of them add up exactly in float64
MOST_SQUARES = 2.0**62  # on the diagonal of the sums, which int64 ends
FORMAT = 1
TENSORS = ("digests", "groups", "labels", "features", "gram", "sums")


@dataclass(frozen=True, eq=False)
class ClosedFormStatistics:
    """The images of a closed form, in the order of their digests, and their sums.

    Attributes:
        class_names: sorted; every class has an image.
        digests_N: of the content of each image, uint64, see `seen_images.digests_of`.
        groups_N: of each image the smallest digest of those that belong together, uint64.
        labels_N: int64.
        features_ND: int32, in units of STEP.
        gram_DD, sums_KD: int64, see the top of the file.
    """

    class_names: tuple[str, ...]
    digests_N: np.ndarray
    groups_N: np.ndarray
    labels_N: np.ndarray
    features_ND: np.ndarray
    gram_DD: np.ndarray
    sums_KD: np.ndarray

    @classmethod
    def of(
        cls,
        features_ND: np.ndarray,
        labels_N: np.ndarray,
        digests_N: np.ndarray,
        *,
        class_names: Sequence[str],
        groups_N: np.ndarray | None = None,
    ) -> "ClosedFormStatistics":
        """Sum images in any order, each once; one in several classes belongs to the first by name.

        Args:
            features_ND: of any float dtype.
            groups_N: of each row; None for each row alone.

        Raises:
            DataError: a feature is not finite, or too large for fixed point.
        """
        rank_K = np.argsort(np.argsort(np.array(class_names, dtype=object)))
        order_N = np.lexsort((rank_K[labels_N], digests_N)) if len(labels_N) else np.arange(0)
        digests_M, first_M = np.unique(digests_N[order_N].astype(np.uint64), return_index=True)
        first_M = order_N[first_M]
        groups_M = digests_M if groups_N is None else groups_N[first_M]
        labels_M, quantised_MD = labels_N[first_M].astype(np.int64), quantised(features_ND[first_M])
        sums_KD = _sums_of(quantised_MD, labels_M, len(class_names))
        gram_DD = gram_of(quantised_MD)
        whole = cls(tuple(class_names), digests_M, groups_M, labels_M, quantised_MD, gram_DD, sums_KD)
        return whole._in_order()

    @classmethod
    def of_nothing(cls, num_features: int) -> "ClosedFormStatistics":
        """Return the statistics of no image."""
        none_N = np.zeros(0, np.uint64)
        return cls.of(np.zeros((0, num_features)), none_N.astype(np.int64), none_N, class_names=())

    def __len__(self) -> int:
        return len(self.digests_N)

    def plus(self, other: "ClosedFormStatistics") -> "ClosedFormStatistics":
        """Return the statistics of the images of both, which have none in common."""
        names = tuple(sorted({*self.class_names, *other.class_names}))
        parts = [part._with_classes(names) for part in (self, other)]
        joined = [np.concatenate([getattr(part, name) for part in parts]) for name in ROWS]
        order_N = np.argsort(joined[0])  # of the digests
        _check_room(np.diag(self.gram_DD).astype(np.float64) + np.diag(other.gram_DD), len(order_N))
        rows = (values[order_N] for values in joined)
        gram_DD, sums_KD = self.gram_DD + other.gram_DD, parts[0].sums_KD + parts[1].sums_KD
        return type(self)(names, *rows, gram_DD, sums_KD)._in_order()

    def without(self, is_gone_N: np.ndarray) -> "ClosedFormStatistics":
        """Return the statistics of the other images, as if these had never been there."""
        gone_MD, kept_N = self.features_ND[is_gone_N], ~is_gone_N
        rest = replace(
            self,
            **{name: getattr(self, name)[kept_N] for name in ROWS},
            gram_DD=self.gram_DD - gram_of(gone_MD),
            sums_KD=self.sums_KD - _sums_of(gone_MD, self.labels_N[is_gone_N], len(self.class_names)),
        )
        return rest._in_order()

    def _with_classes(self, names: tuple[str, ...]) -> "ClosedFormStatistics":
        """Return the same images with the labels of more classes."""
        labels_K = np.array([names.index(name) for name in self.class_names], dtype=np.int64)
        sums_KD = np.zeros((len(names), self.features_ND.shape[1]), dtype=np.int64)
        np.add.at(sums_KD, labels_K, self.sums_KD)  # two classes may have one name
        return replace(self, class_names=names, labels_N=labels_K[self.labels_N], sums_KD=sums_KD)

    def _in_order(self) -> "ClosedFormStatistics":
        """Return what depends on the set of images alone: classes that have one, by name; groups likewise."""
        there = np.unique(self.labels_N)
        names = [self.class_names[label] for label in there]
        order_K = np.argsort(np.array(names, dtype=object), kind="stable")
        place_of = np.zeros(len(self.class_names), dtype=np.int64)
        place_of[there[order_K]] = np.arange(len(there))
        _, first, group_N = np.unique(self.groups_N, return_index=True, return_inverse=True)
        return replace(
            self,
            class_names=tuple(names[k] for k in order_K),
            groups_N=self.digests_N[first[group_N]],  # rows are in the order of digests
            labels_N=place_of[self.labels_N],
            sums_KD=self.sums_KD[there[order_K]],
        )

    @property
    def counts_K(self) -> np.ndarray:
        """The images of each class."""
        return np.bincount(self.labels_N, minlength=len(self.class_names))

    @cached_property
    def digest(self) -> str:
        """A digest of everything: equal for equal sets of images, in whatever order they were added."""
        digest = blake2b(json_of(self.class_names).encode(), digest_size=16)
        for array in self._arrays.values():
            digest.update(array.tobytes())
        return digest.hexdigest()

    @property
    def _arrays(self) -> dict[str, np.ndarray]:
        rows = {name.partition("_")[0]: getattr(self, name) for name in ROWS}
        return rows | {"gram": self.gram_DD, "sums": self.sums_KD}

    def layer(self, l2: float, *, scale: float = 1.0) -> tuple[np.ndarray, np.ndarray]:
        """Return weight (D, K) and bias (K,) of the layer whose logits are scale * scores, float64.

        The number of threads may change the last bits; on one core the same images give the same bits.
        """
        count, counts_K, total_D = len(self), self.counts_K, self.sums_KD.sum(axis=0)
        floor_D = total_D // count
        rest_D = (total_D - count * floor_D) / count  # of the mean, below 1
        # int64 wraps where it must; the result is exact, since it is below 2^63.
        centred_DD = self.gram_DD - np.multiply.outer(floor_D, total_D)
        centred_DD -= np.multiply.outer(total_D, floor_D) - count * np.multiply.outer(floor_D, floor_D)
        covariance_DD = centred_DD - count * np.multiply.outer(rest_D, rest_D)
        std_D = np.sqrt(np.maximum(np.diag(covariance_DD), 0) / count) + STD_ADDED / STEP
        square_DD = torch.from_numpy(covariance_DD / std_D / std_D[:, None])
        square_DD.diagonal().add_(l2)
        targets_KD = self.sums_KD - counts_K[:, None] * floor_D - counts_K[:, None] * rest_D
        targets_DK = 2 * targets_KD.T / std_D[:, None]
        solved_DK = torch.cholesky_solve(torch.from_numpy(targets_DK), torch.linalg.cholesky(square_DD))
        weight_DK = scale * solved_DK.numpy() / std_D[:, None]
        bias_K = scale * BIAS**2 * (2 * counts_K - count) / (BIAS**2 * count + l2)
        return weight_DK / STEP, bias_K - ((floor_D + rest_D)[:, None] * weight_DK).sum(axis=0)

    def write(self, path: Path, about: dict[str, Any]) -> None:
        """Write the file; equal images and the same `about` give the same bytes."""
        tensors = {name: torch.from_numpy(array.view(_SIGNED.get(array.dtype.name, array.dtype)))
                   for name, array in self._arrays.items()}  # fmt: skip
        header = {
            "format": FORMAT,
            "class_names": self.class_names,
            "step": STEP,
            "digest": self.digest,
            **about,
        }
        replace_file(path, lambda file: write_safetensors(file, tensors, {"closed_form": json_of(header)}))

    @classmethod
    def read(cls, path: Path) -> "tuple[ClosedFormStatistics, dict[str, Any]]":
        """Read a file of `write`: the statistics and what it is about.

        Raises:
            DataError: it is damaged, another program's, or of another format.
        """
        try:
            with safe_open(path, "np") as file:
                about = parse_json((file.metadata() or {})["closed_form"])
                arrays = [file.get_tensor(name) for name in TENSORS]
            if about["format"] != FORMAT or about["step"] != STEP:
                raise ValueError(f"its format is {about['format']}, this version reads {FORMAT}")
            digests_N, groups_N, *rest = arrays
            unsigned = (values.view(np.uint64) for values in (digests_N, groups_N))
            read = cls(tuple(about["class_names"]), *unsigned, *rest)
            if read.digest != about["digest"]:
                raise ValueError("its numbers are not those that were written")
        except (OSError, SafetensorError, KeyError, TypeError, ValueError) as error:
            raise DataError(
                f"the statistics of the closed form cannot be read: {error}",
                where=str(path),
                fix="restore the file, or make the folder again",
            ) from error
        return read, about


ROWS = ("digests_N", "groups_N", "labels_N", "features_ND")
_SIGNED = {"uint64": np.int64}  # which safetensors of every library reads


def network_digest(model: nn.Module) -> str:
    """Return a digest of a network without its last layer, which the closed form replaces."""
    heads = {id(tensor) for layer in last_layers(model) for tensor in layer.parameters()}
    state = model.state_dict(keep_vars=True)
    return digest_of({name: tensor for name, tensor in state.items() if id(tensor) not in heads})


def quantised(features_ND: np.ndarray) -> np.ndarray:
    """Return features in units of STEP, int32.

    Raises:
        DataError: one is not finite, or too large.
    """
    scaled_ND = np.rint(np.asarray(features_ND, dtype=np.float64) / STEP)
    if not (np.abs(scaled_ND) <= LARGEST).all():  # not: NaN
        raise DataError(
            f"a feature is not a number below {LARGEST * STEP:.0f}, where fixed point ends",
            where="features of the network",
            fix="take weights whose last layer comes after a norm, in fp32",
        )
    return scaled_ND.astype(np.int32)


def gram_of(quantised_ND: np.ndarray) -> np.ndarray:
    """Return the sum of q q' over rows, (D, D) int64, exactly."""
    gram_DD = np.zeros((quantised_ND.shape[1],) * 2, dtype=np.int64)
    largest = int(np.abs(quantised_ND).max(initial=1))
    num_rows = max(1, 2**53 // largest**2)  # so that no sum of products leaves the integers of float64
    for first in range(0, len(quantised_ND), num_rows):
        block_BD = quantised_ND[first : first + num_rows].astype(np.float64)
        gram_DD += (block_BD.T @ block_BD).astype(np.int64)
    _check_room(np.square(quantised_ND, dtype=np.float64).sum(axis=0), len(quantised_ND))
    return gram_DD


def _check_room(squares_D: np.ndarray, num_images: int) -> None:
    if squares_D.max(initial=0) > MOST_SQUARES:
        raise DataError(
            f"{num_images:,} images are too many to sum their features exactly",
            where="the closed form",
            fix="take fewer images of each class",
        )


def _sums_of(quantised_ND: np.ndarray, labels_N: np.ndarray, num_classes: int) -> np.ndarray:
    sums_KD = np.zeros((num_classes, quantised_ND.shape[1]), dtype=np.int64)
    np.add.at(sums_KD, labels_N, quantised_ND)
    return sums_KD
