"""`vit evaluate`, `vit predict` and `vit compare`."""

import re
import shlex
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from vitcli.cli import complete, hints, inputs, options
from vitcli.cli.help import DATA, MODEL, RUN, USE
from vitcli.cli.options import Printing, RecipeOptions, command, launch, option
from vitcli.errors import VitError
from vitcli.output import text

if TYPE_CHECKING:
    from vitcli.recipe import Recipe

app = typer.Typer()
MIRRORED = "Test-time augmentation: average over the image and its horizontal flip (2x slower)."
PREDICTIONS = "Folder of a run or of vit evaluate --out, or a file of --save-predictions."


# fmt: off
@dataclass(frozen=True)
class PredictionOptions:
    """Options of `vit predict`."""

    images: Annotated[list[str], typer.Argument(metavar="IMAGES",
        help="Files, folders and globs; or videos, by frames.")]
    res: options.Res = None
    skip_bad: Annotated[bool, option("--skip-bad", DATA,
        "Skip images that cannot be read and exit 0 (default: predict the others, then exit 3). "
        "[data.on_bad_image]")] = False
    ckpt: options.RequiredCkpt = None
    model: options.Model = None
    topk: Annotated[int | None, option("--topk", RUN, "Classes to list per image (default: 5).", "N",
        min=1)] = None
    set_: options.Set = None
    out: Annotated[Path | None, option("--out", RUN,
        "Also write the predictions: a row per image in a .csv, a JSON object in a .jsonl, a page of "
        "images in a .html, the most doubtful first (default: only print them).", "FILE")] = None
    threshold: Annotated[float | None, option("--threshold", RUN,
        "Probability below which the top class is marked as unsure (default: none; the result "
        "names one at which 99 % of the answered dev images are right).", "P", min=0, max=1)] = None
    tta: Annotated[bool, option("--tta", RUN, MIRRORED)] = False
    sort_into: Annotated[Path | None, option("--sort-into", RUN,
        "Copy each image into a folder of its class below FOLDER, those below --threshold or unlike the "
        "training images into unsure; overwrites nothing (default: copy none).", "FOLDER")] = None
    why: Annotated[Path | None, option("--why", RUN,
        "Also explain, on one page: the training images with the largest influence, the patches that "
        "carry the answer, and the runner-up class (default: no). Needs a run of vit fewshot or vit finetune "
        "whose training data is still available.", "FILE.html")] = None
    every: Annotated[int | None, option("--every", DATA,
        "Of a video, every Nth frame (extra: video; default: 30).", "N", min=1)] = None
    part_rows: options.PartRows = None
    jsonl: Annotated[bool, option("--jsonl", RUN,
        "Print one JSON object per image (default: a table).")] = False
    overwrite: options.Overwrite = False

    def load(self, inference: options.InferenceOptions) -> "Recipe":
        """Return the recipe of the call; VitError for images that are not there, or a checkpoint among them.
        """
        if self.ckpt is None and self.images and hints.looks_like_weights(self.images[0]):
            ckpt, others = self.images[0], shlex.join(name for name in self.images if name != self.images[0])
            fix = f"vit predict --ckpt {shlex.quote(ckpt)} {others or 'IMAGES'}"
            raise VitError(f"{ckpt} is a checkpoint, not an image", where="IMAGES", fix=fix)
        from vitcli.recipe import check_names_ckpt

        given = RecipeOptions(None, self.res, self.model, None, self.set_, self.skip_bad)
        if self.why and self.ckpt and inputs.is_fewshot_run(self.ckpt):  # it holds no weights, but names them
            recipe = given.load(None, inference, {"model.ckpt": self.ckpt})
        else:
            recipe = given.load(self.ckpt, inference)
        check_names_ckpt(recipe, "predict")
        inputs.check_images(self.images, "IMAGES")
        if self.part_rows:
            self._check_parts(self.part_rows)
        return recipe

    def _check_parts(self, part_rows: int) -> None:
        others = {"--why": self.why, "--sort-into": self.sort_into, "--jsonl": self.jsonl}
        if named := next((name for name, value in others.items() if value), None):
            fix = f"leave {named} out, or --part-rows; the parts are .jsonl files"
            raise VitError(f"{named} needs all images at once", where=f"{named} and --part-rows", fix=fix)
        inputs.check_folder_of_parts(self.out, part_rows)


@dataclass(frozen=True)
class EvaluationOptions:
    """Options of `vit evaluate`."""

    dataset: Annotated[list[str] | None, option("--dataset", DATA,
        f"{options.DATA_HELP} Repeatable: every checkpoint is scored on every data set (default: of a run "
        "folder, the images that it held out). [data.dataset]",
        "DATA", autocompletion=complete.datasets)] = None
    split: options.Split = "auto"
    real: Annotated[str | None, option("--real", DATA,
        "Also score by ReaL labels: real.json or real.json.gz; without FILE, the published ones, which timm "
        "includes. Images are matched by their file names "
        "ILSVRC2012_val_..., else by a column index, else by row (default: none).", "FILE")] = None
    real_index: Annotated[str | None, option("--real-index", DATA,
        "Column with the position of each image in --real, from 0 (default: index, if there is one).",
        "COLUMN")] = None
    classes: Annotated[str | None, option("--classes", DATA,
        "Class map: imagenet_a, imagenet_r, imagenet_sketch, imagenet_v2, objectnet, or a .toml file. Only "
        "its classes compete, and only their images count (default: all classes).",
        "MAP", autocompletion=complete.class_maps)] = None
    all_compete: Annotated[bool, option("--all-compete", DATA,
        "With --classes: classes outside the map may be predicted too.")] = False
    res: Annotated[str | None, option("--res", DATA,
        f"{options.SIZE_HELP}. A range 160:384:32 (first, last, step) gives a curve (default: by the "
        "checkpoint). [data.image_size]",
        "PX")] = None
    skip_bad: options.SkipBad = False
    ckpt: Annotated[list[str] | None, option("--ckpt", MODEL,
        f"Required. {options.WEIGHTS_HELP}. Repeatable. [model.ckpt]", "CKPT",
        autocompletion=complete.ckpts)] = None
    model: options.Model = None
    num_processes: options.NumProcesses = None
    recipe: options.RecipeName = None
    set_: options.Set = None
    tta: Annotated[bool, option("--tta", RUN, MIRRORED)] = False
    out: Annotated[Path | None, option("--out", RUN,
        "Folder for evaluation.json, tables and figures (default: write none).", "FOLDER")] = None
    overwrite: options.Overwrite = False
    part_rows: options.PartRows = None
    save_predictions: Annotated[str | None, option("--save-predictions", RUN,
        "Write the prediction for each image to a .parquet file, for vit compare and other tools (default: "
        "none).", "FILE")] = None
    assert_: Annotated[list[str] | None, option("--assert", RUN,
        "Condition on a number of the JSON, such as 'top1>=0.92'; exit code 8 if it does not hold "
        "(default: none). Repeatable.", "CHECK", autocompletion=complete.numbers)] = None
    profile: options.Profile = False
    verbose: options.Verbose = False

    @property
    def sides(self) -> tuple[int, ...]:
        return resolution_range(self.res)

    def load(
        self, inference: options.InferenceOptions, data: str | None, weights: str | None
    ) -> "Recipe":
        """Return the recipe of one evaluation; without a data set, that of the run."""
        is_named = data or self.recipe or any(key.startswith("data.dataset") for key in self.set_ or ())
        of_run = {} if is_named or not weights else inputs.data_of_run(weights)
        data, size = of_run.pop("data.dataset", data), None if self.sides else self.res
        recipe = RecipeOptions(data, size, self.model, self.recipe, self.set_, self.skip_bad)
        return recipe.load(weights, inference, recipe.without_given(of_run), command="evaluate")

    def scores(self, asserted: tuple):
        """Return the EvaluateOptions."""
        from vitcli.evaluation.evaluate import EvaluateOptions

        return EvaluateOptions(
            split=self.split, real=self.real, real_index=self.real_index, classes=self.classes,
            all_compete=self.all_compete, sides=self.sides, mirrored=self.tta,
            save_predictions=self.save_predictions, asserted=asserted, part_rows=self.part_rows,
        )
# fmt: on


@command(
    app,
    panel=USE,
    example="""\
vit predict --ckpt runs/photos holiday/ 'more/*.jpg'
vit predict --ckpt runs/photos holiday/ --threshold 0.8 --out holiday.html
vit predict --ckpt runs/photos odd.jpg --why why.html""",
)
def predict(*, inference: options.InferenceOptions, asked: PredictionOptions, printing: Printing) -> int:
    """Predict the classes of images.

    Images are preprocessed exactly as in evaluation.
    """
    if asked.jsonl and printing.as_json:
        raise typer.BadParameter("--json prints one object, --jsonl one per image: name one of them")
    recipe = asked.load(inference)
    launch(None, inference.device)
    from vitcli.evaluation import predict as predictions
    from vitcli.evaluation.text import predictions_as_text

    more = predictions.PredictOptions(
        asked.topk, asked.threshold, asked.tta, asked.sort_into, asked.every, asked.part_rows
    )
    settings, render = inference.settings(printing, asked.out, asked.overwrite), predictions_as_text
    if asked.why:
        from vitcli.inspection.why import as_text, predict_why

        result = predict_why(asked.images, recipe, settings, more, asked.why)
        render = as_text
    else:
        result = predictions.predict(asked.images, recipe, settings, more)
    error = predictions.failure(result)
    if asked.jsonl:
        text.write(predictions.as_jsonl(result, partial(text.json_text, indent=None)))
        if error:
            raise error
        return 0
    render = partial(render, is_brief=False if asked.topk else None)
    return printing.show_and_fail(result, error, render)


@command(
    app,
    panel=USE,
    example="""\
vit evaluate --ckpt runs/photos --dataset photos/ --out evaluation
vit evaluate --ckpt runs/c10 --dataset cifar10 --assert 'top1>=0.92'""",
)
def evaluate(*, inference: options.InferenceOptions, asked: EvaluationOptions, printing: Printing) -> int:
    """Score checkpoints on data sets: accuracy, calibration.

    Every example counts exactly once. Also ReaL labels, bootstrap intervals, accuracy by class and the most
    confident mistakes.
    """
    from vitcli.evaluation import assertions
    from vitcli.experiments import vtab

    # Mistakes are reported before any work.
    keys = assertions.NUMBERS + assertions.OF_NUMBERS + (assertions.OF_REAL if asked.real else ())
    asserted = tuple(assertions.parse(text, keys=keys) for text in asked.assert_ or ())
    pairs = list(product(asked.ckpt or [None], asked.dataset or [None]))
    groups = next(filter(None, map(vtab.tasks_of, asked.dataset or ())), {})
    more = (
        asked.sides, asked.real, asked.real_index, asked.classes, asked.all_compete, asked.tta, asked.out,
        asked.overwrite, asked.save_predictions, asked.part_rows, asserted,
    )  # fmt: skip
    if groups and (len(pairs) > 1 or any(more)):
        raise typer.BadParameter("vtab takes one --ckpt, no second --dataset, and scoring options only")
    is_vtab = bool(groups and asked.ckpt)  # then --ckpt is the folder of the tasks
    recipes = [] if is_vtab else [asked.load(inference, data, weights) for weights, data in pairs]

    launch(asked.num_processes, inference.device)
    from vitcli.evaluation.evaluate import evaluate as score_all
    from vitcli.evaluation.text import as_text

    scores = asked.scores(asserted)
    settings = inference.settings(
        printing, asked.out, asked.overwrite, verbose=asked.verbose, profile=asked.profile
    )
    if is_vtab:

        def score(task: str, weights: str) -> dict[str, Any]:
            return score_all([asked.load(inference, task, weights)], scores, settings)

        return printing.show(vtab.evaluate_tasks(groups, asked.ckpt[0], score), vtab.render)
    result = score_all(recipes, scores, settings)
    # Whatever was asserted, the result is printed first.
    evaluations = result.get("evaluations", [result])
    named = [(f"{evaluation['ckpt']} on {evaluation['dataset']}", evaluation) for evaluation in evaluations]
    error = assertions.failed(asserted, named)
    return printing.show_and_fail(result, error, partial(as_text, verbose=asked.verbose))


@command(app, panel=USE, example="vit compare runs/b16 runs/l16")
def compare(
    *,
    a: Annotated[str, typer.Argument(metavar="A", help=PREDICTIONS)],
    b: Annotated[str, typer.Argument(metavar="B", help=PREDICTIONS)],
    printing: Printing,
) -> int:
    """Compare two sets of saved predictions.

    B - A in top-1 accuracy with a paired bootstrap interval, McNemar's test, and the accuracy by class.
    """
    for file in (a, b):
        inputs.check_file(file, "A and B")
    from vitcli.evaluation.compare import compare
    from vitcli.evaluation.text import comparison_as_text

    return printing.show(compare(a, b), comparison_as_text)


def resolution_range(res: str | None) -> tuple[int, ...]:
    """Return the sides of a range such as 160:384:32, both ends included; none for a single size."""
    if res is None or ":" not in res:
        return ()
    parts = re.fullmatch(r"([1-9]\d{0,4}):([1-9]\d{0,4}):([1-9]\d{0,4})", res)
    sides = tuple(range(int(parts[1]), int(parts[2]) + 1, int(parts[3]))) if parts else ()
    if not 1 <= len(sides) <= 100:
        message = f"{res!r} is not a range of sizes: 160:384:32 (first, last, step; at most 100)"
        raise typer.BadParameter(message, param_hint="--res")
    return sides
