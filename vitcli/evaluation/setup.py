"""Set-up shared by the commands that run a checkpoint without training it."""

from dataclasses import dataclass, replace
from pathlib import Path

from vitcli.data import dataset, loader
from vitcli.data.split import Split
from vitcli.data.transforms import Preprocessing, preprocessing_of
from vitcli.distributed.runtime import start as start_runtime
from vitcli.evaluation.inference import EvalSettings
from vitcli.output.progress import Progress
from vitcli.recipe import Recipe
from vitcli.recipe.request import RecipeRequest
from vitcli.weights.io import Weights, read_weights

# Recipe key to the field of Preprocessing it decides.
FIELDS = {
    "data.image_size": "image_size",
    "data.eval_resize": "resize",
    "data.eval_crop_fraction": "crop_fraction",
    "data.interpolation": "interpolation",
    "data.antialias": "antialias",
    "data.mean": "mean",
    "data.std": "std",
}


@dataclass(frozen=True)
class RunSettings:
    """Options about where and how a command runs; no result depends on them.

    Attributes:
        workers: loader threads; None for as many as this process has cores.
        quiet: no progress, no notes.
        out: file or folder to write.
        overwrite: replace another result in `out`.
    """

    workers: int | None = None
    quiet: bool = False
    out: Path | None = None
    overwrite: bool = False


def preprocessing_for(weights: Weights, recipe: Recipe, request: RecipeRequest) -> tuple[Preprocessing, str]:
    """Return the preprocessing for these weights, and its origin in a few words.

    A recipe named on the command line decides alone. Otherwise weights keep the preprocessing stored with
    them, except for keys given on the command line; raw weights get the recipe's, at their own resolution.
    """
    # Files of `vit embed` store the words of the origin and are compared with them: they must not change.
    of_recipe = preprocessing_of(recipe.data)
    if request.name is not None:
        return of_recipe, f"as recipe {request.name} says"
    given = request.given
    if weights.preprocessing is None:
        if "data.image_size" not in given:
            of_recipe = replace(of_recipe, image_size=weights.architecture.image_size)
        return of_recipe, "by the recipe, as the weights store none"
    stored = Preprocessing.from_dict(weights.preprocessing)
    changes = {field: getattr(of_recipe, field) for key, field in FIELDS.items() if key in given}
    if changes.get("resize") == "square" != stored.resize:  # the crop fraction belongs to the resize rule
        changes.setdefault("crop_fraction", of_recipe.crop_fraction)
    origin = "as stored with the weights" + (f", but for {', '.join(changes)}" if changes else "")
    return replace(stored, **changes), origin


def eval_settings(recipe: Recipe, run: RunSettings) -> EvalSettings:
    """Join the run's processes, and return the settings of a command's passes, in fp32 by default."""
    precision = recipe.precision.compute
    runtime = start_runtime("fp32" if precision == "auto" else precision)
    return EvalSettings(
        runtime=runtime,
        batch_size=recipe.eval.batch_size,
        on_bad_image=recipe.data.on_bad_image,
        num_threads=run.workers or loader.default_threads(runtime.processes_here),
        progress=Progress(quiet=run.quiet, is_main=runtime.is_main),
        precision=runtime.precision,
    )


def open_eval_split(recipe: Recipe, split: str, weights: Weights) -> Split:
    """Open the named split, with "auto" the recipe's; weights that were scored on a dev part get that."""
    name = recipe.data.eval_split if split == "auto" else split
    return dataset.open_eval(recipe.data, name, dev_cut=weights.metadata.get("dev_cut"))


def read_checkpoint(recipe: Recipe) -> Weights:
    """Read the weights that a recipe names, with the recipe's GELU where it names one."""
    model = recipe.model
    return read_weights(model.ckpt, model_name=model.name, gelu=None if model.gelu == "auto" else model.gelu)
