"""What `vit average` is given: runs, read one after the other, and images; refused where no average is."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from vitcli.data.classes import match_class_names
from vitcli.data.dataset import from_section
from vitcli.data.seen_images import SeenImages, never_trained_on
from vitcli.data.split import Split
from vitcli.errors import DataError, VitError, WeightsError
from vitcli.models.architecture import Architecture
from vitcli.output import run_folder
from vitcli.output.atomic import digest_of_file
from vitcli.output.run_folder import REPEATS
from vitcli.output.summaries import TrainingSummary, read
from vitcli.output.text import first_few
from vitcli.recipe import Recipe
from vitcli.training.setup import RunOptions
from vitcli.weights.average import START
from vitcli.weights.io import read_weights
from vitcli.weights.names import FRESH

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
    def start(self) -> str:
        """The digest of the network before the first step; "" of fresh weights."""
        return str(self.metadata.get(START) or "")

    @property
    def seen(self) -> SeenImages:
        return SeenImages.of(self.metadata)


def find_runs(places: Sequence[str]) -> list[Path]:
    """Return the folders of finished runs: each that is named, or its repeated runs where it has some.

    Raises:
        VitError: a place is not a finished run, is named twice, or there are fewer than two.
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
    return FinishedRun(
        path,
        summary,
        run_folder.recipe_of(path)[0],
        weights.architecture,
        weights.preprocessing,
        weights.class_names,
        weights.metadata,
        tuple(weights.state),
        digest_of_file(path / run_folder.WEIGHTS).hex(),
    )


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
        fix = "train them on one data set"
        refuse(f"the runs have different classes, or another order of them: {which}", fix)
    origins = one.metadata.get("from"), other.metadata.get("from")
    if not all(origins):
        refuse(
            "cannot average runs trained from scratch: no common initialization", "average fine-tuned runs"
        )
    if one.start != other.start:
        names = f"{origins[0]} and {origins[1]}" if origins[0] != origins[1] else f"both named {origins[0]}"
        fix = "average runs that were fine-tuned from the same weights, with the same kind of head"
        refuse(f"the runs start from different weights ({names}) and cannot be averaged", fix)
    if one.preprocessing != other.preprocessing:
        refuse("the runs see different pixels: size, resize, crop, mean or std", "give them one recipe")
    if one.summary.get("eval_fingerprint") != other.summary.get("eval_fingerprint"):
        refuse("the runs report on different images", "average runs of one data set and one eval split")


def trained_on(runs: Sequence[FinishedRun]) -> np.ndarray | None:
    """Return the digests of all images that any of the runs was trained on; None if one does not know."""
    digests = [run.seen.trained_on for run in runs]
    return None if any(part is None for part in digests) else np.unique(np.concatenate(digests))


def usable_dev(dev: Split, runs: Sequence[FinishedRun], *, is_held_out: bool) -> Split:
    """Return the images of a dev split, held out by the runs or not, that none of them was trained on.

    Raises:
        DataError: there are none, or they are those that the runs report on.
    """
    reported = {run.summary.get("eval_fingerprint") for run in runs}
    where = f"{dev.name}, to select the average on"
    if dev.fingerprint in reported:
        fix = "name others with --split: an average that is selected on its test images has no test"
        raise DataError("the runs report on these images", where=where, fix=fix)
    part = never_trained_on(dev, trained_on(runs), is_held_out=is_held_out)
    if not len(part):
        fix = "name others with --split, or train with --set train.average_runs=auto, which holds some out"
        raise DataError(f"all {len(dev):,} images were trained on", where=where, fix=fix)
    return part


def in_classes_of(split: Split, run: FinishedRun) -> Split:
    """Return a split with its labels in the order of the classes of a run."""
    num_classes = run.arch.num_classes
    return match_class_names(split, run.class_names, num_classes=num_classes, ckpt=str(run.path))[0]


def with_data(run: FinishedRun, dataset: str | None) -> Recipe:
    """Return the recipe of a run with its data set where it is now."""
    if not dataset:
        return run_folder.recipe_with_data(run.path)
    recipe, _ = run_folder.recipe_of(run.path)
    return recipe.model_copy(update={"data": recipe.data.model_copy(update={"dataset": dataset})})


def open_named_dev(recipe: Recipe, name: str, runs: Sequence[FinishedRun]) -> Split:
    """Open the dev split that the user names; refuse the split that the runs report on."""
    opened = from_section(recipe.data).open(name)
    reported, _, rows = runs[0].summary["eval_split"].partition("[")
    if opened.name.partition("[")[0] == reported and not rows:
        raise DataError(
            "the runs report on these images, and an average that is selected on its test images has no test",
            where=f"--split {name}",
            fix="name images that no run reports on, such as validation",
        )
    return opened


def refuse_without_dev() -> NoReturn:
    """Refuse a greedy soup of runs that held out no dev split."""
    raise VitError(
        "a greedy soup is selected on images that no run was trained on, and these runs held none out",
        where="--method greedy",
        fix="name such images with --split; or train them anew, and some are held out: "
        "vit finetune --ckpt CKPT --dataset DATA --runs 3 --set train.average_runs=greedy",
    )


def refuse_to_average(command: str, recipe: Recipe, options: RunOptions) -> None:
    """Refuse before the first step to train runs that could not be averaged.

    Raises:
        VitError: there is one run, or they start from weights of their own or are too large for one process.
    """
    where = f'recipe key train.average_runs = "{recipe.train.average_runs}"'
    if recipe.train.runs == 1:
        what = "an average is of several runs, and train.runs is 1"
        raise VitError(what, where=where, fix="add --runs 3, or leave it out")
    if command != "finetune" or recipe.model.ckpt == FRESH:
        what = "cannot average runs trained from scratch: no common initialization"
        raise VitError(what, where=where, fix="leave it out, or fine-tune a checkpoint")
    if options.shard:
        what = "an average is made in one process, and --shard is for networks that are too large for one"
        raise VitError(what, where=f"--shard with {where}", fix="drop one of the two")


def refuse_multilabel(splits: Sequence[Split]) -> None:
    """Refuse images with several labels each, of which no image is simply right, as the paired test asks."""
    if any(split.is_multilabel for split in splits):
        raise DataError(
            "averages are compared by which images they have right, and these have several labels each",
            where=f"{splits[0].name}; recipe key train.average_runs, or vit average",
            fix="leave the average out; the runs are trained without it",
        )
