"""Every option of the command line: its name, its panel in --help, and what it says there.

A shorthand for a recipe key names the key in brackets.
"""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.errors import VitError
from vitcli.output import text

DATA, MODEL, TRAINING, RUN = "Data", "Model", "Training", "Run"


def recipe_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli import recipe

    return [name for name, _ in recipe.available() if name.startswith(incomplete)]


def dataset_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli import recipe

    return [name for name in ("demo", "vtab", *recipe.dataset_aliases()) if name.startswith(incomplete)]


def model_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli.models.variants import VARIANTS

    # In the letters already typed: the shell would drop another spelling, and names are case-free.
    matching = (name for name in VARIANTS if name.lower().startswith(incomplete.lower()))
    return [incomplete + name[len(incomplete) :] for name in matching]


def class_map_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli import recipe

    return [name for name in recipe.class_maps() if name.startswith(incomplete)]


def study_names(incomplete: str) -> list[str]:
    """For shell completion."""
    from vitcli import recipe

    return [name for name in recipe.studies() if name.startswith(incomplete)]


def option(name: str, panel: str | None, help: str, metavar: str | None = "", **more):
    """One option; the kind of its value is named by `metavar` and not by its Python type."""
    names = [name, "-q"] if name == "--quiet" else [name]
    help = help.replace("[", "\\[")  # a bracket is markup to Rich
    return typer.Option(*names, rich_help_panel=panel, help=help, metavar=metavar, show_default=False, **more)


def height_and_width(res: str | None) -> tuple[int, int] | None:
    """The image size of --res where no recipe takes it; typer.BadParameter for no size in pixels."""
    if res is None:
        return None
    sides = re.fullmatch(r"([1-9]\d{0,4})(?:[xX]([1-9]\d{0,4}))?", res)
    if sides is None:
        raise typer.BadParameter(
            f"{res!r} is no size in pixels: 384, or 384x512 (height x width)", param_hint="--res"
        )
    return int(sides[1]), int(sides[2] or sides[1])


def counts(text: str | None) -> list[int] | None:
    """The value of --shots; typer.BadParameter for anything but numbers from 1."""
    if text is None:
        return None
    if not re.fullmatch(r"[1-9]\d{0,6}(,[1-9]\d{0,6})*", text):
        told = f"{text!r} is no number of images a class, such as 5, or 1,5,10,25"
        raise typer.BadParameter(told, param_hint="--shots")
    return [int(number) for number in text.split(",")]


def count_or_auto(text: str | None) -> int | str | None:
    """The value of --per-device-batch; typer.BadParameter for anything else."""
    if text is None or text == "auto":
        return text
    if not re.fullmatch(r"[1-9]\d{0,6}", text):
        told = f"{text!r} is neither a number of images nor auto"
        raise typer.BadParameter(told, param_hint="--per-device-batch")
    return int(text)


def resolution_range(res: str | None) -> tuple[int, ...]:
    """The sides that a grid such as 160:384:32 names, both ends included; none for a single size."""
    if res is None or ":" not in res:
        return ()
    grid = re.fullmatch(r"([1-9]\d{0,4}):([1-9]\d{0,4}):([1-9]\d{0,4})", res)
    sides = tuple(range(int(grid[1]), int(grid[2]) + 1, int(grid[3]))) if grid else ()
    if not 1 <= len(sides) <= 100:
        raise typer.BadParameter(
            f"{res!r} is no grid of sizes: 160:384:32 (first, last, step; at most 100)", param_hint="--res"
        )
    return sides


# fmt: off
Dataset = Annotated[str | None, option("--dataset", DATA,
    "A folder of class folders, Parquet, Arrow or save_to_disk files; an alias such as oxford_pets; a Hub id "
    "owner/name; or demo. [data.dataset]", "DATA", autocompletion=dataset_names)]
Split = Annotated[str, option("--split", DATA,
    "Such as test or train[:10%]; the test split is found if left out.", "SPLIT")]
Res = Annotated[str | None, option("--res", DATA,
    "Image size in pixels: 384, or 384x512 (height x width). [data.image_size]", "PX")]

Ckpt = Annotated[str | None, option("--ckpt", MODEL,
    "A run folder, .safetensors, official .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo. "
    "[model.ckpt]", "WEIGHTS")]
Model = Annotated[str | None, option("--model", MODEL,
    "The paper's name (ViT-B/16, L/16) or any timm model; a checkpoint usually knows its own. [model.name]",
    "NAME", autocompletion=model_names)]

# Of vit evaluate alone.
Datasets = Annotated[list[str] | None, option("--dataset", DATA,
    "A folder of class folders, Parquet, Arrow or save_to_disk files; an alias such as oxford_pets; a Hub id "
    "owner/name; or demo. Repeatable: every checkpoint is scored on every data set. [data.dataset]", "DATA",
    autocompletion=dataset_names)]
Real = Annotated[str | None, option("--real", DATA,
    "Also score by ReaL labels: real.json, or real.json.gz. Pictures are found by their file names "
    "ILSVRC2012_val_..., else by a column index, else by their row.", "FILE")]
RealIndex = Annotated[str | None, option("--real-index", DATA,
    "Column with each picture's number in --real, from 0.", "COLUMN")]
Classes = Annotated[str | None, option("--classes", DATA,
    "Class map: imagenet_a, imagenet_r, imagenet_sketch, imagenet_v2, objectnet, or a .toml file. Only its "
    "classes compete, and only their pictures count.", "MAP", autocompletion=class_map_names)]
AllCompete = Annotated[bool, option("--all-compete", DATA,
    "With --classes: classes outside the map may be predicted too.")]
ResOrGrid = Annotated[str | None, option("--res", DATA,
    "Image size in pixels: 384, 384x512 (height x width), or a grid 160:384:32 for a curve. "
    "[data.image_size]", "PX")]
Ckpts = Annotated[list[str] | None, option("--ckpt", MODEL,
    "A run folder, .safetensors, official .npz or .pth file, timm/NAME.TAG, hf-hub:OWNER/NAME, or demo; "
    "repeatable. [model.ckpt]", "WEIGHTS")]
EvaluationOut = Annotated[Path | None, option("--out", RUN,
    "Folder for evaluation.json, tables and pictures.", "FOLDER")]
SavePredictions = Annotated[str | None, option("--save-predictions", RUN,
    "Write what is said of each picture, for vit compare and others.", "FILE.parquet")]
Assert = Annotated[list[str] | None, option("--assert", RUN,
    "What must hold of the JSON, such as 'top1>=0.92', or vit ends with exit code 8; repeatable.", "CHECK")]

# Of vit fewshot and vit embed.
Shots = Annotated[str | None, option("--shots", DATA,
    "Images a class: 5, or 1,5,10,25. [fewshot.shots]", "N,...")]
Seeds = Annotated[str | None, option("--seeds", DATA,
    "Draws, of which mean and std are told. [fewshot.seeds]", "N")]
Draws = Annotated[str | None, option("--draws", DATA,
    "Repeat the drawn rows of a draws.json: {seed: {shots: [rows]}}.", "FILE")]
L2 = Annotated[str | None, option("--l2", MODEL,
    "Regularisation of least squares, or sweep: chosen on the drawn images. [fewshot.l2]", "NUMBER|sweep")]
Classifier = Annotated[str | None, option("--classifier", MODEL,
    "least-squares, knn, logistic (extra: fewshot) or ncm. [fewshot.classifier]", "NAME")]
Layer = Annotated[str | None, option("--layer", MODEL,
    "Features: pre_logits, what the last layer is given; token or gap, after the last norm. [eval.layer]",
    "NAME")]
Logits = Annotated[bool, option("--logits/--no-logits", MODEL, "--no-logits leaves them out.")]
FewshotOut = Annotated[Path | None, option("--out", RUN,
    "Run folder: summary, table, recipe and the drawn rows. New under runs/ if left out.", "FOLDER")]
EmbedOut = Annotated[Path | None, option("--out", RUN,
    "The file to write; the same command goes on with an interrupted one.", "FILE.safetensors")]

# Of vit inspect alone.
Pictures = Annotated[list[str] | None, option("--images", DATA,
    "Pictures to look at: a file, folder or glob; repeatable.", "PICTURES")]
Compare = Annotated[str | None, option("--compare", MODEL,
    "A second checkpoint, side by side with the first, on the same pictures.", "WEIGHTS")]
CompareRes = Annotated[str | None, option("--compare-res", DATA,
    "Image size of the second, where it is not that of --res or its own.", "PX")]
InspectionOut = Annotated[Path | None, option("--out", RUN,
    "Folder for figures (PNG, SVG), arrays, numbers and the page inspection.html. New under runs/ if left "
    "out.", "FOLDER")]
Summary = Annotated[bool, option("--summary", RUN,
    "Draw nothing: say what the checkpoint is, whether it is sound, and which commands take it.")]

Steps = Annotated[int | None, option("--steps", TRAINING, "Optimizer steps. [schedule.steps]", "N")]
BatchSize = Annotated[int | None, option("--batch-size", TRAINING,
    "Images a step, over all processes. [train.batch_size]", "N")]
Lr = Annotated[str | None, option("--lr", TRAINING,
    "Base learning rate, or several to choose from: 0.003,0.01. [optimizer.lr]", "RATE")]
Seed = Annotated[int | None, option("--seed", TRAINING, "Seed of everything drawn. [train.seed]", "N")]

RecipeName = Annotated[str | None, option("--recipe", RUN,
    "A shipped recipe (vit recipes list) or a .toml file; found by the data set if left out.", "NAME",
    autocompletion=recipe_names)]
Set = Annotated[list[str] | None, option("--set", RUN,
    "Any other recipe key, such as data.flip=false; repeatable.", "KEY=VALUE")]
Out = Annotated[Path | None, option("--out", RUN,
    "Run folder; the same command goes on with an unfinished run. New under runs/ if left out.", "FOLDER")]
Precision = Annotated[str | None, option("--precision", RUN,
    "auto, fp32, bf16 or fp16; auto is bf16 where the device has it. [precision.compute]", "KIND")]
EvalPrecision = Annotated[str | None, option("--precision", RUN,
    "fp32 unless bf16 or fp16 is named. [precision.compute]", "KIND")]
EvalBatchSize = Annotated[int | None, option("--batch-size", RUN,
    "Images of one forward pass. [eval.batch_size]", "N")]
NumProcesses = Annotated[int | None, option("--num-processes", RUN,
    "Processes on this machine, one for each GPU.", "N", min=1)]
PerDeviceBatch = Annotated[str | None, option("--per-device-batch", RUN,
    "Images of one forward pass; the batch must split evenly into such parts. auto: the largest that fits.",
    "N|auto")]
Workers = Annotated[int | None, option("--workers", RUN,
    "Loader threads; no result depends on them.", "N", min=1)]
Exact = Annotated[bool, option("--exact", RUN,
    "The same bits on 1, 2, 4, ... processes: gradients are added up as one tree; one thread each on a CPU.")]
Shard = Annotated[bool, option("--shard", RUN,
    "Spread weights, gradients and optimizer over the processes (FSDP2): for models past one device.")]
ArmsParallel = Annotated[bool, option("--arms-parallel", RUN,
    "Of a selection, one run on each device side by side, or --num-processes of them.")]
Compile = Annotated[bool, option("--compile/--no-compile", RUN, "Compile the model with torch.compile.")]
Track = Annotated[str | None, option("--track", RUN,
    "Also log to tensorboard, wandb, trackio or mlflow (extra: track).", "NAME")]
ImageSize = Annotated[str | None, option("--res", DATA,
    "Image size in pixels: 384, or 384x512 (height x width).", "PX")]
ModelName = Annotated[str | None, option("--model", MODEL,
    "The paper's name or any timm model, where the file does not tell.", "NAME", autocompletion=model_names)]
ModelsFormat = Annotated[str, option("--format", RUN, "table or markdown.", "NAME")]
Method = Annotated[str, option("--method", MODEL,
    "paper: bilinear with aligned corners; timm: bicubic with antialias.", "NAME")]
PatchSize = Annotated[int | None, option("--patch-size", MODEL,
    "Resize the patch embedding too, to patches of this many pixels (FlexiViT).", "PX", min=1)]
To = Annotated[str | None, option("--to", MODEL,
    "timm, onnx, npz or safetensors; by the ending of OUT if left out.", "FORMAT")]
Head = Annotated[bool, option("--head/--no-head", MODEL, "--no-head leaves the features.")]
Names = Annotated[str, option("--names", MODEL,
    "Names inside an .npz: published (those of the released files), linen or big_vision.", "NAMES")]
Images = Annotated[list[str] | None, option("--images", DATA,
    "Pictures to compare with: a file, folder or glob; repeatable. The demo's if left out.", "PICTURES")]
OverwriteFile = Annotated[bool, option("--overwrite", RUN, "Replace OUT if it exists.")]
PushToHub = Annotated[str | None, option("--push-to-hub", RUN,
    "Upload to this repository of the Hugging Face Hub: the run folder CKPT and its card, or the folder OUT.",
    "OWNER/NAME")]
Private = Annotated[bool, option("--private", RUN, "With --push-to-hub: a new repository is a private one.")]
Revision = Annotated[str | None, option("--revision", RUN,
    "With --push-to-hub: a branch, made if it is not there; the main one if left out.", "BRANCH")]
Kills = Annotated[int, option("--kills", RUN, "SIGKILLs at random instants.", "N", min=1)]
Topk = Annotated[int | None, option("--topk", RUN, "Classes a picture; 5 if left out.", "N", min=1)]
Overwrite = Annotated[bool, option("--overwrite", RUN, "Delete an earlier run in --out first.")]
DryRun = Annotated[bool, option("--dry-run", RUN, "Print the resolved recipe and its plan; write nothing.")]
Measure = Annotated[bool, option("--measure", RUN, "With --dry-run: time ten real steps.")]

# Of vit study alone.
StudySet = Annotated[list[str] | None, option("--set", RUN,
    "Any recipe key of every run, such as data.dataset=./photos; repeatable.", "KEY=VALUE")]
StudyOut = Annotated[Path | None, option("--out", RUN,
    "Folder of the study; the same command goes on with an unfinished one. runs/study-NAME if left out.",
    "FOLDER")]
StudyOverwrite = Annotated[bool, option("--overwrite", RUN, "Delete an earlier study in --out first.")]
StudyDryRun = Annotated[bool, option("--dry-run", RUN,
    "Print the grid and what each run costs; write nothing, need no data.")]

Json = Annotated[bool, option("--json", RUN, "Print one JSON object on standard output.")]
JsonLines = Annotated[bool, option("--jsonl", RUN, "Print one JSON object a picture.")]
Quiet = Annotated[bool, option("--quiet", RUN, "No progress, no notes.")]
Debug = Annotated[bool, option("--debug", RUN, "Show the traceback of an error.")]
Version = Annotated[bool, option("--version", None, "Print the version.")]
# fmt: on


given_arguments: list[str] = []  # the command line as given, for the launcher and environment.json


def shorthands(dataset, res, ckpt, model, precision) -> dict[str, Any]:
    """The options that most commands share, by recipe key; typer.BadParameter for an empty one."""
    for name, value in {"--dataset": dataset, "--res": res, "--ckpt": ckpt, "--model": model}.items():
        if value == "":  # a variable of a script that was not set
            raise typer.BadParameter("the value is empty", param_hint=name)
    return {
        "data.dataset": dataset,
        "data.image_size": res,
        "model.ckpt": ckpt,
        "model.name": model,
        "precision.compute": precision,
    }


def launch(num_processes: int | None) -> int | None:
    """The exit code of the processes this command line asks for; None if it is to run in this one."""
    from vitcli.distributed import launch as distributed_launch

    distributed_launch.adopt_slurm()
    if num_processes is None or not distributed_launch.must_launch(num_processes):
        return None
    return distributed_launch.launch(num_processes, given_arguments)


def show_and_fail(
    result: dict[str, Any], error: VitError | None, as_json: bool, render: Callable[[dict[str, Any]], str]
) -> int:
    """Print a result and end with what did not hold in it, if anything; one process does both."""
    from vitcli.distributed import launch as distributed_launch

    if error and as_json:  # one object on standard output, so the error stands in it
        result = result | {"error": {"message": error.message, "where": error.where, "fix": error.fix}}
    text.show(result, as_json, render)
    if error is None or distributed_launch.global_rank() != 0:
        return 0
    if as_json:
        return error.exit_code
    raise error
