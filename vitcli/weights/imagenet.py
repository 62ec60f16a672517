"""Names of ImageNet's classes, from timm's lists, for heads of published weights that store none.

They are for people to read. Classes are compared with those of data by names that the weights store, or by
number: ImageNet's folders are called by WordNet's numbers, and two of its classes are called "crane".
"""

import re
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from timm.data import ImageNetInfo, infer_imagenet_subset

from vitcli.weights.authors_catalog import FILES

IN_A_NAME = re.compile(r"(?<![a-z0-9])(in1k|imagenet-?1k|imagenet2012|ilsvrc2012|ilsvrc)(?![a-z0-9])")
IMAGENET_1K = 1_000  # classes
FILE_NAMES = {Path(file.address).name for file in FILES.values() if file.num_classes == IMAGENET_1K}
TITLES = {
    "imagenet-1k": "ImageNet-1k",
    "imagenet-12k": "ImageNet-12k",
    "imagenet-21k-goog": "ImageNet-21k",
    "imagenet-21k-miil": "ImageNet-21k of MIIL",
    "imagenet-22k": "ImageNet-22k",
    "imagenet-22k-ms": "ImageNet-22k of Microsoft",
}


def subset_of(num_classes: int, names: Iterable[str]) -> str:
    """Return timm's name of the ImageNet whose classes a head has, or "" for any other head.

    The numbers of classes above 1,000 belong to one list each. 1,000 classes are ImageNet's only if a name
    says so: in1k and the like are in it, or it is that of a file of the authors.

    Args:
        names: tag of timm, name of a repository, name of the file.
    """
    subset = infer_imagenet_subset({"num_classes": num_classes}) or ""
    says_so = any(name in FILE_NAMES or IN_A_NAME.search(name.lower()) for name in names)
    return subset if subset != "imagenet-1k" or says_so else ""


@cache
def class_names(subset: str) -> tuple[str, ...]:
    """Return what the classes of an ImageNet are called, in the order of the logits."""
    return tuple(ImageNetInfo(subset).label_descriptions())


def note(subset: str, num_classes: int) -> str:
    """Return the line that says where the names of classes come from whose weights store none."""
    if subset:
        return f"class names: {TITLES[subset]}'s, as the weights store none"
    fix = "; if they are ImageNet's: --model NAME.TAG, as timm calls the weights"
    return f"note: {num_classes:,} classes without names{fix if num_classes == IMAGENET_1K else ''}"
