"""`vit finetune`, `vit pretrain` and `vit distill`."""

import os
import re
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from vitcli.cli import complete, inputs, options, submit
from vitcli.cli.help import ADVANCED, MODEL, RUN, TRAIN, TRAINING
from vitcli.cli.options import command, launch, option
from vitcli.distributed import launch as launcher
from vitcli.errors import VitError
from vitcli.output import text

app = typer.Typer()


# fmt: off
@dataclass(frozen=True)
class TrainingOptions:
    """Options of both training commands."""

    steps: options.Steps = None
    epochs: Annotated[float | None, option("--epochs", TRAINING,
        "Duration in passes over the training images, instead of --steps (default: none). [schedule.epochs]",
        "N")] = None
    max_time: Annotated[str | None, option("--max-time", TRAINING,
        "Wall-clock budget including evaluation and saving: 90s, 30m, 1h30m; the schedule is shortened to "
        "fit (default: no limit). [schedule.max_minutes]", "TIME")] = None
    batch_size: options.BatchSize = None
    lr: options.Lr = None
    seed: Annotated[int | None, option("--seed", TRAINING,
        "Random seed (default: by the recipe). [train.seed]", "N")] = None
    runs: Annotated[int | None, option("--runs", TRAINING,
        "Runs with seed, seed + 1, ...; the result is their mean and std (default: by the recipe). "
        "[train.runs]", "N")] = None
    precision: options.Precision = None
    arms_parallel: Annotated[bool, option("--arms-parallel", ADVANCED,
        "Run the values of a sweep side by side, one on each device, or --num-processes of them.")] = False
    out: Annotated[Path | None, option("--out", RUN,
        "Run folder; an unfinished run in it is resumed (default: a new one under runs/).", "FOLDER")] = None
    track: options.Track = None
    overwrite: options.Overwrite = False
    dry_run: Annotated[bool, option("--dry-run", RUN,
        "Print the training plan, with --json the resolved recipe too; write nothing.")] = False
    measure: Annotated[bool, option("--measure", ADVANCED, "With --dry-run: time ten real steps.")] = False
    profile: options.Profile = False

    def of_run(self) -> dict[str, Any]:
        """Return the options of a run that have the same name there."""
        names = ("out", "track", "overwrite", "dry_run", "measure", "profile")
        return {name: getattr(self, name) for name in names}

    def recipe_keys(self) -> dict[str, Any]:
        """Return the values by recipe key; VitError for two durations."""
        if self.steps is not None and self.epochs is not None:
            raise VitError(
                "--steps and --epochs both say how long to train",
                where=f"--steps {self.steps}, --epochs {self.epochs:g}",
                fix="give one of them",
            )
        return {
            "schedule.steps": self.steps,
            "schedule.epochs": self.epochs,
            "schedule.max_minutes": minutes_of(self.max_time) if self.max_time is not None else None,
            "train.batch_size": self.batch_size,
            "optimizer.lr": self.lr,
            "train.seed": self.seed,
            "train.runs": self.runs,
        }


def minutes_of(text: str) -> float:
    """Return the minutes of 90s, 30m or 1h30m; typer.BadParameter for anything else."""
    number = r"([0-9]{1,6}(?:\.[0-9]{1,6})?)"
    parts = re.fullmatch(rf"(?=.)(?:{number}h)?(?:{number}m)?(?:{number}s)?", text.strip().lower())
    hours, minutes, seconds = (float(part or 0) for part in parts.groups()) if parts else (0, 0, 0)
    if not hours + minutes + seconds:
        unit = f"; {text.strip()}m or {text.strip()}s?" if text.strip().isdecimal() else ""
        message = f"invalid duration {text!r}: use 90s, 30m or 1h30m{unit}"
        raise typer.BadParameter(message, param_hint="--max-time")
    return 60 * hours + minutes + seconds / 60


KeepHead = Annotated[bool, option("--keep-head", MODEL,
    "Train on with the head of the checkpoint, for data with the same classes; the default is a new one. "
    "[model.head]")]
Teachers = Annotated[list[str] | None, option("--teacher", MODEL,
    "Checkpoint or .onnx file to learn from; of several the mean of their probabilities (default: by the "
    "recipe). Repeatable. [distill.teacher]", "CKPT", autocompletion=complete.ckpts)]
Student = Annotated[str | None, option("--ckpt", MODEL,
    "Initial weights of the student: anything that --ckpt of vit finetune takes (default: the first teacher, "
    "with its head on the data of its run). [model.ckpt]", "CKPT", autocompletion=complete.ckpts)]
Folds = Annotated[int | None, option("--folds", TRAINING,
    "K-fold cross-validation: train N models, score each on its held-out fold, then train a final model on "
    "all images (default: 0, off). [train.folds]", "N")]
# fmt: on


@command(
    app,
    panel=TRAIN,
    example="""\
vit finetune --ckpt timm/vit_base_patch16_224.augreg_in21k --dataset photos/
vit finetune --ckpt vit_l16.npz --dataset oxford_pets --res 384 --runs 3""",
    defaults={
        "--steps": "by the recipe; own images: 200, 600 or 10 epochs, by the images per class",
        "--batch-size": "by the recipe; own images: 32, from 500 images per class on 128",
        "--lr": "by the recipe; own images: 0.01, from 500 images per class on 0.0005",
        "--seed": "0",
        "--runs": "1",
    },
)
def finetune(
    *,
    ckpt: options.Ckpt = None,
    keep_head: KeepHead = False,
    folds: Folds = None,
    recipe: options.RecipeOptions,
    training: TrainingOptions,
    devices: options.DeviceOptions,
    verbose: options.Verbose = False,
    printing: options.Printing,
) -> int:
    """Fine-tune a checkpoint on your images.

    Own images get a recipe by their number per class, which --dry-run names; the data sets of the paper its
    protocol (section 3.2), also by --recipe finetune/default. Without options: the embedded demo.

    70 more keys: vit recipes show modern/finetune-some; such as --set train.patience=3, model.lora_rank=8 or
    optimizer.weight_decay=0.1.
    """
    shown = (printing, verbose)
    return _train("finetune", recipe, training, devices, *shown, ckpt, keep_head=keep_head, folds=folds)


@command(
    app,
    panel=TRAIN,
    example="vit pretrain --recipe pretrain/demo --out runs/demo",
    defaults={
        "--steps": "by the recipe; pretrain/default: 5000",
        "--batch-size": "by the recipe; pretrain/default: 128",
        "--lr": "by the recipe; pretrain/default: 0.001",
        "--seed": "0",
        "--runs": "1",
    },
)
def pretrain(
    *,
    recipe: options.RecipeOptions,
    training: TrainingOptions,
    devices: options.DeviceOptions,
    verbose: options.Verbose = False,
    printing: options.Printing,
) -> int:
    """Train a network from fresh weights.

    The protocol of the paper, sections 3.1 and 4.1. Without options: the demo recipe.
    """
    return _train("pretrain", recipe, training, devices, printing, verbose)


@command(
    app,
    panel=TRAIN,
    example="""\
vit distill --teacher runs/photos --res 96 --out runs/small
vit distill --teacher runs/photos --ckpt timm/vit_tiny_patch16_224.augreg_in21k --out runs/tiny""",
    defaults={
        "--steps": "by the recipe; modern/distill: 600",
        "--batch-size": "by the recipe; modern/distill: 32",
        "--lr": "by the recipe; modern/distill: 0.01",
        "--seed": "0",
        "--runs": "1",
    },
)
def distill(
    *,
    teacher: Teachers = None,
    ckpt: Student = None,
    recipe: options.RecipeOptions,
    training: TrainingOptions,
    devices: options.DeviceOptions,
    verbose: options.Verbose = False,
    printing: options.Printing,
) -> int:
    """Train a student on the predictions of a teacher.

    They are stored for each view, so that a second student costs no more than a run without a teacher. A
    baseline without the teacher is trained, too, and the better on the dev split is delivered.
    """
    if not teacher and recipe.without_given({"distill.teacher": None}):
        raise typer.BadParameter("name a checkpoint or an .onnx file to learn from", param_hint="--teacher")
    keys = recipe.without_given(inputs.keys_of_student(teacher or (), ckpt, recipe.dataset))
    named = replace(recipe, recipe=recipe.recipe or "modern/distill")
    return _train("finetune", named, training, devices, printing, verbose, ckpt, more=keys)


def _train(
    name: str,
    recipe: options.RecipeOptions,
    training: TrainingOptions,
    devices: options.DeviceOptions,
    printing: options.Printing,
    verbose: bool,
    ckpt: str | None = None,
    *,
    keep_head: bool = False,
    folds: int | None = None,
    more: dict[str, Any] | None = None,
) -> int:
    """Run a training command here or in the processes that the command line asks for."""
    began_at = launcher.began_at()
    from vitcli import recipe as recipes
    from vitcli.experiments import vtab

    submit.print_file(devices, training.out, printing)
    # Mistakes are reported before torch is loaded.
    overrides = recipe.set_ or ()
    recipe_keys = recipe.shorthands(ckpt, training.precision, keeps_head=keep_head) | training.recipe_keys()
    recipe_keys |= {"model.head": "keep" if keep_head else None, "train.folds": folds} | (more or {})
    groups = vtab.tasks_of(recipe.dataset) if name == "finetune" else {}
    if groups:
        task_recipes = vtab.resolve(list(groups), recipe.recipe, overrides, recipe_keys)
    else:
        resolved = (
            recipes.load(recipe.recipe, overrides, recipe_keys)
            if recipe.recipe
            else recipes.load_for_dataset(name, recipe.dataset, overrides, recipe_keys)
        )
        if name == "finetune":
            recipes.check_names_ckpt(resolved, name)
        inputs.check_recipe(resolved)
        of_run = recipe.without_given(inputs.remembered(ckpt, recipe.dataset, keeps_head=keep_head))
        if of_run := {key: value for key, value in of_run.items() if value != "softmax"}:
            values = ", ".join(f"{key} {text.value_text(value)}" for key, value in of_run.items())
            resolved = resolved.with_notes(f"note: as in {ckpt}: {values}")

    submit.hand_over(devices, training.out, printing)
    # With --arms-parallel each process has a run of its own, so nothing is launched here.
    launch(None if training.arms_parallel else devices.num_processes, devices.device)
    run_options = devices.run_options(
        **training.of_run(),
        arms_parallel=_num_parallel_runs(devices) if training.arms_parallel else 0,
        quiet=printing.quiet,
        verbose=verbose,
        began_at=began_at,
    )
    if name == "finetune":
        from vitcli.training.finetune import finetune as train
    else:
        from vitcli.training.pretrain import pretrain as train
    if groups:
        result = vtab.finetune_tasks(
            groups,
            task_recipes,
            lambda task_recipe, out: train(task_recipe, replace(run_options, out=out)),
            out=run_options.out,
            dry_run=run_options.dry_run,
            quiet=run_options.quiet,
        )
        return printing.show(result, vtab.render)
    from vitcli.training.text import as_text

    return printing.show(train(resolved, run_options), partial(as_text, verbose=verbose))


def _num_parallel_runs(devices: options.DeviceOptions) -> int:
    """Return how many runs --arms-parallel starts: one per device, or --num-processes."""
    if devices.shard:
        raise typer.BadParameter("--shard needs all devices for one run: leave one of the two out")
    if "VIT_WORKER" in os.environ:  # started by another one, which has counted them
        return devices.num_processes or 1
    if "RANK" in os.environ:
        raise typer.BadParameter("the runs start their own processes: call vit without a launcher")
    import torch

    num_devices = torch.accelerator.device_count()
    num_runs = devices.num_processes or max(1, num_devices)
    if num_devices and num_runs > num_devices:
        raise typer.BadParameter(
            f"--num-processes {num_runs} runs side by side need a device each: there are {num_devices}"
        )
    return num_runs
