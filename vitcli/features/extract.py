"""A network that is only looked through: its pixels, its machine, and its features kept on disk.

Shared by fewshot and embed; no command of its own.
"""

import os
import signal
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitcli.data import layouts, loader
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing
from vitcli.distributed import runtime
from vitcli.distributed.runtime import Runtime
from vitcli.errors import Stopped
from vitcli.evaluation.setup import for_inference, inference_precision, preprocessing_for
from vitcli.features import feature_pass
from vitcli.features.feature_store import FeatureStore, digest_of
from vitcli.models import features
from vitcli.models.architecture import Architecture
from vitcli.output.progress import Console
from vitcli.recipe import Recipe
from vitcli.weights.io import Weights

REVISION = 2  # of what features are: raise it when the same key would give other numbers


@dataclass(frozen=True, eq=False)
class Frozen:
    """Everything that features depend on, but for the images.

    Attributes:
        resolved: the recipe, with the preprocessing that is really used.
        preprocessing_from: who says so.
        said: notes that the console has had; that a cache cannot be written is said once.
    """

    resolved: Recipe
    weights: Weights
    arch: Architecture
    model: nn.Module
    preprocessing: Preprocessing
    preprocessing_from: str
    machine: Runtime
    precision: str
    num_threads: int
    console: Console
    said: set[str] = field(default_factory=set)

    @cached_property
    def weights_digest(self) -> str:
        return digest_of(self.weights.state)

    def about(self, split: Split, *, with_logits: bool) -> dict[str, Any]:
        """What the features of a split are of, as JSON: where any of it is another, so are they."""
        wanted = self.resolved
        return {
            "revision": REVISION,
            "weights": self.weights_digest,
            "architecture": self.arch.as_dict(),
            "posemb_resample": wanted.model.posemb_resample,
            "preprocessing": self.preprocessing.as_dict(),
            "layer": wanted.eval.layer,
            "logits": with_logits,
            "precision": self.precision,
            "device": self.machine.device.type,
            "data": split.fingerprint,
            "files": _state_of_files(wanted.data.dataset),
            "split": split.name.removeprefix(str(wanted.data.dataset)),
            "num_examples": len(split),
        }


@dataclass(frozen=True)
class Computed:
    """Rows of a split whose features are on disk.

    Attributes:
        store: open, of the first process; None of the others.
        num_cached: rows that were there before.
        num_computed: rows that were not.
        skipped: places of images that could not be decoded, which are no rows.
    """

    store: FeatureStore | None
    num_cached: int
    num_computed: int
    skipped: list[str]


def freeze(
    weights: Weights,
    resolved: Recipe,
    *,
    recipe_name: str | None,
    overrides: Sequence[str],
    shorthands: Mapping[str, Any],
    workers: int | None,
    quiet: bool,
) -> Frozen:
    """Join the run's processes and put the network on the device, in fp32 unless another is named."""
    precision = inference_precision(resolved)
    machine = runtime.start(precision)
    console = Console(quiet=quiet, is_main=machine.is_main)
    preprocessing, origin = preprocessing_for(
        weights, resolved, recipe_name=recipe_name, overrides=overrides, shorthands=shorthands
    )
    model, arch = for_inference(weights, resolved, preprocessing, machine, console, needs_head=False)
    features.check_layer(model, resolved.eval.layer)
    return Frozen(
        resolved=_with_preprocessing(resolved, preprocessing),
        weights=weights,
        arch=arch,
        model=model,
        preprocessing=preprocessing,
        preprocessing_from=origin,
        machine=machine,
        precision=precision,
        num_threads=workers or loader.default_threads(machine.processes_here),
        console=console,
    )


def compute(
    frozen: Frozen,
    split: Split,
    rows_N: np.ndarray,
    open_store: Callable[[dict[str, Any], int], FeatureStore],
    *,
    with_logits: bool,
) -> Computed:
    """Features of these rows of a split into the store that the first process opens, where not there."""
    machine, opened = frozen.machine, []

    def look() -> tuple[np.ndarray, list[str]]:
        opened.append(open_store(frozen.about(split, with_logits=with_logits), len(split)))
        return rows_N[~opened[0].has(rows_N)], opened[0].notes

    missing_N, notes = machine.on_main(look)
    for note in sorted(set(notes) - frozen.said):
        frozen.console.note(note)
    frozen.said.update(notes)
    store, skipped = opened[0] if opened else None, []
    if len(missing_N):
        layer = frozen.resolved.eval.layer
        network = partial(features.outputs, frozen.model, layer=layer, with_logits=with_logits)
        try:
            skipped = feature_pass.fill(
                store,
                missing_N,
                frozen.model,
                network,
                split,
                frozen.preprocessing,
                num_logits=frozen.arch.num_classes if with_logits else 0,
                runtime=machine,
                batch_size=frozen.resolved.eval.batch_size,
                on_bad_image=frozen.resolved.data.on_bad_image,
                num_threads=frozen.num_threads,
                precision=frozen.precision,
                console=frozen.console,
            )
        except KeyboardInterrupt:
            rest = "; the same command computes only the rest" if store and store.is_kept else ""
            raise Stopped(signal.SIGINT, f"stopped while looking at {split.name}{rest}") from None
        skipped = sorted(machine.union(set(skipped)))
    num_computed = len(missing_N) - len(skipped)
    return Computed(store, len(rows_N) - len(missing_N), num_computed, skipped)


def _with_preprocessing(resolved: Recipe, preprocessing: Preprocessing) -> Recipe:
    """The recipe that says what is really done to the pixels, so that feeding it back repeats it."""
    has_crop = preprocessing.resize == "short_side" or (
        preprocessing.resize == "square" and preprocessing.crop_fraction != 1
    )
    height, width = preprocessing.image_size
    used = {
        "image_size": height if height == width else (height, width),
        "eval_resize": preprocessing.resize,
        "eval_crop_fraction": preprocessing.crop_fraction if has_crop else None,
        "interpolation": preprocessing.interpolation,
        "antialias": preprocessing.antialias,
        "mean": preprocessing.mean,
        "std": preprocessing.std,
    }
    return resolved.model_copy(update={"data": resolved.data.model_copy(update=used)})


def _state_of_files(dataset: str | None) -> str | None:
    """Changes when a file of a local data set does; None for one that is not local."""
    shelf = os.environ.get("VIT_DATA")
    places = [Path(shelf, str(dataset))] if shelf else []
    for place in [*places, Path(str(dataset)).expanduser()]:
        if place.exists():
            return layouts.state_of(place)
    return None
