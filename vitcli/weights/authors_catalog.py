"""The files that the authors published, by the paper's names and the pre-training; no torch.

The ViTs and the hybrid lie in gs://vit_models, the BiT ResNets in gs://bit_models (paper.md; README of
google-research/vision_transformer and of google-research/big_transfer). AugReg's files have names in timm.
"""

from typing import NamedTuple

from vitcli.models.variants import find_variant

STORAGE = "https://storage.googleapis.com"  # of every gs:// bucket
IN21K, FINE_TUNED, FINE_TUNED_224 = "in21k", "in21k_ft_in1k", "in21k_ft_in1k_224"
IN1K = "in1k"
SPELLINGS = {  # of a pre-training, after the letters - and + became _
    "imagenet21k": IN21K,
    "in21k_in1k": FINE_TUNED,
    "in21k_in1k_384": FINE_TUNED,
    "in21k_ft_in1k_384": FINE_TUNED,
    "imagenet21k_imagenet2012": FINE_TUNED,
    "in21k_in1k_224": FINE_TUNED_224,
    "imagenet21k_imagenet2012_224": FINE_TUNED_224,
    "imagenet2012": IN1K,
}


class AuthorsFile(NamedTuple):
    """One file of the authors.

    Attributes:
        variant: the paper's name of the network.
        pretraining: IN21K, FINE_TUNED, FINE_TUNED_224 or IN1K.
        address: gs://BUCKET/PATH.
        image_size: one side in pixels.
        in_timm: timm/NAME.TAG of the same weights; "" where timm does not have them.
    """

    variant: str
    pretraining: str
    address: str
    image_size: int
    in_timm: str

    @property
    def name(self) -> str:
        """Return what --ckpt takes: ViT-B/16@in21k."""
        return f"{self.variant}@{self.pretraining}"

    @property
    def num_classes(self) -> int:
        return 21843 if self.pretraining == IN21K else 1000


def _vit(variant: str, network: str, *, at_224: bool, is_fine_tuned: bool = True) -> list[AuthorsFile]:
    file = variant.replace("/", "_")
    folder, fine_tuned = "gs://vit_models/imagenet21k", "gs://vit_models/imagenet21k+imagenet2012"
    files = [AuthorsFile(variant, IN21K, f"{folder}/{file}.npz", 224, f"timm/{network}_224.orig_in21k")]
    if is_fine_tuned:
        files.append(AuthorsFile(variant, FINE_TUNED, f"{fine_tuned}/{file}.npz", 384, ""))
    if at_224:
        files.append(AuthorsFile(variant, FINE_TUNED_224, f"{fine_tuned}/{file}-224.npz", 224, ""))
    return files


def _bit(variant: str, side: int) -> list[AuthorsFile]:
    network = variant.removeprefix("BiT-")
    name, in_timm = "gs://bit_models/BiT-{}-" + network, f"timm/resnetv2_{network[1:]}_bit.goog_in21k"
    return [
        AuthorsFile(variant, IN21K, name.format("M") + ".npz", 224, in_timm),
        AuthorsFile(variant, FINE_TUNED, name.format("M") + "-ILSVRC2012.npz", side, f"{in_timm}_ft_in1k"),
        AuthorsFile(variant, IN1K, name.format("S") + ".npz", 224, ""),
    ]


FILES = {
    file.name: file
    for file in (
        *_vit("ViT-B/16", "vit_base_patch16", at_224=True),
        *_vit("ViT-B/32", "vit_base_patch32", at_224=False),
        *_vit("ViT-L/16", "vit_large_patch16", at_224=True),
        *_vit("ViT-L/32", "vit_large_patch32", at_224=False),
        *_vit("ViT-H/14", "vit_huge_patch14", at_224=False, is_fine_tuned=False),
        *_vit("R50+ViT-B/16", "vit_base_r50_s16", at_224=False),
        *_bit("BiT-R50x1", 448),
        *_bit("BiT-R50x3", 448),
        *_bit("BiT-R101x1", 448),
        *_bit("BiT-R101x3", 448),
        *_bit("BiT-R152x2", 448),
        *_bit("BiT-R152x4", 480),
    )
}


def authors_files(name: str) -> list[AuthorsFile]:
    """Return the authors' files of a network, by its paper name in any spelling."""
    variant = find_variant(name)
    return [file for file in FILES.values() if variant and file.variant == variant.name]


def find_authors_file(name: str, pretraining: str) -> AuthorsFile | None:
    """Return the authors' file of a network and a pre-training, both in any spelling."""
    letters = pretraining.lower().replace("-", "_").replace("+", "_").replace("imagenet_", "imagenet")
    known = {file.pretraining: file for file in authors_files(name)}
    return known.get(SPELLINGS.get(letters, letters))
