"""The runs that `vit average` is given: found, read one after the other, and refused where no average is."""

import hashlib
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from torch import nn

from vitcli.data.seen_images import SeenImages
from vitcli.errors import VitError, WeightsError
from vitcli.io.files import open_regular
from vitcli.models.architecture import Architecture
from vitcli.models.layered_head import can_read_layers, with_layered_head
from vitcli.output import run_folder
from vitcli.output.run_folder import REPEATS
from vitcli.output.summaries import TrainingSummary, read
from vitcli.output.text import first_few
from vitcli.recipe import Recipe
from vitcli.recipe.schema import Model
from vitcli.weights.average import START
from vitcli.weights.files import checksum_of
from vitcli.weights.io import Weights, read_weights
from vitcli.weights.load import load, load_with_head

SEED = "seed-"  # begins the names of repeated runs
TAKES = "vit average takes folders of finished runs of vit finetune: RUN/runs/*, or RUN for its runs"


@dataclass(frozen=True)
class FinishedRun:
    """A finished run, without its tensors.

    Attributes:
        recipe: with the present paths of its files.
        arch, preprocessing, class_names, metadata: as `Weights` has them.
        tensor_names: in the file of its weights.
        sha256: of that file.
    """

    path: Path
    summary: dict[str, Any]
    recipe: Recipe
    arch: Architecture
    preprocessing: dict | None
    class_names: tuple[str, ...] | None
    metadata: dict[str, Any]
    tensor_names: tuple[str, ...]
    sha256: str

    @property
    def weights_file(self) -> Path:
        return self.path / run_folder.WEIGHTS

    @property
    def start(self) -> str:
        """The digest of the network before the first step; "" where an earlier version has not stored it."""
        return str(self.metadata.get(START) or "")

    @property
    def seen(self) -> SeenImages:
        return SeenImages.of(self.metadata)


def find_runs(places: Sequence[str]) -> list[Path]:
    """Return the folders of finished runs: each that is named, or its repeated runs where it has some.

    Raises:
        VitError: a place is no finished run, is named twice, or there are fewer than two.
    """
    runs: dict[Path, Path] = {}
    for place in places:
        for path in _runs_at(Path(place)):
            if path.resolve() in runs:
                raise VitError(
                    f"the run {path} is named twice", where=f"RUN {place}", fix="name each run once"
                )
            if not (path / run_folder.WEIGHTS).is_file() or run_folder.finished_summary(path) is None:
                fix = f"let it finish: the command that began it resumes it; {TAKES}"
                raise VitError(f"the run {path} has not finished", where=f"RUN {place}", fix=fix)
            runs[path.resolve()] = path
    if len(runs) < 2:
        raise VitError(
            "an average needs at least two runs",
            where=f"RUN {' '.join(places)}",
            fix="name more runs, or train several: vit finetune --runs 3",
        )
    return list(runs.values())


def _runs_at(place: Path) -> list[Path]:
    if not place.is_dir():
        what = f"{place} is a file" if place.exists() else f"there is no folder {place}"
        raise VitError(what, where=f"RUN {place}", fix=TAKES)
    for parent in (place / REPEATS, place):
        seeds = [path for path in parent.glob(f"{SEED}*") if (path / run_folder.RECIPE).is_file()]
        if seeds:
            return sorted(seeds, key=lambda path: (len(path.name), path.name))  # seed-9 before seed-10
    if not (place / run_folder.RECIPE).is_file():
        below = [path.parent.name for path in sorted(place.glob(f"*/{run_folder.RECIPE}"))]
        fix = f"name the runs in it: {first_few([str(place / name) for name in below])}" if below else TAKES
        raise VitError(f"{place} is not the folder of a run", where=f"RUN {place}", fix=fix)
    return [place]


def read_runs(paths: Sequence[Path]) -> list[FinishedRun]:
    """Read all that is known of the runs, and check every tensor, with the tensors of one run in memory.

    Raises:
        VitError: a folder is damaged, or two runs have no average, see `refuse_different`.
    """
    runs = [_read_run(path) for path in paths]
    for run in runs[1:]:
        refuse_different(runs[0], run)
    return runs


def _read_run(path: Path) -> FinishedRun:
    read(path / run_folder.SUMMARY, TrainingSummary)  # refuses a damaged one
    summary = run_folder.finished_summary(path)
    if summary.get("top1") is None:
        fix = "average runs of vit finetune"
        raise WeightsError("the run has no accuracy to compare by", where=f"RUN {path}", fix=fix)
    weights = read_weights(str(path), quiet=True)
    about = (weights.architecture, weights.preprocessing, weights.class_names, weights.metadata)
    with open_regular(path / run_folder.WEIGHTS) as file:
        sha256 = hashlib.file_digest(file, "sha256").hexdigest()
    recipe, _ = run_folder.recipe_of(path)
    return FinishedRun(path, summary, recipe, *about, tuple(weights.state), sha256)


def refuse_different(one: FinishedRun, other: FinishedRun) -> None:
    """Refuse to average two runs whose networks, starts, classes or pixels are not the same.

    Raises:
        WeightsError: as described.
    """
    where = f"RUN {one.path} and {other.path}"

    def refuse(what: str, fix: str) -> None:
        raise WeightsError(what, where=where, fix=fix)

    architectures = asdict(one.arch), asdict(other.arch)
    if names := [key for key in architectures[0] if architectures[0][key] != architectures[1][key]]:
        key = next((key for key in names if key != "name"), names[0])
        values = " and ".join(str(arch[key]) for arch in architectures)
        refuse(f"the runs are of different networks: {key} {values}", "average runs of one network")
    if one.class_names != other.class_names:
        pairs = zip(one.class_names or (), other.class_names or (), strict=False)
        number, names = next(((k, pair) for k, pair in enumerate(pairs) if pair[0] != pair[1]), (0, None))
        which = f"class {number} is {names[0]} and {names[1]}" if names else "only one has their names"
        refuse(
            f"the runs have other classes, or another order of them: {which}", "train them on one data set"
        )
    origins = one.metadata.get("from"), other.metadata.get("from")
    if not all(origins):
        refuse("a run from fresh weights has no start in common with another", "average fine-tuned runs")
    starts = (one.start, other.start) if one.start and other.start else origins
    if starts[0] != starts[1]:
        names = f" ({origins[0]} and {origins[1]})" if origins[0] != origins[1] else ", though of one name"
        fix = "average runs that were fine-tuned from the same weights, with the same kind of head"
        refuse(f"the runs started from different weights{names}: their mean is no network", fix)
    if one.preprocessing != other.preprocessing:
        refuse("the runs see other pixels: size, resize, crop, mean or std differ", "give them one recipe")
    if one.summary.get("eval_fingerprint") != other.summary.get("eval_fingerprint"):
        refuse("the runs report on different images", "average runs of one data set and one eval split")


def trained_on(runs: Sequence[FinishedRun]) -> np.ndarray | None:
    """Return the digests of all images that any of the runs was trained on; None if one does not know."""
    digests = [run.seen.trained_on for run in runs]
    return None if any(part is None for part in digests) else np.unique(np.concatenate(digests))


def start_of(run: FinishedRun) -> dict[str, np.ndarray]:
    """Read the network before the first step of a run, as its recipe made it.

    Raises:
        VitError: the checkpoint is not there or has changed, or the run does not say what it was.
    """
    settings = run.recipe.model
    where, fix = f"{settings.ckpt}, the start of {run.path}", "put the checkpoint back, or --method uniform"
    if not run.start:
        what = "an earlier version has stored no digest of the start, which Model Stock goes back to"
        raise WeightsError(what, where=where, fix="--method uniform or greedy")
    gelu = None if settings.gelu == "auto" else settings.gelu
    weights = read_weights(settings.ckpt, model_name=settings.name, gelu=gelu, quiet=True)
    model = _network_of(weights, settings, run)
    if checksum_of(model.state_dict(), "") != run.start:
        raise WeightsError(
            "the checkpoint is no longer the one that the runs started from", where=where, fix=fix
        )
    layers = run.arch.head_layers
    layered = with_layered_head(model, layers) if can_read_layers(model, layers) else model
    return {name: tensor.numpy() for name, tensor in layered.state_dict().items()}


def _network_of(weights: Weights, settings: Model, run: FinishedRun) -> nn.Module:
    options = {
        "image_size": run.recipe.data.image_hw,
        "num_classes": run.arch.num_classes,
        "posemb_method": settings.posemb_resample,
    }
    if settings.head == "keep":
        model, *_ = load_with_head(weights, run.class_names, data_name=str(run.path), **options)
    else:
        model, *_ = load(weights, **options)
    return model
