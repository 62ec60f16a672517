"""The same work by timm: its transforms and DataLoader, the step of train.py, the loop of validate.py.

timm's functions are called as its scripts call them (v1.0.31). What is ours here only feeds them: rows of our
splits, and networks of the same architecture.
"""

import io
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any

import numpy as np
import timm
import torch
from PIL import Image
from timm.data import create_loader
from timm.optim import create_optimizer_v2
from timm.utils import accuracy, dispatch_clip_grad
from torch import Tensor, nn
from torchvision.transforms import Compose, RandomCrop, RandomHorizontalFlip, Resize

from vitcli.data.split import Split
from vitcli.distributed.runtime import autocast
from vitcli.errors import VitError
from vitcli.models.architecture import Architecture
from vitcli.models.build import timm_arguments
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Data

NUM_INDICES = 100_000  # rows of an epoch of theirs, longer than any benchmark, so that no lap has a new one
DIFFERENCES = {
    "train_data": "of an Inception crop timm draws the area, we the height; neither jitters colours",
    "eval_data": "none but the libraries: Pillow and worker processes there, libjpeg-turbo and threads here",
    "train": "timm's step is one part, reads its loss (train.py), is not compiled; its optimizer not fused",
    "infer": "timm's loop computes loss and accuracies of each batch (validate.py)",
}


class Rows(torch.utils.data.Dataset):
    """Our split as timm's scripts read theirs: Pillow, then `transform`, which timm's loader sets."""

    transform: Callable[[Image.Image], Any] | None = None

    def __init__(self, split: Split):
        self.split = split

    def __len__(self) -> int:
        return NUM_INDICES

    def __getitem__(self, index: int) -> tuple[Any, int]:
        image, label = self.split.read_row(index % len(self.split))
        opened = Image.open(io.BytesIO(image)) if isinstance(image, bytes) else Image.fromarray(image)
        return self.transform(opened.convert("RGB")), label if isinstance(label, int) else label[0]


def data_loader(
    split: Split, data: Data, *, batch_size: int, num_workers: int, is_training: bool, device: torch.device
) -> Any:
    """Return timm's loader with the augmentation or the preprocessing that our [data] section describes."""
    layers = data.randaugment
    loader = create_loader(
        Rows(split),
        input_size=(3, *data.image_hw),
        batch_size=batch_size,
        is_training=is_training,
        scale=data.crop_area,
        ratio=data.crop_aspect,
        hflip=0.5 if data.flip else 0.0,
        color_jitter=0.0,
        auto_augment=f"rand-m{layers[1]:g}-n{layers[0]}" if layers else None,
        interpolation=data.interpolation,
        mean=data.mean,
        std=data.std,
        num_workers=num_workers,
        crop_pct=data.eval_crop_fraction or 1.0,
        crop_mode="squash" if data.eval_resize == "square" else "center",
        device=device,
        persistent_workers=num_workers > 0,
    )
    if is_training and data.train_crop != "inception":  # timm has no such crop: torchvision's
        loader.loader.dataset.transform = _plain_transform(data)
    return loader


def _plain_transform(data: Data) -> Compose:
    """Return a resize of the whole image, a random window of it if the recipe has one, and a flip."""
    size = (data.resize, data.resize) if data.train_crop == "random" else data.image_hw
    steps = [Resize(size)]
    steps += [RandomCrop(data.image_hw)] if data.train_crop == "random" else []
    steps += [RandomHorizontalFlip()] if data.flip else []
    return Compose([*steps, lambda image: np.asarray(image).transpose(2, 0, 1)])


def network(arch: Architecture, *, dropout: float = 0.0, drop_path: float = 0.0) -> nn.Module:
    """Return timm's own network of an architecture.

    Raises:
        VitError: timm has no network with these parts.
    """
    if arch.pre_logits or arch.head_layers or (arch.posemb, arch.posemb_at) != ("1d", "stem"):
        raise VitError(
            f"timm has no {arch.name} with these parts",
            where="--compare timm; recipe keys model.pre_logits, model.posemb",
            fix="leave them out, or measure without --compare",
        )
    chosen = {"pos_drop_rate": dropout, "proj_drop_rate": dropout, "drop_path_rate": drop_path}
    chosen = {name: value for name, value in chosen.items() if value}
    return timm.create_model(arch.timm_name, num_classes=arch.num_classes, **timm_arguments(arch), **chosen)


def batches(
    split: Split | None,
    data: Data,
    *,
    batch_size: int,
    num_classes: int,
    num_workers: int,
    is_training: bool,
    device: torch.device,
) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield normalised batches of a split, or without one a batch of noise again and again, on the device."""
    if split is None:
        images_BCHW = torch.randn(batch_size, 3, *data.image_hw, device=device)
        return repeat((images_BCHW, torch.arange(batch_size, device=device) % max(num_classes, 1)))
    return iter(
        data_loader(
            split,
            data,
            batch_size=batch_size,
            num_workers=num_workers,
            is_training=is_training,
            device=device,
        )
    )


def train_steps(
    model: nn.Module,
    batches: Iterator[tuple[Tensor, Tensor]],
    recipe: Recipe,
    device: torch.device,
    precision: str,
) -> Iterator[int]:
    """Yield the images of each training step, done as train.py does it: amp, clip, optimizer, loss.item()."""
    settings = recipe.optimizer
    name = "adamw" if settings.name == "adam" else "momentum"
    more = {"momentum": settings.momentum} if settings.momentum else {}
    optimizer = create_optimizer_v2(model, opt=name, lr=0.0, weight_decay=settings.weight_decay, **more)
    loss_of = nn.CrossEntropyLoss() if recipe.objective.loss == "softmax" else nn.BCEWithLogitsLoss()
    model.train()
    optimizer.zero_grad()
    for images_BCHW, labels_B in batches:
        with autocast(device, precision):
            logits_BK = model(images_BCHW)
            targets = labels_B
            if recipe.objective.loss != "softmax":
                targets = nn.functional.one_hot(labels_B, logits_BK.shape[1]).float()
            loss = loss_of(logits_BK, targets)
        loss.backward()
        if settings.clip:
            dispatch_clip_grad(model.parameters(), value=settings.clip)
        optimizer.step()
        loss.item()
        optimizer.zero_grad()
        yield len(images_BCHW)


def validation(
    model: nn.Module, batches: Iterator[tuple[Tensor, Tensor]], device: torch.device, precision: str
) -> Iterator[int]:
    """Yield the images of each batch, done as validate.py does it: amp, loss and two accuracies."""
    criterion = nn.CrossEntropyLoss()
    model.eval()
    for images_BCHW, labels_B in batches:
        with torch.inference_mode():
            with autocast(device, precision):
                logits_BK = model(images_BCHW)
                loss = criterion(logits_BK, labels_B)
            top1, top5 = accuracy(logits_BK.detach(), labels_B, topk=(1, 5))
            loss.item(), top1.item(), top5.item()
        yield len(images_BCHW)


def version() -> str:
    return f"timm {timm.__version__}"
