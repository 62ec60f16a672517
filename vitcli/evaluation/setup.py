"""Set-up shared by the commands that run a checkpoint without training it."""

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import numpy as np

from vitcli import recipe as recipes
from vitcli.data import loader
from vitcli.data.seen_images import SeenImages, union
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, as_data_keys, keys_of_weights, preprocessing_of, with_stated
from vitcli.distributed.runtime import Runtime
from vitcli.distributed.runtime import start as start_runtime
from vitcli.errors import VitError, WeightsError
from vitcli.evaluation.inference import EvalSettings
from vitcli.evaluation.regression import target_of
from vitcli.models.architecture import Architecture
from vitcli.models.build import default_image_size
from vitcli.models.features import TimmNetwork
from vitcli.output import run_folder
from vitcli.output.profile import StepProfiler
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.recipe.schema import WEIGHTS, Data
from vitcli.recipe.toml import flat, nested
from vitcli.recipe.validation import Problem, contradictions, report
from vitcli.weights.describe import STORED, WeightsInfo
from vitcli.weights.files import attribute_errors_to
from vitcli.weights.io import Weights, read_description, read_weights
from vitcli.weights.load import load_for_inference
from vitcli.weights.names import FRESH

Start = tuple[str, str | None]  # a checkpoint and the name of its network, as a recipe has them
# Recipes whose [data] section holds for weights that state no preprocessing, and for fresh ones of a command.
UNSTATED = {"evaluate": "evaluate/default", "finetune": "evaluate/default", "pretrain": "pretrain/table3"}


@dataclass(frozen=True)
class RunSettings:
    """Options about where and how a command runs; no result depends on them.

    Attributes:
        workers: loader threads; None for as many as this process has cores.
        quiet: no progress, no notes.
        verbose: every note and detail.
        out: file or folder to write.
        overwrite: replace another result in `out`.
        profile: trace a few batches, into `out` if there is one.
    """

    workers: int | None = None
    quiet: bool = False
    out: Path | None = None
    overwrite: bool = False
    profile: bool = False
    verbose: bool = False


@dataclass(frozen=True, eq=False)
class LoadedNetwork:
    """A network on its device with what its answers depend on.

    Attributes:
        preprocessing_from: the origin of the preprocessing, in words.
    """

    weights: Weights
    arch: Architecture
    model: TimmNetwork
    preprocessing: Preprocessing
    preprocessing_from: str
    settings: EvalSettings


def load_network(
    weights: Weights, recipe: Recipe, settings: EvalSettings, *, needs_head: bool = True
) -> LoadedNetwork:
    """Load weights onto the device, at the resolution and with the preprocessing that belong to them."""
    preprocessing, origin = preprocessing_for(weights, recipe)
    model, arch = load_for_inference(
        weights,
        preprocessing.image_size,
        recipe.model.posemb_resample,
        settings.device,
        settings.progress,
        needs_head=needs_head,
    )
    return LoadedNetwork(weights, arch, model, preprocessing, origin, settings)


def preprocessing_for(weights: Weights, recipe: Recipe) -> tuple[Preprocessing, str]:
    """Return the preprocessing for these weights, and its origin in a few words.

    A recipe named on the command line decides alone. Otherwise weights keep the preprocessing stored with
    them, except for keys given on the command line; raw weights get the recipe's, at their own resolution.
    Where a recipe says "weights", the weights decide.
    """
    data = recipe.data
    if keys_of_weights(data):
        stated = _stated(weights, weights.source)
        data = with_stated(data, stated or _unstated("evaluate", weights.architecture.image_size))
    of_recipe = preprocessing_of(data)
    if "--recipe" in recipe.given:
        return of_recipe, f"as recipe {recipe.name} says{_difference(of_recipe, weights)}"
    given = {key for key, value in recipe.given.items() if value != WEIGHTS}
    if (stored := _stated(weights, weights.source)) is None:
        if "data.image_size" not in given:
            of_recipe = replace(of_recipe, image_size=weights.architecture.image_size)
        return of_recipe, "from recipe evaluate/default: the weights do not store theirs"
    fields = {f"data.{key}": key.removeprefix("eval_") for key in as_data_keys(of_recipe)}
    changes = {field: getattr(of_recipe, field) for key, field in fields.items() if key in given}
    if changes.get("resize") == "square" != stored.resize:  # the crop fraction belongs to the resize rule
        changes.setdefault("crop_fraction", of_recipe.crop_fraction)
    used = replace(stored, **changes)
    origin = weights.preprocessing_from + (f", but for {', '.join(changes)}" if changes else "")
    return used, origin + _difference(used, weights)


def settle_pixels(recipe: Recipe, command: str, *, quiet: bool = False) -> Recipe:
    """Return the recipe of a training run with numbers where its [data] section says "weights".

    The numbers are those that the checkpoint states, read without its tensors; those of the recipe in
    UNSTATED where it states none, and for fresh weights. With several checkpoints to choose from, a key on
    which they differ stays: it is settled for each run of the sweep.

    Raises:
        WeightsError: the checkpoint is missing or unreadable.
        VitError: the numbers contradict others of the recipe.
    """
    keys = keys_of_weights(recipe.data)
    if not keys:
        return recipe

    @cache
    def stated(ckpt: str | None, name: str | None) -> Preprocessing:
        if ckpt in (None, FRESH):
            return _unstated(command, default_image_size(name or ""))
        info = read_description(ckpt, model_name=name, quiet=quiet)
        return _stated(info, ckpt) or _unstated(command, info.architecture.image_size)

    models = dict.fromkeys((trial.model.ckpt, trial.model.name) for _, trial in recipes.trials(recipe))
    sections = [with_stated(recipe.data, stated(*model)) for model in models]
    if any(section != sections[0] for section in sections):
        return recipe
    settled = recipe.model_copy(update={"data": sections[0]})
    problems = [Problem(what, f"recipe key {key}", fix) for key, what, fix in contradictions(flat(settled))]
    if problems:
        raise report(problems, f"the recipe with the pixels of {recipe.model.ckpt or recipe.model.name}")
    return settled


def starts_of(recipe: Recipe) -> tuple[Start, ...]:
    """Return what the runs of a recipe start from and learn from, each with the name of its network."""
    models = dict.fromkeys((trial.model.ckpt, trial.model.name) for _, trial in recipes.trials(recipe))
    starts = tuple((ckpt, name) for ckpt, name in models if ckpt not in (None, FRESH))
    return starts + tuple((teacher, None) for teacher in recipe.teachers)


def trained_on_by(starts: Sequence[Start], *, quiet: bool) -> np.ndarray | None:
    """Return digests of all images that these checkpoints were trained on, without their tensors.

    None if they do not say; one that cannot be read is reported when it is loaded.
    """
    return union(seen.ever_trained_on for seen in seen_by_each(starts, quiet=quiet))


def seen_by_each(starts: Sequence[Start], *, quiet: bool) -> list[SeenImages]:
    """Return what each of these checkpoints says of its images; nothing of one that cannot be read."""
    seen = [SeenImages() for _ in starts]
    for number, (ckpt, name) in enumerate(starts):
        with suppress(VitError):
            seen[number] = SeenImages.of(read_description(ckpt, model_name=name, quiet=quiet).metadata)
    return seen


def notes_on_pixels(weights: Weights, recipe: Recipe) -> list[str]:
    """Return a line on the statistics of a training run unless they are those stored with the weights."""
    used = preprocessing_of(recipe.data)
    if difference := _difference(used, weights):
        fix = "--set data.mean=weights --set data.std=weights takes those"
        return [f"note: {used.statistics}, as the recipe says{difference} ({fix})"]
    if weights.preprocessing is None:
        # The paper's weights, by their format or by the name that the user gave them, have the recipe's
        if weights.format == "official npz" or recipe.model.name is not None:
            return []
        return [f"note: {used.statistics}: the weights store none; timm's by --model NAME.TAG"]
    if weights.preprocessing_from == STORED:
        return []
    return [f"{used.statistics}, {weights.preprocessing_from}"]


def _stated(weights: Weights | WeightsInfo, ckpt: str) -> Preprocessing | None:
    with attribute_errors_to(ckpt):
        return Preprocessing.from_dict(weights.preprocessing) if weights.preprocessing else None


def _unstated(command: str, image_size: tuple[int, int]) -> Preprocessing:
    """Return the preprocessing of weights that state none, or of fresh ones, at their own size."""
    values = recipes.merge(UNSTATED[command]).values
    data = Data.model_validate(nested(values)["data"])
    return replace(preprocessing_of(data), image_size=image_size)


def _difference(used: Preprocessing, weights: Weights) -> str:
    """Return the statistics that the weights state where other ones are used; "" otherwise."""
    with suppress(WeightsError):  # stored by another version, and not used
        stated = _stated(weights, weights.source)
        if stated and (stated.mean, stated.std) != (used.mean, used.std):
            return f"; the weights state {stated.statistics}"
    return ""


def eval_settings(recipe: Recipe, run: RunSettings) -> EvalSettings:
    """Join the run's processes, and return the settings of a command's passes, in fp32 by default."""
    precision = recipe.precision.compute
    runtime = start_runtime("fp32" if precision == "auto" else precision)
    progress = Progress(quiet=run.quiet, verbose=run.verbose, is_main=runtime.is_main)
    for note in runtime.notes:
        progress.note(note)
    if runtime.device.type == "cuda" and runtime.precision == "fp32":
        progress.note("note: evaluated in fp32; --precision bf16 is up to eight times as fast on a GPU")
    profiler = StepProfiler() if run.profile and runtime.is_main else None
    settings = settings_of_run(recipe, runtime, progress, workers=run.workers)
    return replace(settings, precision=runtime.precision, profiler=profiler)


def settings_of_run(
    recipe: Recipe, runtime: Runtime, progress: Progress, *, workers: int | None
) -> EvalSettings:
    """Return the settings of the evaluations of a training run."""
    return EvalSettings(
        runtime=runtime,
        batch_size=recipe.eval.batch_size,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=workers or loader.default_threads(runtime.cores),
        progress=progress,
        precision=recipe.precision.evaluation,
    )


def open_eval_split(recipe: Recipe, split: str, weights: Weights, *, needs_labels: bool = True) -> Split:
    """Open the named split, with "auto" the recipe's; weights that were scored on a dev part get that.

    Args:
        needs_labels: False to take plain folders of images too.
    """
    from vitcli.data import dataset  # loads `datasets`, which `vit predict` has no use for

    name = recipe.data.eval_split if split == "auto" else split
    seen = seen_by(weights, recipe.data.dataset)
    data, target = recipe.data, target_of(weights.metadata) if needs_labels else None
    if target and data.label_column is None:
        data = data.model_copy(update={"label_column": target.name})
    return dataset.open_eval(data, name, seen=seen, needs_labels=needs_labels, numbers=target is not None)


def seen_by(weights: Weights, dataset: str | None) -> SeenImages:
    """Return what weights know of the images they were trained on, before `dataset` is opened."""
    folder = run_folder.folder_of(weights.source)
    train_split = folds_in = None
    if folder is not None:
        with suppress(VitError):  # of another version
            recipe, _ = run_folder.recipe_of(folder)
            train_split = recipe.data.train_split if run_folder.is_data_of(recipe, dataset) else None
            folds_in = str(folder / run_folder.SUMMARY) if recipe.train and recipe.train.folds else None
    return SeenImages.of(weights.metadata, train_split=train_split, folds_in=folds_in)


def read_checkpoint(recipe: Recipe, *, quiet: bool) -> Weights:
    """Read the weights that a recipe names, with the recipe's GELU where it names one."""
    model = recipe.model
    gelu = None if model.gelu == "auto" else model.gelu
    assert model.ckpt, "its command demands one"
    return read_weights(model.ckpt, model_name=model.name, gelu=gelu, quiet=quiet)
